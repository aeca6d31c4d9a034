"""Workers that share GPUs: which world sizes there are, what is refused, and what a launch is told."""

import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.study.cell import AvailableMachine, Cell, ResolvedStudy
from scaling.study.kinds.base import ModelSize
from scaling.study.launches import Launch, Settings, estimate_seconds
from scaling.study.places import described, gpu_of, num_gpus_used, sharing_note
from scaling.study.rank.launch import _device
from tests.made import ABSENT, problem_of, resolved_study

BASE = {"kind": "convergence", "world_sizes": [1, 2, 4]}
TWO_GPUS = AvailableMachine(num_gpus=2, num_cores=32)


def resolved(machine: AvailableMachine = TWO_GPUS, **changes: Any) -> ResolvedStudy:
    return resolved_study(machine, **{**BASE, **changes})


def cells(machine: AvailableMachine = TWO_GPUS, **changes: Any) -> list[Cell]:
    return resolved(machine, **changes).trained


def shares(machine: AvailableMachine = TWO_GPUS, **changes: Any) -> dict[int, int | None]:
    return {cell.world_size: cell.workers_per_gpu for cell in cells(machine, **changes)}


def problem(machine: AvailableMachine = TWO_GPUS, **changes: Any) -> str:
    return problem_of(machine, **{**BASE, **changes})


class TestWorldSizes:
    def test_only_world_sizes_beyond_the_gpus_share_them_and_as_few_as_possible(self):
        assert shares(workers_per_gpu=4) == {1: None, 2: None, 4: 2}
        notes = resolved(workers_per_gpu=2).notes
        assert any("world size 4 on 2 GPUs: up to 2 workers share one" in note for note in notes)
        assert not any("share" in note for note in resolved(AvailableMachine(4, 8), workers_per_gpu=2).notes)
        assert shares(AvailableMachine(1, 8), workers_per_gpu=4) == {1: None, 2: 2, 4: 4}
        assert shares(AvailableMachine(3, 8), workers_per_gpu=4) == {1: None, 2: None, 4: 2}
        assert shares(AvailableMachine(4, 8), workers_per_gpu=4) == {1: None, 2: None, 4: None}

    def test_without_the_key_they_are_missing_and_it_is_named(self):
        said = problem()
        assert "world size 4 needs 4 GPUs and 2 can be used" in said
        assert "workers_per_gpu=2" in said

    def test_too_many_even_so_are_missing_or_dropped(self):
        said = problem(workers_per_gpu=2, world_sizes=[4, 8])
        assert "world size 8 needs 4 GPUs for 2 workers each at most and 2 can be used" in said
        assert "workers_per_gpu=4" in said
        study = resolved(workers_per_gpu=2, world_sizes=[4, 8], missing_devices="drop")
        assert {cell.world_size for cell in study.trained} == {4}
        assert any("world sizes [8] dropped: 2 GPUs here for 2 workers each" in note for note in study.notes)

    def test_sharing_is_on_one_node(self):
        machine = AvailableMachine(2, 32, num_nodes=2)
        assert shares(machine, workers_per_gpu=2) == {1: None, 2: None, 4: None}
        said = problem(machine, workers_per_gpu=2, world_sizes=[8])
        assert "world size 8 needs 8 GPUs and 4 can be used" in said

    def test_without_a_gpu_there_is_nothing_to_share(self):
        assert "use device=cpu" in problem(AvailableMachine(0, 8), workers_per_gpu=4, device="cuda")
        study = resolved(AvailableMachine(0, 8), workers_per_gpu=4)
        assert {cell.workers_per_gpu for cell in study.trained} == {None}
        assert any("workers_per_gpu changes nothing on the CPU" in note for note in study.notes)


class TestIdentity:
    def test_cells_are_the_same_where_nothing_is_shared(self):
        for changes in ({"device": "cpu"}, {"world_sizes": [1, 2]}):
            plain, keyed = resolved(**changes), resolved(workers_per_gpu=4, **changes)
            assert list(plain.cells) == list(keyed.cells)
        (cell,) = cells(AvailableMachine(4, 8), world_sizes=[4])
        assert cell.workers_per_gpu is None
        assert replace(cell, workers_per_gpu=2).id != cell.id

    def test_peer_access_is_no_axis_of_workers_that_share(self):
        both = cells(workers_per_gpu=2, peer_access=[True, False])
        assert [c.world_size for c in both].count(4) == 1
        assert [c.world_size for c in both].count(2) == 2

    def test_workers_share_their_gpus_cores_too(self):
        assert {cell.threads for cell in cells(world_sizes=[2])} == {12}
        assert {cell.threads for cell in cells(workers_per_gpu=2)} == {6}
        assert {cell.threads for cell in cells(workers_per_gpu=2, threads=5)} == {5}
        assert [c.describe() for c in cells(workers_per_gpu=2)][-1].endswith(", 2 workers a GPU")


class TestRules:
    @pytest.mark.parametrize("kind", ["iteration", "transfer"])
    def test_times_of_sharing_workers_are_refused_with_the_reason(self, kind):
        of_model = ("workloads", "aggregators", "scaling") if kind == "transfer" else ()
        said = problem(kind=kind, world_sizes=[4], workers_per_gpu=2, **dict.fromkeys(of_model, ABSENT))
        assert re.search(r"kind: convergence.*times are not those of as many GPUs", said)

    def test_a_study_wide_key_is_for_the_trainings_alone(self):
        parts = [{"kind": "iteration", "world_sizes": [2]}, {"kind": "convergence", "world_sizes": [4]}]
        found = resolved_study(TWO_GPUS, world_sizes=ABSENT, workers_per_gpu=2, parts=parts).trained
        assert {(c.kind, c.workers_per_gpu) for c in found} == {("iteration", None), ("convergence", 2)}

    def test_captured_steps_need_a_gpu_a_worker_and_overlapped_ones_may_share(self):
        assert "step: captured needs a GPU a worker" in problem(workers_per_gpu=2, step="captured")
        assert cells(workers_per_gpu=2, step="captured", world_sizes=[1, 2])
        assert shares(workers_per_gpu=2, step="overlapped") == {1: None, 2: None, 4: 2}

    @pytest.mark.parametrize(("aggregator", "why"), [
        ({"name": "ring", "transport": "peer_memory"}, "it reads other GPUs' memory"),
        ({"name": "schedule", "transport": "host_memory"}, "its kernels wait for each other"),
        ({"name": "tree", "captured": True}, "a CUDA graph holds no message through host memory"),
        ("horovod", "refuses two ranks on one GPU"),
    ])  # fmt: skip
    def test_aggregators_that_need_one_are_refused_with_the_reason(self, aggregator, why):
        assert why in problem(workers_per_gpu=2, aggregators=[aggregator])
        assert cells(workers_per_gpu=2, aggregators=[aggregator], world_sizes=[2])

    @pytest.mark.parametrize("value", [0, -1, True, 1.5, "auto"])
    def test_it_is_a_number_of_workers(self, value):
        assert "workers_per_gpu" in problem(workers_per_gpu=value)


class TestLaunch:
    def test_settings_and_record_say_how_many_share(self):
        sharing = {cell.world_size: Settings.of(cell).workers_per_gpu for cell in cells(workers_per_gpu=2)}
        assert sharing == {1: None, 2: None, 4: 2}
        (cell,) = cells(workers_per_gpu=2, world_sizes=[4])
        assert asdict(Settings.of(cell))["workers_per_gpu"] == 2
        places = [[gpu_of(rank, sharing) for rank in range(4)] for sharing in (2, 4, None)]
        assert places == [[0, 0, 1, 1], [0] * 4, [0, 1, 2, 3]], "neighbours share a GPU"
        assert [num_gpus_used(size, 2) for size in (3, 4, 5)] == [2, 2, 3]
        assert described(cell.to_dict()) == "4 workers on 2 GPUs"
        assert "seconds and joules are not those of 4 GPUs" in sharing_note(cell.to_dict())

    @pytest.mark.parametrize(("sharing", "visible", "gpus"), [(2, 2, [0, 0, 1, 1]), (4, 1, [0] * 4)])
    def test_a_rank_gets_its_gpu_and_where_there_are_too_few_the_key_is_named(
        self, monkeypatch, sharing, visible, gpus
    ):
        taken = []
        monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
        monkeypatch.setattr("torch.cuda.set_device", taken.append)
        launch = Launch(Settings(4, "cuda", 1, True, workers_per_gpu=sharing), 0, [])
        devices = [_device(launch, RankInfo(rank, rank, 4, 4, "test")) for rank in range(4)]
        assert taken == [device.index for device in devices] == gpus
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        for of_gpu, needs in ((None, "its own GPU"), (2, "GPU 1, with 2 workers a GPU")):
            launch = Launch(Settings(4, "cuda", 1, True, workers_per_gpu=of_gpu), 0, [])
            with pytest.raises(LaunchError, match=rf"{needs}; 1 are visible .*workers_per_gpu"):
                _device(launch, RankInfo(3, 3, 4, 4, "test"))

    def test_a_plan_knows_that_sharing_takes_longer(self):
        (shared,) = cells(workers_per_gpu=2, world_sizes=[4])
        apart = replace(shared, workers_per_gpu=None)

        def seconds(cell):
            return estimate_seconds(Launch(Settings.of(cell), 0, [cell]), {cell.id: ModelSize(10**7)}, 8)

        assert seconds(apart) < seconds(shared)
