"""One rank of test_through_host.py: messages by way of host memory; writes what it saw as JSON."""

import gc
import os
from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.exchange import RankExchange
from scaling.collectives.ring import ring
from scaling.errors import LaunchError, ScheduleError
from scaling.process_group import Group, Message, ThroughHostGroup, TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.batch_norm import synchronized
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, TrainingStep
from tests.ranks import as_rank

CPU = torch.device("cpu")
DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))
"""Of the tensors; on a GPU all ranks share its first one."""
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8)
LAYOUT = BucketLayout.of([("weight", (13, 7)), ("bias", (13,)), ("more", (40,))])
SETTINGS = SgdSettings(learning_rate=0.05, momentum=0.9)


def own_values(group: Group, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.arange(10) + 100 * group.rank % 256).to(dtype).to(DEVICE)


def messages(group: ThroughHostGroup) -> dict[str, Any]:
    """Each rank sends parts of its buffer to both others, into parts of theirs, not all contiguous."""
    right, left = (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
    found, metered = {}, []
    for dtype in TYPES:
        group.meter.reset()
        values, wide = own_values(group, dtype), torch.zeros((5, 2), dtype=dtype, device=DEVICE)
        flat = torch.zeros(12, dtype=dtype, device=DEVICE)
        sends = [Message(right, values[1:6]), Message(left, values[2:4]), Message(left, values[:0])]
        group.exchange(sends, [Message(left, wide[:, 1]), Message(right, flat[3:5])])
        found[str(dtype)] = [wide.flatten().tolist(), flat.tolist(), values.tolist()]
        metered.append([group.meter.bytes_sent // dtype.itemsize, group.meter.messages_sent])
    return {"found": found, "metered": metered}


def collectives(group: ThroughHostGroup) -> dict[str, Any]:
    wide = torch.zeros((4, 2), device=DEVICE)
    wide[:, 0] = group.rank + 1.0
    group.all_reduce(wide[:, 0])
    told = own_values(group)
    group.broadcast(told, source=1)
    group.all_reduce(torch.empty(0, device=DEVICE))
    on_host = torch.full((3,), float(group.rank))
    group.all_reduce_host(on_host)
    return {"sum": wide.tolist(), "told": told.tolist(), "on_host": on_host.tolist()}


def rooms(group: ThroughHostGroup) -> dict[str, Any]:
    """The host memory of one call serves the next, and grows with a larger one."""
    places = []
    for size in (100, 50, 100, 5000, 100):
        group.all_reduce(torch.ones(size, device=DEVICE))
        places.append((group._outgoing._memory.data_ptr(), group._outgoing._memory.numel()))
    return {"sizes": [size for _, size in places], "num_places": len({place for place, _ in places[:3]})}


def peers(group: ThroughHostGroup) -> dict[str, Any]:
    """No rank reads another's GPU, and a CUDA graph holds no message."""
    cuda = torch.device("cuda", 0)
    said = []
    for attempt in (
        lambda: group.peer_memory(1, torch.float32, cuda),
        lambda: RankExchange(ring(group.world_size), group, 10, torch.float32, cuda, captured=True),
    ):
        try:
            attempt()
        except (LaunchError, ScheduleError) as error:
            said.append(str(error))
    exchange = RankExchange(ring(group.world_size), group, 10, torch.float32, CPU)
    return {"access": group.can_access_peers(cuda), "said": said, "note": exchange.note}


def aggregators(group: ThroughHostGroup, plain: TorchGroup) -> dict[str, Any]:
    """Names of those whose results over three calls differ from the plain group's in any bit."""
    apart = []
    names = [name for name in BUILT_IN if create(name).library is None and create(name).exchanges]
    for name in names:
        results = [_three_calls(name, one) for one in (group, plain)]
        if results[0] != results[1]:
            apart.append(name)
    return {"num": len(names), "apart": apart}


def _three_calls(name: str, group: Group) -> list[Any]:
    aggregator = create(name)
    torch.manual_seed(0)
    state = aggregator.start(LAYOUT, group, torch.float32, CPU)
    found = []
    for number in range(3):
        generator = torch.Generator().manual_seed(10 * number + group.rank)
        mean = aggregator.aggregate(state, torch.randn(LAYOUT.num_elements, generator=generator))
        if mean is not None:
            found += [mean[start:stop].tolist() for start, stop in aggregator.owned(state)]
    return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 6))


def batch(rank: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)


def training(group: TorchGroup, step: TrainingStep, device: torch.device) -> list[float]:
    batches = [batch(group.rank, number) for number in range(4)]
    return [step(inputs.to(device), targets.to(device)).item() for inputs, targets in batches]


def overlapped(group: ThroughHostGroup, plain: TorchGroup) -> dict[str, Any]:
    """DDP over the group, with statistics of the global batch; beside it the plain group's eager step."""
    inputs, targets = batch(group.rank, 0)
    step = OverlappedStep(
        Replica(synchronized(network().to(DEVICE), group)), create("all_reduce"), SETTINGS, group,
        bucket_mb=0.0005, inputs=inputs.to(DEVICE), targets=targets.to(DEVICE),
    )  # fmt: skip
    losses = training(group, step, DEVICE)
    eager = EagerStep(FlatReplica(synchronized(network(), plain)), create("all_reduce"), SETTINGS, plain)
    learnt = {"losses": losses, "eager": training(plain, eager, CPU)}
    return {**learnt, "hooked": step._hooked, "notes": step.notes}


def streams(group: ThroughHostGroup, _: TorchGroup) -> dict[str, Any]:
    """Values that a busy side stream has yet to make, and what it does next with those that came."""
    side = torch.cuda.Stream()
    peers = [(group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size]
    with torch.cuda.stream(side):
        found = []
        for number in range(5):
            mine, theirs = torch.zeros(100_000, device=DEVICE), torch.zeros(100_000, device=DEVICE)
            torch.cuda._sleep(20_000_000)
            mine.fill_(10.0 * number + group.rank)
            group.exchange([Message(peers[0], mine)], [Message(peers[1], theirs)])
            doubled = 2 * theirs
            torch.cuda._sleep(20_000_000)
            mine.fill_(number + 1.0)
            group.all_reduce(mine)
            found.append([*doubled.unique().tolist(), *mine.unique().tolist()])
    return {"found": found}


def failing(workers: Workers) -> dict[str, Any]:
    """The last rank fails while the others wait for its part of a sum; afterwards a new group works.

    Connections end with the last reference to them, which a cell's frames are.
    """
    failure = _failure_in_a_sum(workers)
    gc.collect()
    if failure:
        order = workers.first_failure("sum")
        workers.leave_group()
    outcome = workers.outcome("sum", failure, None, failure_order=order if failure else 0)
    again = torch.ones(5, device=DEVICE)
    workers.group(DEVICE, through_host=True).all_reduce(again)
    return {"failed": failure is not None, "reason": outcome.reason, "again": again.tolist()}


def _failure_in_a_sum(workers: Workers) -> str | None:
    group = workers.group(DEVICE, through_host=True)
    group.barrier()
    try:
        if group.rank == group.world_size - 1:
            raise RuntimeError("planted failure")
        group.all_reduce(torch.ones(5, device=DEVICE))
    except RuntimeError as error:
        return str(error)
    return None


def scenarios(workers: Workers) -> dict[str, Any]:
    group = workers.group(DEVICE, through_host=True)
    assert isinstance(group, ThroughHostGroup)
    plain = TorchGroup(group.data, group._control, group.world_size)
    seen = {one.__name__: one(group) for one in (messages, collectives, rooms, peers)}
    of_both = (aggregators if DEVICE == CPU else streams, overlapped)
    return seen | {one.__name__: one(group, plain) for one in of_both}


def seen_by(workers: Workers) -> dict[str, Any]:
    return {**scenarios(workers), "failing": failing(workers)}


if __name__ == "__main__":
    as_rank(seen_by)
