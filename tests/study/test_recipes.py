"""What a study says of the learning rate, the augmentation and batch normalisation becomes of its cells."""

from typing import Any

import pytest

from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.rank.convergence import plan_of
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study

BODY = {
    "name": "recipe",
    "kind": "convergence",
    "workloads": [{"model": "mlp", "dataset": "digits", "global_batch": [64, 256]}],
    "aggregators": ["all_reduce"],
    "world_sizes": [1],
    "scaling": "strong",
    "device": "cpu",
    "epochs": 10,
    "learning_rate": 0.1,
}


def cells(workload: dict[str, Any] | None = None, **changes: Any) -> list[Cell]:
    body = {**BODY, **changes}
    body["workloads"] = [{**one, **(workload or {})} for one in body["workloads"]]
    return resolve(parse_study(body, "test"), AvailableMachine(0, 2)).trained


def refused(workload: dict[str, Any] | None = None, **changes: Any) -> str:
    with pytest.raises(StudyError) as caught:
        cells(workload, **changes)
    return str(caught.value)


class TestRates:
    def test_nothing_said_is_a_fixed_and_constant_rate_without_augmentation(self):
        for cell in cells():
            assert (cell.learning_rate_rule, cell.schedule, cell.augmentation) == (
                "fixed",
                "constant",
                "none",
            )
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
        own = cells(
            workloads=weak, scaling="weak", world_sizes=[1, 4], learning_rate_rule="linear", base_batch=64
        )
        assert [plan_of(cell).learning_rate.peak for cell in own] == pytest.approx([0.1, 0.4])

    def test_workload_has_its_own_schedule_and_none_of_its_parts_milestones(self):
        part = {"schedule": "step", "milestones": [3, 6], "gamma": 0.5}
        assert [cell.milestones for cell in cells(**part)] == [(3, 6), (3, 6)]
        for cell in cells({"schedule": "cosine"}, **part):
            assert (cell.schedule, cell.milestones, cell.gamma) == ("cosine", None, None)

    def test_gamma_is_a_tenth_unless_it_is_said(self):
        assert {cell.gamma for cell in cells(schedule="step", milestones=[5])} == {0.1}


class TestRefusals:
    def test_scaled_rate_needs_the_batch_it_was_chosen_for(self):
        assert "learning_rate_rule: linear needs base_batch" in refused(learning_rate_rule="linear")

    def test_fixed_rate_has_no_base_batch(self):
        assert "base_batch belongs to learning_rate_rule: linear or sqrt" in refused(base_batch=64)

    def test_step_needs_milestones(self):
        assert "schedule: step needs milestones" in refused(schedule="step")

    def test_milestones_ascend(self):
        assert "must ascend" in refused(schedule="step", milestones=[6, 3])

    @pytest.mark.parametrize("key", [{"milestones": [3]}, {"gamma": 0.5}])
    def test_milestones_and_gamma_are_of_step_alone(self, key):
        assert "belongs to schedule: step" in refused(schedule="cosine", **key)

    def test_warm_up_is_shorter_than_the_training(self):
        assert "warmup_epochs 10 must be less" in refused(warmup_epochs=10)

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
        timed = {name: value for name, value in BODY.items() if name != "epochs"}
        with pytest.raises(StudyError, match=f"'{name}' belongs to kind: convergence"):
            parse_study({**timed, "kind": "iteration", **key}, "test")
        workload = [{**BODY["workloads"][0], **key}]
        with pytest.raises(StudyError, match=f"workloads.0.{name}' belongs to kind: convergence"):
            parse_study({**timed, "kind": "iteration", "workloads": workload}, "test")


class TestIdentity:
    def test_what_was_the_rule_before_there_were_others_changes_no_cell(self):
        said = {"learning_rate_rule": "fixed", "schedule": "constant", "warmup_epochs": 0,
                "augmentation": "none", "batch_norm": "replica"}  # fmt: skip
        assert [cell.id for cell in cells(**said)] == [cell.id for cell in cells()]

    @pytest.mark.parametrize(
        "key",
        [
            {"learning_rate_rule": "linear", "base_batch": 32},
            {"warmup_epochs": 1},
            {"schedule": "cosine"},
            {"schedule": "step", "milestones": [2]},
            {"augmentation": "standard"},
            {"batch_norm": "sync"},
        ],
    )
    def test_recipe_is_part_of_the_identity(self, key):
        assert not {cell.id for cell in cells(**key)} & {cell.id for cell in cells()}

    def test_keeping_checkpoints_is_not(self):
        kept = cells(keep_checkpoints=True)
        assert all(cell.keep_checkpoints for cell in kept)
        assert [cell.id for cell in kept] == [cell.id for cell in cells()]

    def test_batch_norm_is_an_axis(self):
        own = cells(batch_norm=["replica", "sync"])
        assert [cell.batch_norm for cell in own] == ["replica", "sync"] * 2
