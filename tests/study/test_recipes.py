"""What a study says of the learning rate, the augmentation and batch normalisation becomes of its cells."""

from typing import Any

import pytest

from scaling.study.cell import Cell
from scaling.study.rank.convergence import plan_of
from tests.made import ABSENT, WORKLOAD, made_cells, problem_of

BODY = {
    **{"kind": "convergence", "workloads": [{**WORKLOAD, "global_batch": [64, 256]}], "world_sizes": [1]},
    **{"aggregators": ["all_reduce"], "device": "cpu", "epochs": 10, "learning_rate": 0.1},
}


def body(workload: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    whole = {**BODY, **changes}
    return {**whole, "workloads": [{**one, **(workload or {})} for one in whole["workloads"]]}


def cells(workload: dict[str, Any] | None = None, **changes: Any) -> list[Cell]:
    return made_cells(**body(workload, **changes))


def refused(workload: dict[str, Any] | None = None, **changes: Any) -> str:
    return problem_of(**body(workload, **changes))


class TestRates:
    def test_nothing_said_is_a_fixed_and_constant_rate_without_augmentation(self):
        for cell in cells():
            said = (cell.learning_rate_rule, cell.schedule, cell.augmentation)
            assert said == ("fixed", "constant", "none")
            assert plan_of(cell).learning_rate.at(77, 10, 10) == 0.1
            assert not plan_of(cell).augmented

    @pytest.mark.parametrize(
        ("rule", "expected"), [("linear", [0.05, 0.2]), ("sqrt", [0.0707107, 0.1414214])]
    )
    def test_peak_follows_the_global_batch(self, rule, expected):
        plans = [plan_of(cell) for cell in cells(learning_rate_rule=rule, base_batch=128)]
        assert [plan.learning_rate.peak for plan in plans] == pytest.approx(expected)

    def test_rule_follows_the_batch_of_all_workers_under_weak_scaling(self):
        weak = [{"model": "mlp", "dataset": "digits", "local_batch": 64}]
        rule = {"learning_rate_rule": "linear", "base_batch": 64}
        own = cells(workloads=weak, scaling="weak", world_sizes=[1, 4], **rule)
        assert [plan_of(cell).learning_rate.peak for cell in own] == pytest.approx([0.1, 0.4])

    def test_workload_has_its_own_schedule_and_none_of_its_parts_milestones(self):
        part = {"schedule": "step", "milestones": [3, 6], "gamma": 0.5}
        assert [cell.milestones for cell in cells(**part)] == [(3, 6), (3, 6)]
        for cell in cells({"schedule": "cosine"}, **part):
            assert (cell.schedule, cell.milestones, cell.gamma) == ("cosine", None, None)

    def test_gamma_is_a_tenth_unless_it_is_said(self):
        assert {cell.gamma for cell in cells(schedule="step", milestones=[5])} == {0.1}


class TestRefusals:
    @pytest.mark.parametrize(("keys", "said"), [
        ({"learning_rate_rule": "linear"}, "learning_rate_rule: linear needs base_batch"),
        ({"base_batch": 64}, "base_batch belongs to learning_rate_rule: linear or sqrt"),
        ({"schedule": "step"}, "schedule: step needs milestones"),
        ({"schedule": "step", "milestones": [6, 3]}, "must ascend"),
        ({"schedule": "cosine", "milestones": [3]}, "belongs to schedule: step"),
        ({"schedule": "cosine", "gamma": 0.5}, "belongs to schedule: step"),
        ({"warmup_epochs": 10}, "warmup_epochs 10 must be less"),
    ])  # fmt: skip
    def test_keys_that_contradict_each_other(self, keys, said):
        assert said in refused(**keys)

    def test_texts_and_vectors_are_not_augmented(self):
        vectors = [{"model": "fcn-s", "dataset": "synthetic", "global_batch": 64}]
        assert "crops and mirrors images" in refused(workloads=vectors, augmentation="standard")

    @pytest.mark.parametrize("key", [{"schedule": "warm"}, {"augmentation": "more"}, {"batch_norm": "both"}])
    def test_unknown_value_is_named_with_the_allowed_ones(self, key):
        message = refused(**key)
        assert next(iter(key)) in message
        assert next(iter(key.values())) in message

    @pytest.mark.parametrize("key", [{"schedule": "cosine"}, {"base_batch": 64}, {"epochs": 3}])
    def test_timed_parts_have_no_recipe(self, key):
        (name,) = key
        timed = {"kind": "iteration", "epochs": ABSENT}
        assert f"'{name}' belongs to kind: convergence" in refused(**{**timed, **key})
        assert f"workloads.0.{name}' belongs to kind: convergence" in refused(key, **timed)


class TestIdentity:
    def test_what_was_the_rule_before_there_were_others_changes_no_cell(self):
        said = {"learning_rate_rule": "fixed", "schedule": "constant", "warmup_epochs": 0,
                "augmentation": "none", "batch_norm": "replica"}  # fmt: skip
        assert [cell.id for cell in cells(**said)] == [cell.id for cell in cells()]

    @pytest.mark.parametrize("key", [
        {"learning_rate_rule": "linear", "base_batch": 32},
        {"warmup_epochs": 1}, {"schedule": "cosine"}, {"schedule": "step", "milestones": [2]},
        {"augmentation": "standard"}, {"batch_norm": "sync"},
    ])  # fmt: skip
    def test_recipe_is_part_of_the_identity(self, key):
        assert not {cell.id for cell in cells(**key)} & {cell.id for cell in cells()}

    def test_keeping_checkpoints_is_not(self):
        kept = cells(keep_checkpoints=True)
        assert all(cell.keep_checkpoints for cell in kept)
        assert [cell.id for cell in kept] == [cell.id for cell in cells()]

    def test_batch_norm_is_an_axis(self):
        own = cells(batch_norm=["replica", "sync"])
        assert [cell.batch_norm for cell in own] == ["replica", "sync"] * 2
