"""The group of ranks that share GPUs, in real processes over Gloo.

Without a GPU host tensors stand for those of one: they are copied all the same.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scaling.process_group.through_host import HostRoom
from tests.ranks import run_ranks

WORLD_SIZE = 3


def launched(folder: Path, device: str) -> Callable[[str, str], list[Any]]:
    """launched(...)(scenario, key): what every rank saw, in rank order."""
    worker = Path(__file__).with_name("through_host_worker.py")
    ranks = run_ranks(worker, WORLD_SIZE, folder, TEST_DEVICE=device)
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


ON_GPU = pytest.param("cuda:0", marks=pytest.mark.gpu)


@pytest.fixture(scope="module", params=["cpu", ON_GPU])
def device(request):
    """Of the tensors; three ranks share one GPU."""
    return request.param


@pytest.fixture(scope="module")
def seen(tmp_path_factory, device):
    """seen(scenario, key): what every rank saw, in rank order."""
    return launched(tmp_path_factory.mktemp("through-host"), device)


def values_of(rank):
    return [(number + 100 * rank) % 256 for number in range(10)]


@pytest.mark.processes
class TestMessages:
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


@pytest.mark.processes
@pytest.mark.parametrize("device", [ON_GPU], indirect=True)
class TestStreams:
    def test_a_busy_stream_is_waited_for_before_and_has_the_values_after(self, seen):
        for rank, found in enumerate(seen("streams", "found")):
            left = (rank - 1) % WORLD_SIZE
            assert found == [[2 * (10.0 * n + left), WORLD_SIZE * (n + 1.0)] for n in range(5)]


@pytest.mark.processes
class TestPeers:
    def test_no_rank_reads_the_memory_of_another_gpu(self, seen):
        assert seen("peers", "access") == [False] * WORLD_SIZE
        assert seen("peers", "note") == ["transport: sends"] * WORLD_SIZE

    def test_peer_memory_and_captured_exchanges_are_refused_with_the_rule(self, seen):
        for peer_memory, captured in seen("peers", "said"):
            assert "cannot read each other's memory" in peer_memory
            assert "workers that share a GPU go through host memory" in captured


@pytest.mark.processes
class TestTraining:
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


class TestRoom:
    def test_places_have_shape_and_type_and_do_not_overlap(self):
        wanted = [torch.zeros(3).byte(), torch.zeros(2, 5), torch.zeros(0), torch.zeros(1).double()]
        places = HostRoom(pinned=False).places(wanted)
        assert [(one.shape, one.dtype) for one in places] == [(one.shape, one.dtype) for one in wanted]
        for number, place in enumerate(places):
            place.fill_(number + 1)
        assert [set(place.flatten().tolist()) for place in places] == [{1}, {2.0}, set(), {4.0}]

    def test_nothing_is_reserved_for_nothing(self):
        assert HostRoom(pinned=True).places([]) == []
