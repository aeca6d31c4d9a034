"""The group of ranks that share GPUs, in real processes over Gloo.

Without a GPU host tensors stand for those of one: they are copied all the same.
"""

import functools
import gc
import os
from pathlib import Path

import pytest
import torch

from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.exchange import RankExchange
from scaling.collectives.ring import ring
from scaling.errors import LaunchError, ScheduleError
from scaling.process_group import Message, ThroughHostGroup, TorchGroup
from scaling.process_group.through_host import HostRoom
from scaling.training.batch_norm import synchronized
from scaling.training.optimizers import SgdSettings
from tests.ranks import as_rank, refusal, run_ranks
from tests.training import small
from tests.training.small import CPU, batch, normalised

DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))
"""Of the tensors; on a GPU all ranks share its first one."""
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8)
LAYOUT = BucketLayout.of([("weight", (13, 7)), ("bias", (13,)), ("more", (40,))])
WORLD_SIZE = 3
SETTINGS = SgdSettings(learning_rate=0.05, momentum=0.9)


def own_values(group, dtype=torch.float32):
    return (torch.arange(10) + 100 * group.rank % 256).to(dtype).to(DEVICE)


def messages(group):
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


def collectives(group):
    wide = torch.zeros((4, 2), device=DEVICE)
    wide[:, 0] = group.rank + 1.0
    group.all_reduce(wide[:, 0])
    told = own_values(group)
    group.broadcast(told, source=1)
    group.all_reduce(torch.empty(0, device=DEVICE))
    on_host = torch.full((3,), float(group.rank))
    group.all_reduce_host(on_host)
    return {"sum": wide.tolist(), "told": told.tolist(), "on_host": on_host.tolist()}


def rooms(group):
    """The host memory of one call serves the next, and grows with a larger one."""
    places = []
    for size in (100, 50, 100, 5000, 100):
        group.all_reduce(torch.ones(size, device=DEVICE))
        places.append((group._outgoing._memory.data_ptr(), group._outgoing._memory.numel()))
    return {"sizes": [size for _, size in places], "num_places": len({place for place, _ in places[:3]})}


def peers(group):
    """No rank reads another's GPU, and a CUDA graph holds no message."""
    cuda = torch.device("cuda", 0)
    chosen = (ring(group.world_size), group, 10, torch.float32)
    said = [
        refusal(LaunchError, lambda: group.peer_memory(1, torch.float32, cuda)),
        refusal(ScheduleError, lambda: RankExchange(*chosen, cuda, captured=True)),
    ]
    note = RankExchange(*chosen, CPU).note
    return {"access": group.can_access_peers(cuda), "said": said, "note": note}


def aggregators(group, plain):
    """Names of those whose results over three calls differ from the plain group's in any bit."""
    apart = []
    names = [name for name in BUILT_IN if create(name).library is None and create(name).exchanges]
    for name in names:
        results = [_three_calls(name, one) for one in (group, plain)]
        if results[0] != results[1]:
            apart.append(name)
    return {"num": len(names), "apart": apart}


def _three_calls(name, group):
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


network = functools.partial(normalised, 12, 20, 6)


def training(group, step, device):
    return [step(*batch(group.rank, number, device)).item() for number in range(4)]


def overlapped(group, plain):
    """DDP over the group, with statistics of the global batch; beside it the plain group's eager step."""
    chosen = (synchronized(network().to(DEVICE), group), create("all_reduce"), SETTINGS, group)
    step = small.overlapped(*chosen, batch(group.rank, 0, DEVICE), bucket_mb=0.0005)
    losses = training(group, step, DEVICE)
    exact = small.eager(synchronized(network(), plain), "all_reduce", SETTINGS, plain)
    learnt = {"losses": losses, "eager": training(plain, exact, CPU)}
    return {**learnt, "hooked": step._hooked, "notes": step.notes}


def streams(group, _):
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


def failing(workers):
    """The last rank fails while the others wait for its part of a sum; afterwards a new group works.

    Connections end with the last reference to them, which a cell's frames are.
    """
    failure, order = _failure_in_a_sum(workers), 0
    gc.collect()
    if failure:
        order = workers.first_failure("sum")
        workers.leave_group()
    outcome = workers.outcome("sum", failure or None, None, failure_order=order)
    again = torch.ones(5, device=DEVICE)
    workers.group(DEVICE, through_host=True).all_reduce(again)
    return {"failed": bool(failure), "reason": outcome.reason, "again": again.tolist()}


def _failure_in_a_sum(workers):
    group = workers.group(DEVICE, through_host=True)
    group.barrier()

    def add():
        if group.rank == group.world_size - 1:
            raise RuntimeError("planted failure")
        group.all_reduce(torch.ones(5, device=DEVICE))

    return refusal(RuntimeError, add)


def scenarios(workers):
    group = workers.group(DEVICE, through_host=True)
    assert isinstance(group, ThroughHostGroup)
    plain = TorchGroup(group.data, group._control, group.world_size)
    seen = {one.__name__: one(group) for one in (messages, collectives, rooms, peers)}
    of_both = (aggregators if DEVICE == CPU else streams, overlapped)
    return seen | {one.__name__: one(group, plain) for one in of_both}


def seen_by(workers):
    return {**scenarios(workers), "failing": failing(workers)}


ON_GPU = pytest.param("cuda:0", marks=pytest.mark.gpu)


@pytest.fixture(scope="module", params=["cpu", ON_GPU])
def device(request):
    return request.param


@pytest.fixture(scope="module")
def seen(tmp_path_factory, device):
    """seen(scenario, key): what every rank saw, in rank order."""
    folder = tmp_path_factory.mktemp("through-host")
    ranks = run_ranks(Path(__file__), WORLD_SIZE, folder, TEST_DEVICE=device)
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


def values_of(rank):
    return [(number + 100 * rank) % 256 for number in range(10)]


@pytest.mark.processes
class TestInProcesses:
    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
    def test_parts_arrive_in_their_places_and_nowhere_else(self, seen, dtype):
        for rank, found in enumerate(seen("messages", "found")):
            wide, flat, own = found[f"torch.{dtype}"]
            left, right = values_of((rank - 1) % WORLD_SIZE), values_of((rank + 1) % WORLD_SIZE)
            assert wide == [value for sent in left[1:6] for value in (0, sent)]
            assert (flat, own) == ([0, 0, 0, *right[2:4], *[0] * 7], values_of(rank))

    def test_what_is_sent_is_metered_once(self, seen):
        assert seen("messages", "metered") == [[[7, 2]] * 6] * WORLD_SIZE

    def test_sums_and_broadcasts_reach_every_rank(self, seen):
        assert seen("collectives", "sum") == [[[6.0, 0.0]] * 4] * WORLD_SIZE
        assert seen("collectives", "told") == [values_of(1)] * WORLD_SIZE
        assert seen("collectives", "on_host") == [[3.0] * 3] * WORLD_SIZE

    def test_host_memory_is_kept_and_grows_with_the_largest_call(self, seen):
        for sizes in seen("rooms", "sizes"):
            assert sizes[0] == sizes[1] == sizes[2]
            assert sizes[0] < sizes[3] == sizes[4]
            assert sizes[3] >= 4 * 5000
        assert seen("rooms", "num_places") == [1] * WORLD_SIZE

    @pytest.mark.parametrize("device", [ON_GPU], indirect=True)
    def test_a_busy_stream_is_waited_for_before_and_has_the_values_after(self, seen):
        for rank, found in enumerate(seen("streams", "found")):
            left = (rank - 1) % WORLD_SIZE
            assert found == [[2 * (10.0 * n + left), WORLD_SIZE * (n + 1.0)] for n in range(5)]

    def test_no_rank_reads_the_memory_of_another_gpu(self, seen):
        assert seen("peers", "access") == [False] * WORLD_SIZE
        assert seen("peers", "note") == ["transport: sends"] * WORLD_SIZE

    def test_peer_memory_and_captured_exchanges_are_refused_with_the_rule(self, seen):
        for peer_memory, captured in seen("peers", "said"):
            assert "cannot read each other's memory" in peer_memory
            assert "workers that share a GPU go through host memory" in captured

    # The plain group, Gloo's, takes host tensors alone.
    @pytest.mark.parametrize("device", ["cpu"], indirect=True)
    def test_every_aggregator_gives_the_bits_of_the_plain_group(self, seen):
        assert seen("aggregators", "apart") == [[]] * WORLD_SIZE
        assert min(seen("aggregators", "num")) > 10

    def test_overlapped_all_reduce_is_a_hook_and_learns_what_the_eager_step_does(self, seen, device):
        assert seen("overlapped", "hooked") == [True] * WORLD_SIZE
        pairs = zip(seen("overlapped", "losses"), seen("overlapped", "eager"), strict=True)
        for losses, eager in pairs:
            assert losses == pytest.approx(eager, rel=1e-5 if device == "cpu" else 1e-4)
        assert all("buckets" in notes[0] for notes in seen("overlapped", "notes"))

    def test_failure_ends_the_others_wait_and_a_new_group_works(self, seen):
        assert seen("failing", "failed") == [True] * WORLD_SIZE
        assert seen("failing", "reason") == ["planted failure"] * WORLD_SIZE
        assert seen("failing", "again") == [[3.0] * 5] * WORLD_SIZE


def test_places_of_a_room_have_shape_and_type_and_do_not_overlap():
    wanted = [torch.zeros(3).byte(), torch.zeros(2, 5), torch.zeros(0), torch.zeros(1).double()]
    places = HostRoom(pinned=False).places(wanted)
    assert [(one.shape, one.dtype) for one in places] == [(one.shape, one.dtype) for one in wanted]
    for number, place in enumerate(places):
        place.fill_(number + 1)
    assert [set(place.flatten().tolist()) for place in places] == [{1}, {2.0}, set(), {4.0}]
    assert HostRoom(pinned=True).places([]) == []


if __name__ == "__main__":
    as_rank(seen_by)
