"""Cells that are timed: their axes, the A/A pair that tells the noise, and how long they last."""

import re
from typing import Any

import pytest

from scaling.study.cell import AvailableMachine, Cell
from scaling.study.kinds.iteration import IterationPart
from tests.made import CPU, GPUS, WORKLOAD, made_study, problem_of, resolved_study

BASE = {"aggregators": ["none", "ring", "tree"]}


def cells(machine: AvailableMachine = CPU, **changes: Any) -> list[Cell]:
    return resolved_study(machine, **{**BASE, **changes}).trained


def replicates(machine: AvailableMachine = CPU, **changes: Any) -> list[Cell]:
    return [cell for cell in cells(machine, **changes) if cell.aa_replicate]


class TestReplicates:
    def test_first_aggregator_that_exchanges_has_one_at_the_largest_world_size(self):
        (replicate,) = replicates()
        assert (replicate.aggregator, replicate.world_size, replicate.aa_replicate) == ("ring", 2, 1)
        first = next(cell for cell in cells() if (cell.aggregator, cell.world_size) == ("ring", 2))
        assert {**first.to_dict(), "aa_replicate": 1} == replicate.to_dict()
        assert first.id != replicate.id
        assert replicate.describe() == f"{first.describe()}, A/A pair"

    @pytest.mark.parametrize(("machine", "changes", "expected"), [
        (CPU, {"aggregators": ["none"]}, [("none", None)]),
        # Every peer access has its own, other axes share one.
        (GPUS, {"peer_access": [True, False]}, [("ring", True), ("ring", False)]),
        (CPU, {"seed": [0, 1], "workloads": [{**WORKLOAD, "global_batch": [32, 64]}]}, [("ring", None)]),
        (CPU, {"step": "overlapped", "bucket_mb": [1, 25]}, [("ring", None)]),
        # As usual where more would make the study far longer.
        (CPU, {"aggregators": ["ring", "tree"], "world_sizes": [2, 4], "repeats": 3}, [("ring", None)]),
        (CPU, {"noise_pair": False}, []),
        (CPU, {"kind": "convergence", "aggregators": ["ring"]}, []),
    ])  # fmt: skip
    def test_there_are_as_many_as_a_study_has_of_what_noise_depends_on(self, machine, changes, expected):
        found = replicates(machine, **changes)
        assert [(cell.aggregator, cell.peer_access) for cell in found] == expected

    def test_every_workload_and_step_has_its_own(self):
        workloads = [WORKLOAD, {**WORKLOAD, "model": {"name": "mlp", "hidden": [8]}}]
        found = replicates(workloads=workloads, step=["eager", "overlapped"])
        assert {(cell.model_label, cell.step) for cell in found} == {
            (model, step) for model in ("mlp", "mlp(hidden=[8])") for step in ("eager", "overlapped")
        }
        assert len(found) == 4

    def test_from_three_launches_on_there_are_four_of_other_aggregators_and_world_sizes(self):
        many = {"aggregators": ["none", "ring", "tree", "all_reduce"], "world_sizes": [1, 2, 4], "repeats": 3}
        found = replicates(**many)
        assert len(found) == 4
        assert {cell.aggregator for cell in found} == {"ring", "tree", "all_reduce"}
        assert {cell.world_size for cell in found} == {1, 2, 4}
        assert len(replicates(**{**many, "repeats": 2})) == 1
        assert replicates(**many, noise_pair=False) == []
        assert set(resolved_study(**many).repeats.values()) == {3}


class TestBuckets:
    @pytest.mark.parametrize(("changes", "expected"), [
        ({"bucket_mb": [1, 4.5], "aggregators": ["all_reduce", "ring"]},
         [(name, size) for name in ("all_reduce", "ring") for size in (1.0, 4.5)]),
        ({"bucket_mb": [1, 4], "aggregators": ["none"]}, [("none", None)]),
        # Control arms of DDP have those of its default.
        ({"aggregators": ["no_op", {"name": "no_op", "path": "hook"}]},
         [("no_op", 25.0), ("no_op(path=hook)", 25.0)]),
    ])  # fmt: skip
    def test_each_size_makes_a_cell_where_there_are_buckets(self, changes, expected):
        found = cells(step="overlapped", world_sizes=2, noise_pair=False, **changes)
        assert [(cell.aggregator_label, cell.bucket_mb) for cell in found] == expected

    def test_size_is_part_of_identity_and_description(self):
        one, other = cells(step="overlapped", bucket_mb=[1, 4], aggregators=["ring"], world_sizes=1)[:2]
        assert one.id != other.id
        assert one.describe().endswith("on cpu, overlapped, buckets of 1 MiB")


class TestExtent:
    def test_cells_have_the_defaults_or_what_the_study_says(self):
        (part,) = made_study().parts
        assert isinstance(part, IterationPart)
        assert (part.iterations, part.precision_goal, part.max_seconds) == (1000, 0.01, 20.0)
        assert (part.profiled_iterations, part.noise_pair, part.input_placement) == (20, True, ["device"])
        said = {"iterations": 7, "precision_goal": None, "max_seconds": None, "profiled_iterations": 5}
        for cell in cells(**said):
            assert {name: getattr(cell, name) for name in said} == said

    @pytest.mark.parametrize(("machine", "min_seconds"), [(CPU, 0.0), (GPUS, 0.5)], ids=["cpu", "gpus"])
    def test_gpus_are_measured_half_a_second_at_least(self, machine, min_seconds):
        assert {cell.min_seconds for cell in cells(machine)} == {min_seconds}
        assert {cell.min_seconds for cell in cells(machine, min_seconds=2)} == {2.0}

    def test_loader_has_two_workers_and_other_placements_have_none(self):
        found = cells(input_placement=["device", "loader"], world_sizes=1, noise_pair=False)
        expected = {("device", None), ("loader", 2)}
        assert {(cell.input_placement, cell.loader_workers) for cell in found} == expected
        assert cells(input_placement="loader")[0].describe().endswith("eager, input loader")

    def test_convergence_has_none_of_it(self):
        for cell in cells(kind="convergence", aggregators=["ring"]):
            assert (cell.warmup, cell.iterations, cell.precision_goal, cell.min_seconds) == (None,) * 4
            assert (cell.profiled_iterations, cell.loader_workers) == (None, None)
            assert cell.input_placement == "device"

    @pytest.mark.parametrize(("changes", "said"), [
        *(({"precision_goal": value}, f"precision_goal is {value}") for value in (0, 1, -0.1, True)),
        *(({"step": "overlapped", "bucket_mb": value},
           r"bucket_mb\.\d is (0|-1): input should be greater than 0") for value in (0, -1, [1, 0])),
    ])  # fmt: skip
    def test_goal_is_a_part_of_the_median_and_buckets_have_a_size(self, changes, said):
        assert re.search(said, problem_of(**changes))


def test_old_name_of_profiled_iterations_works_with_a_warning():
    with pytest.warns(FutureWarning, match="profiled_iterations"):
        (part,) = made_study(split_iterations=7).parts
    assert part.profiled_iterations == 7
