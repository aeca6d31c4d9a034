"""The group over torch.distributed, in real processes over Gloo: one launch, looked at from all sides."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from scaling.aggregators.host import HostParallel
from scaling.bucket import BucketLayout
from scaling.collectives.exchange import RankExchange
from scaling.collectives.ring import ring
from scaling.errors import LaunchError
from scaling.process_group import HostCounters, TorchGroup, over_torch
from tests.ranks import as_rank, refusal, run_ranks

CPU = torch.device("cpu")
NUM_ROUNDS, WORLD_SIZE = 200, 3

pytestmark = pytest.mark.processes


def shared_buffers(group):
    """A buffer is zeroed, the same memory on all ranks, and its name is gone."""
    paths: list[str] = []
    create = over_torch._create_shared_file

    def create_and_note(num_bytes):
        paths.append(create(num_bytes))
        return paths[-1]

    with patch.object(over_torch, "_create_shared_file", create_and_note):
        buffer = group.shared_host_buffer(24, register=False)
        empty = group.shared_host_buffer(0, register=False)
    seen = {"zeroed": int(buffer.sum()) == 0, "sizes": [buffer.numel(), empty.numel()]}
    group.barrier()
    buffer.view(torch.int64)[group.rank] = group.rank + 1
    group.barrier()
    left = [path for path in paths if os.path.exists(path)]
    return {**seen, "values": buffer.view(torch.int64).tolist(), "num_created": len(paths), "left": left}


def barriers(group):
    """Rounds in which a rank passed before all had come."""
    arrived = group.shared_host_buffer(group.world_size * 8, register=False).view(torch.int64)
    too_early = 0
    for number in range(1, NUM_ROUNDS + 1):
        arrived[group.rank] = number
        group.barrier()
        too_early += int(arrived.min()) < number
        group.barrier()
    return {"too_early": too_early, "by_counters": isinstance(group._barriers, HostCounters)}


def host_all_reduce(group):
    tensor = torch.full((12,), float(group.rank + 1))
    group.meter.reset()
    group.all_reduce_host(tensor)
    group.all_reduce_host(torch.empty(0))
    return {"values": tensor.tolist(), "metered": [group.meter.bytes_sent, group.meter.messages_sent]}


def peer_memory(group):
    """On CPUs there is none: auto is by sends."""
    said = refusal(LaunchError, lambda: group.peer_memory(1, torch.float32, CPU))
    exchange = RankExchange(ring(group.world_size), group, 10, torch.float32, CPU)
    result = exchange.run(torch.full((10,), float(group.rank)))
    return {"refusal": said, "transport": exchange.transport, "values": result.tolist()}


def host_sums(group):
    """Rounds in which the mean, pipelined through shared memory by real processes, is not exact."""
    layout = BucketLayout.of([("values", (1003,))])
    aggregator = HostParallel(num_chunks=7)
    state = aggregator.start(layout, group, torch.float32, CPU)
    wrong = 0
    for number in range(NUM_ROUNDS):
        mean = aggregator.aggregate(state, torch.arange(1003.0) * (group.rank + 1) + number)
        wrong += not torch.equal(mean, torch.arange(1003.0) * ((group.world_size + 1) / 2) + number)
    return {"wrong": wrong}


def several_hosts(group):
    """The same ranks, as if each were on a host of its own."""
    apart = TorchGroup(group.data, group._control, ranks_on_this_host=1)
    said = refusal(LaunchError, lambda: apart.shared_host_buffer(1, register=False))
    apart.barrier()
    return {"refusal": said, "by_counters": apart._barriers is not None}


def alone(group):
    """A process group of each rank, in which nobody else is heard."""
    own = group.single_rank_group()
    tensor = torch.full((3,), float(group.rank))
    dist.all_reduce(tensor, group=own)
    library = dist.get_backend(own) == dist.get_backend(group.data)
    found = {"place": [dist.get_rank(own), dist.get_world_size(own)], "library": library}
    return {**found, "made_once": group.single_rank_group() is own, "values": tensor.tolist()}


def largest(group):
    """Of one value and of several."""
    group.meter.reset()
    values = [float(group.rank), -float(group.rank), 0.1]
    found = {"one": group.largest(float(group.rank)), "several": group.largest_of(values)}
    return {**found, "none": group.largest_of([]), "metered": group.meter.bytes_sent}


def messages(group):
    value = {"é": (1, [float("inf"), None], ("a", True)), "": {}}
    return {"same": group.share(value if group.rank == 1 else None, source=1) == value}


def host_clock(group):
    """On one host; and as if each rank had one of its own, with a clock `rank` thousand seconds ahead."""
    apart = TorchGroup(group.data, group._control, ranks_on_this_host=1)
    ahead = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1000 * group.rank)
    with patch.object(over_torch, "time", ahead):
        offset_s, uncertainty_s = apart.host_clock_offset()
    error_s = abs(offset_s + 1000 * group.rank)
    return {"same_host": group.host_clock_offset(), "error_s": error_s, "uncertainty_s": uncertainty_s}


def waiting(group):
    """What a rank waits for is written by the one before it."""
    told = group.shared_host_buffer(group.world_size, register=False)
    if group.rank:
        group.wait_until(lambda: int(told[group.rank - 1]) > 0)
    told[group.rank] = int(told[group.rank - 1]) + 1 if group.rank else 1
    return {"value": int(told[group.rank])}


def waiting_in_vain(group):
    """Nobody fails, and nobody writes."""
    with patch.multiple(over_torch, ASK_AFTER_S=0.01, WAIT_LIMIT_S=0.01):
        return {"failure": refusal(TimeoutError, lambda: group.wait_until(lambda: False))}


def failing(workers, wait, name):
    """The last rank fails while the others wait in host memory; afterwards a new group works."""
    group = workers.group(CPU)
    memory = group.shared_host_buffer(8, register=False)
    group.barrier()
    try:
        if group.rank == group.world_size - 1:
            raise RuntimeError("planted failure")
        wait(group, memory)
        failure = None
    except (RuntimeError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {error}"
        order = workers.first_failure(name)
        workers.leave_group()
    outcome = workers.outcome(name, failure, None, failure_order=order if failure else 0)
    again = workers.group(CPU)
    again.barrier()
    again.wait_until(lambda: True)
    return {"failure": failure, "reason": outcome.reason, "can_go_on": outcome.can_go_on}


def seen_by(workers):
    scenarios = [
        shared_buffers, barriers, host_all_reduce, peer_memory, host_sums, several_hosts, alone, largest,
        messages, host_clock, waiting, waiting_in_vain,
    ]  # fmt: skip
    seen = {scenario.__name__: scenario(workers.group(CPU)) for scenario in scenarios}
    seen["fails_in_wait"] = failing(workers, lambda group, _: group.wait_until(lambda: False), "wait")
    seen["fails_in_barrier"] = failing(workers, lambda group, _: group.barrier(), "barrier")
    return seen


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What every rank saw, in rank order: scenario -> key -> value."""
    return run_ranks(Path(__file__), WORLD_SIZE, tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def seen(ranks):
    """seen(scenario, key): of every rank, in rank order."""
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


@pytest.mark.parametrize(("scenario", "expected"), [
    ("shared_buffers", {"zeroed": True, "values": [1, 2, 3], "sizes": [24, 0], "left": []}),
    ("several_hosts", {"by_counters": False}),
    ("barriers", {"by_counters": True, "too_early": 0}),
    ("host_all_reduce", {"values": [6.0] * 12, "metered": [64, 4]}),
    ("peer_memory", {"transport": "sends", "values": [3.0] * 10}),
    ("host_sums", {"wrong": 0}),
    ("alone", {"place": [0, 1], "library": True, "made_once": True}),
    ("largest", {"one": 2.0, "several": [2.0, 0.0, 0.1], "none": [], "metered": 0}),
    ("messages", {"same": True}),
    ("host_clock", {"same_host": [0.0, 0.0]}),
])  # fmt: skip
def test_every_rank_sees_what_the_scenario_of_the_worker_says(ranks, scenario, expected):
    assert [{key: rank[scenario][key] for key in expected} for rank in ranks] == [expected] * WORLD_SIZE


@pytest.mark.parametrize(("scenario", "said"), [
    ("several_hosts", "only 1 of 3 ranks are on this host"),
    ("peer_memory", "cannot read each other's memory here"),
])  # fmt: skip
def test_memory_that_ranks_cannot_share_is_refused(seen, scenario, said):
    assert all(said in refused for refused in seen(scenario, "refusal"))


@pytest.mark.parametrize(("scenario", "key", "by_rank"), [
    ("shared_buffers", "num_created", [2, 0, 0]),  # rank 0 makes them
    ("alone", "values", [[float(rank)] * 3 for rank in range(WORLD_SIZE)]),  # nobody else is heard
    ("waiting", "value", [1, 2, 3]),  # each sees what the one before wrote
])  # fmt: skip
def test_ranks_see_each_its_own(seen, scenario, key, by_rank):
    assert seen(scenario, key) == by_rank


def test_offset_to_another_hosts_clock_is_found_to_within_what_is_said(seen):
    errors_s, uncertainties_s = (seen("host_clock", key) for key in ("error_s", "uncertainty_s"))
    assert uncertainties_s[0] == 0
    for error_s, uncertainty_s in zip(errors_s, uncertainties_s, strict=True):
        assert error_s <= uncertainty_s + 1e-9
        assert uncertainty_s < 10


class TestWaitUntil:
    def test_wait_for_what_nobody_writes_ends_in_an_error(self, seen):
        for rank, failure in enumerate(seen("waiting_in_vain", "failure")):
            assert failure.startswith(f"rank {rank} waited ")

    @pytest.mark.parametrize("scenario", ["fails_in_wait", "fails_in_barrier"])
    def test_rank_that_fails_releases_the_others_and_its_reason_counts(self, seen, scenario):
        *others, failed = seen(scenario, "failure")
        assert failed == "RuntimeError: planted failure"
        assert others == ["TimeoutError: another rank has failed while this one waited for it"] * 2
        assert seen(scenario, "reason") == [failed] * WORLD_SIZE
        assert seen(scenario, "can_go_on") == [True] * WORLD_SIZE


if __name__ == "__main__":
    as_rank(seen_by)
