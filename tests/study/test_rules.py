"""Combinations of a study that cannot be, each an error that names the rule; what training recipes become."""

from typing import Any

import pytest

from scaling.study.cell import AvailableMachine, Cell
from scaling.study.rank.convergence import plan_of
from tests.made import ABSENT, CPU, GPUS, WORKLOAD
from tests.made import made_cells as cells
from tests.made import problem_of as problem

SPREAD = "exchanges nothing: replicas drift apart"
BUCKETS = "by-hand: bucket_mb is the size of the buckets that are exchanged under the backward pass"
LOADER = "by-hand: loader_workers belongs to input_placement: loader; leave it out"


def of_workload(**changes):
    return {"workloads": [{**WORKLOAD, **changes}]}


REFUSED = [
    (CPU, {"world_sizes": [1, 2, 3]}, ["by-hand: global_batch 64 does not divide by world size 3",
                                       "use a multiple of 3, or leave that size out"]),
    (CPU, {"world_sizes": [1, 2, 1]}, ["by-hand: world_sizes [1, 2, 1] holds a size twice"]),
    (CPU, {"parts": [{}, {"world_sizes": [3]}]},
     ["by-hand: parts.1: global_batch 64 does not divide by world size 3"]),
    *((CPU, {"world_sizes": [2], "scaling": scaling, "workloads": [
        {"model": "mlp", "dataset": "digits", key: batch}]},
       ["a global batch of 1440 is larger than data set 'digits', which has 1437 training samples"])
      for scaling, key, batch in (("strong", "global_batch", 1440), ("weak", "local_batch", 720))),
    (CPU, {"kind": "convergence", "aggregators": ["ring", "none"]},
     [f"aggregator 'none' {SPREAD}", "leave it out of this part"]),
    (CPU, {"kind": "convergence", "step": "overlapped", "aggregators": ["no_op"]},
     [f"aggregator 'no_op' {SPREAD}"]),
    (CPU, {"nesterov": True, "momentum": 0}, ["nesterov: true needs a momentum above 0"]),
    (CPU, of_workload(nesterov=True, momentum=0), ["nesterov: true needs a momentum above 0"]),
    # What is unknown is named, with what there is.
    (CPU, {"aggregators": ["rngi"]}, ["unknown aggregator 'rngi' (did you mean 'ring'?); known: "]),
    (CPU, {"aggregators": [{"name": "one_bit", "treshold": "mean"}]},
     ["aggregator 'one_bit': unknown parameter 'treshold'; allowed: threshold"]),
    (CPU, {"aggregators": [{"name": "one_bit", "threshold": "median"}]},
     ["aggregator 'one_bit': parameter threshold: Input should be 'zero' or 'mean', got 'median'"]),
    (CPU, {"aggregators": [{"name": "ring", "chunks": 4}]},
     ["aggregator 'ring': unknown parameter 'chunks'; allowed: transport, captured, dir"]),
    (CPU, of_workload(model="mpl"), ["unknown model 'mpl' (did you mean 'mlp'?)"]),
    (CPU, of_workload(model={"name": "mlp", "hiden": [1]}), ["unknown parameter 'hiden'; allowed: hidden"]),
    (CPU, of_workload(dataset="imagenet"), ["unknown data set 'imagenet'; known: "]),
    (CPU, of_workload(model="fcn-r"),
     ["'fcn-r' and data set 'digits' do not fit: ", "(1, 28, 28)", "(1, 8, 8)"]),
    # Captured and overlapped steps.
    (CPU, {"step": "captured"}, ["step: captured is a CUDA graph and needs GPUs; on cpu use"]),
    *((GPUS, {"step": ["eager", "captured"], "aggregators": ["none", name]},
       [f"aggregator {name!r} cannot be captured in a CUDA graph"])
      for name in ("host_serial", "host_parallel", "caffe", "mxnet_device", "mxnet_local")),
    *((CPU, {"step": ["overlapped", "eager"], "aggregators": ["all_reduce", arm]},
       ["is for step: overlapped alone; for step: eager use none, or a part of its own"])
      for arm in ("no_op", {"name": "no_op", "path": "hook"})),
    (GPUS, {"step": "captured", "aggregators": ["no_op"]},
     ["aggregator 'no_op' is for step: overlapped alone; for step: captured use none"]),
    *((CPU, {"step": ["eager", "overlapped"], "aggregators": ["none", name]},
       [f"by-hand: aggregator {name!r} cannot overlap with the backward pass",
        "use step: eager, or a part of its own"])
      for name in ("host_serial", "host_parallel", "caffe", "mxnet_tree")),
    *((CPU, {"kind": kind, "bucket_mb": 25}, [BUCKETS, "leave it out"])
      for kind in ("iteration", "convergence")),
    # Input.
    *((CPU, {"input_placement": ["device", placement]},
       [f"by-hand: input_placement: {placement} is a copy from host memory to a GPU",
        "on cpu use device or loader"]) for placement in ("pinned", "pageable")),
    (CPU, {"loader_workers": 2}, [LOADER]), (GPUS, {"loader_workers": 2}, [LOADER]),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "changes", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_is_refused_with_the_rule_and_a_way_out(machine, changes, said):
    message = problem(machine, **changes)
    assert [text for text in said if text not in message] == []


@pytest.mark.parametrize("where", ["part", "workload"])
def test_momentum_that_an_aggregator_applies_itself_is_not_applied_twice(where):
    corrected = {"name": "top_k", "momentum_correction": 0.5}
    for aggregator, own in (("one_bit_momentum", 0.9), (corrected, 0.5)):
        settings = {"aggregators": [aggregator], **(of_workload(momentum=0.8) if where == "workload" else {})}
        message = problem(**settings, momentum=0.7 if where == "part" else 0.0)
        assert f"applies a momentum of {own} itself, and the optimizer's is 0." in message
        assert "set momentum: 0" in message
        assert cells(aggregators=[aggregator], momentum=0.0)


def test_control_arm_may_converge_alone_and_be_timed():
    assert len(cells(kind="convergence", aggregators=["none"], world_sizes=1)) == 1
    assert len(cells(kind="iteration", aggregators=["none"])) == 2


TWO_GPUS = AvailableMachine(num_gpus=2, num_cores=8)


@pytest.mark.parametrize(
    ("machine", "changes", "key", "expected"),
    [
        (GPUS, {"step": ["eager", "captured"], "world_sizes": [2]}, "bucket_mb",
         [("eager", None), ("captured", None)]),
        (TWO_GPUS, {"step": "captured", "world_sizes": 2, "bucket_mb": [4, 16]}, "bucket_mb",
         [("captured", 4.0), ("captured", 16.0)]),
        (CPU, {"step": ["eager", "overlapped"], "bucket_mb": [1, 4], "world_sizes": 2}, "bucket_mb",
         [("eager", None), ("overlapped", 1.0), ("overlapped", 4.0)]),
        (CPU, {"input_placement": ["device", "loader"], "loader_workers": 3, "world_sizes": 1},
         "loader_workers", [("device", None), ("loader", 3)]),
        *((GPUS, {"input_placement": ["device", placement], "world_sizes": 1}, "loader_workers",
           [("device", None), (placement, None)]) for placement in ("pinned", "pageable")),
    ],
)  # fmt: skip
def test_steps_and_placements_are_axes_whose_settings_are_their_own(machine, changes, key, expected):
    axis = "step" if "step" in changes else "input_placement"
    assert [(getattr(cell, axis), getattr(cell, key)) for cell in cells(machine, **changes)] == expected


@pytest.mark.parametrize("aggregator", ["mxnet_device", "mxnet_local"])
def test_tensor_by_tensor_owners_and_the_host_overlap_too_and_know_no_buckets(aggregator):
    taken = cells(step="overlapped", aggregators=[aggregator, "ring"], bucket_mb=[1, 4])
    sizes = [(cell.world_size, cell.bucket_mb) for cell in taken if cell.aggregator == aggregator]
    assert sizes == [(1, None), (2, None)]


@pytest.mark.parametrize("aggregator", ["none", "no_op", "all_reduce", "ring", "tree", "one_bit"])
def test_other_aggregators_overlap(aggregator):
    assert {cell.step for cell in cells(step="overlapped", aggregators=[aggregator])} == {"overlapped"}


BODY = {
    **{"kind": "convergence", "workloads": [{**WORKLOAD, "global_batch": [64, 256]}], "world_sizes": [1]},
    **{"aggregators": ["all_reduce"], "device": "cpu", "epochs": 10, "learning_rate": 0.1},
}


def body(workload: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    whole = {**BODY, **changes}
    return {**whole, "workloads": [{**one, **(workload or {})} for one in whole["workloads"]]}


def trained(workload: dict[str, Any] | None = None, **changes: Any) -> list[Cell]:
    return cells(**body(workload, **changes))


def refused_training(workload: dict[str, Any] | None = None, **changes: Any) -> str:
    return problem(**body(workload, **changes))


class TestRates:
    def test_nothing_said_is_a_fixed_and_constant_rate_without_augmentation(self):
        for cell in trained():
            said = (cell.learning_rate_rule, cell.schedule, cell.augmentation)
            assert said == ("fixed", "constant", "none")
            assert plan_of(cell).learning_rate.at(77, 10, 10) == 0.1
            assert not plan_of(cell).augmented

    @pytest.mark.parametrize(
        ("rule", "expected"), [("linear", [0.05, 0.2]), ("sqrt", [0.0707107, 0.1414214])]
    )
    def test_peak_follows_the_global_batch(self, rule, expected):
        plans = [plan_of(cell) for cell in trained(learning_rate_rule=rule, base_batch=128)]
        assert [plan.learning_rate.peak for plan in plans] == pytest.approx(expected)

    def test_rule_follows_the_batch_of_all_workers_under_weak_scaling(self):
        weak = [{"model": "mlp", "dataset": "digits", "local_batch": 64}]
        rule = {"learning_rate_rule": "linear", "base_batch": 64}
        own = trained(workloads=weak, scaling="weak", world_sizes=[1, 4], **rule)
        assert [plan_of(cell).learning_rate.peak for cell in own] == pytest.approx([0.1, 0.4])

    def test_workload_has_its_own_schedule_and_none_of_its_parts_milestones(self):
        part = {"schedule": "step", "milestones": [3, 6], "gamma": 0.5}
        assert [cell.milestones for cell in trained(**part)] == [(3, 6), (3, 6)]
        for cell in trained({"schedule": "cosine"}, **part):
            assert (cell.schedule, cell.milestones, cell.gamma) == ("cosine", None, None)
        assert {cell.gamma for cell in trained(schedule="step", milestones=[5])} == {0.1}


class TestRefusals:
    @pytest.mark.parametrize(("keys", "said"), [
        ({"learning_rate_rule": "linear"}, "learning_rate_rule: linear needs base_batch"),
        ({"base_batch": 64}, "base_batch belongs to learning_rate_rule: linear or sqrt"),
        ({"schedule": "step"}, "schedule: step needs milestones"),
        ({"schedule": "step", "milestones": [6, 3]}, "must ascend"),
        ({"schedule": "cosine", "milestones": [3]}, "belongs to schedule: step"),
        ({"schedule": "cosine", "gamma": 0.5}, "belongs to schedule: step"),
        ({"warmup_epochs": 10}, "warmup_epochs 10 must be less"),
        ({"workloads": [{**WORKLOAD, "model": "fcn-s", "dataset": "synthetic"}], "augmentation": "standard"},
         "crops and mirrors images"),
        ({"schedule": "warm"}, "schedule is 'warm'"), ({"augmentation": "more"}, "augmentation is 'more'"),
        ({"batch_norm": "both"}, "batch_norm.0 is 'both'"),
    ])  # fmt: skip
    def test_keys_that_contradict_each_other_and_values_that_are_not_allowed(self, keys, said):
        assert said in refused_training(**keys)

    @pytest.mark.parametrize("key", [{"schedule": "cosine"}, {"base_batch": 64}, {"epochs": 3}])
    def test_timed_parts_have_no_recipe(self, key):
        (name,) = key
        timed = {"kind": "iteration", "epochs": ABSENT}
        assert f"'{name}' belongs to kind: convergence" in refused_training(**{**timed, **key})
        assert f"workloads.0.{name}' belongs to kind: convergence" in refused_training(key, **timed)


class TestIdentity:
    def test_what_was_the_rule_before_there_were_others_changes_no_cell(self):
        said = {"learning_rate_rule": "fixed", "schedule": "constant", "warmup_epochs": 0,
                "augmentation": "none", "batch_norm": "replica"}  # fmt: skip
        assert [cell.id for cell in trained(**said)] == [cell.id for cell in trained()]

    @pytest.mark.parametrize("key", [
        {"learning_rate_rule": "linear", "base_batch": 32},
        {"warmup_epochs": 1}, {"schedule": "cosine"}, {"schedule": "step", "milestones": [2]},
        {"augmentation": "standard"}, {"batch_norm": "sync"},
    ])  # fmt: skip
    def test_recipe_is_part_of_the_identity(self, key):
        assert not {cell.id for cell in trained(**key)} & {cell.id for cell in trained()}

    def test_batch_norm_is_an_axis_and_keeping_checkpoints_changes_no_cell(self):
        own = trained(batch_norm=["replica", "sync"])
        assert [cell.batch_norm for cell in own] == ["replica", "sync"] * 2
        kept = trained(keep_checkpoints=True)
        assert all(cell.keep_checkpoints for cell in kept)
        assert [cell.id for cell in kept] == [cell.id for cell in trained()]
