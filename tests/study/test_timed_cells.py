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

    def test_all_but_identity_and_description_is_the_first_ones(self):
        (replicate,) = replicates()
        first = next(cell for cell in cells() if (cell.aggregator, cell.world_size) == ("ring", 2))
        assert {**first.to_dict(), "aa_replicate": 1} == replicate.to_dict()
        assert first.id != replicate.id
        assert replicate.describe() == f"{first.describe()}, A/A pair"

    def test_study_of_control_arms_has_one_too(self):
        assert [cell.aggregator for cell in replicates(aggregators=["none"])] == ["none"]

    def test_every_workload_and_step_has_its_own(self):
        workloads = [WORKLOAD, {**WORKLOAD, "model": {"name": "mlp", "hidden": [8]}}]
        found = replicates(workloads=workloads, step=["eager", "overlapped"])
        assert {(cell.model_label, cell.step) for cell in found} == {
            (model, step) for model in ("mlp", "mlp(hidden=[8])") for step in ("eager", "overlapped")
        }
        assert len(found) == 4

    def test_every_peer_access_has_its_own(self):
        found = replicates(GPUS, peer_access=[True, False])
        assert [cell.peer_access for cell in found] == [True, False]

    def test_other_axes_share_one(self):
        assert len(replicates(seed=[0, 1], workloads=[{**WORKLOAD, "global_batch": [32, 64]}])) == 1
        assert len(replicates(step="overlapped", bucket_mb=[1, 25])) == 1

    def test_it_is_run_as_often_as_the_part_asks(self):
        assert set(resolved_study(repeats=3).repeats.values()) == {3}

    def test_from_three_launches_on_there_are_four_of_other_aggregators_and_world_sizes(self):
        many = {"aggregators": ["none", "ring", "tree", "all_reduce"], "world_sizes": [1, 2, 4], "repeats": 3}
        found = replicates(**many)
        assert len(found) == 4
        assert {cell.aggregator for cell in found} == {"ring", "tree", "all_reduce"}
        assert {cell.world_size for cell in found} == {1, 2, 4}
        assert len(replicates(**{**many, "repeats": 2})) == 1
        assert replicates(**many, noise_pair=False) == []

    def test_a_study_that_they_would_make_far_longer_has_the_usual_ones(self):
        assert len(replicates(aggregators=["ring", "tree"], world_sizes=[2, 4], repeats=3)) == 1

    def test_study_may_do_without(self):
        assert replicates(noise_pair=False) == []
        assert len(cells(noise_pair=False)) == 3 * 2

    def test_convergence_has_none(self):
        assert replicates(kind="convergence", aggregators=["ring"]) == []


class TestBuckets:
    def overlapped(self, **changes: Any) -> list[tuple[str, float | None]]:
        found = cells(step="overlapped", world_sizes=2, noise_pair=False, **changes)
        return [(cell.aggregator_label, cell.bucket_mb) for cell in found]

    def test_each_size_makes_a_cell_where_there_are_buckets(self):
        found = self.overlapped(bucket_mb=[1, 4.5], aggregators=["all_reduce", "ring"])
        assert found == [(name, size) for name in ("all_reduce", "ring") for size in (1.0, 4.5)]

    def test_step_without_ddp_has_none_and_is_one_cell(self):
        assert self.overlapped(bucket_mb=[1, 4], aggregators=["none"]) == [("none", None)]

    def test_control_arms_of_ddp_have_them(self):
        arms = ["no_op", {"name": "no_op", "path": "hook"}]
        assert self.overlapped(aggregators=arms) == [("no_op", 25.0), ("no_op(path=hook)", 25.0)]

    def test_size_is_part_of_identity_and_description(self):
        one, other = cells(step="overlapped", bucket_mb=[1, 4], aggregators=["ring"], world_sizes=1)[:2]
        assert one.id != other.id
        assert one.describe().endswith("on cpu, overlapped, buckets of 1 MiB")


class TestExtent:
    def test_defaults(self):
        (part,) = made_study().parts
        assert isinstance(part, IterationPart)
        assert (part.iterations, part.precision_goal, part.max_seconds) == (1000, 0.01, 20.0)
        assert (part.profiled_iterations, part.noise_pair) == (20, True)
        assert part.input_placement == ["device"]

    @pytest.mark.parametrize(("machine", "min_seconds"), [(CPU, 0.0), (GPUS, 0.5)], ids=["cpu", "gpus"])
    def test_gpus_are_measured_half_a_second_at_least(self, machine, min_seconds):
        assert {cell.min_seconds for cell in cells(machine)} == {min_seconds}
        assert {cell.min_seconds for cell in cells(machine, min_seconds=2)} == {2.0}

    def test_cells_have_what_the_study_says(self):
        said = {"iterations": 7, "precision_goal": None, "max_seconds": None, "profiled_iterations": 5}
        for cell in cells(**said):
            assert {name: getattr(cell, name) for name in said} == said

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

    @pytest.mark.parametrize("value", [0, 1, -0.1, True])
    def test_goal_is_a_part_of_the_median(self, value):
        assert f"precision_goal is {value}" in problem_of(precision_goal=value)

    @pytest.mark.parametrize("value", [0, -1, [1, 0]])
    def test_buckets_have_a_size(self, value):
        said = problem_of(step="overlapped", bucket_mb=value)
        assert re.search(r"bucket_mb\.\d is (0|-1): input should be greater than 0", said)


def test_old_name_of_profiled_iterations_works_with_a_warning():
    with pytest.warns(FutureWarning, match="profiled_iterations"):
        (part,) = made_study(split_iterations=7).parts
    assert part.profiled_iterations == 7
