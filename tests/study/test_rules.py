"""Combinations of a study that cannot be: each an error that names the rule and a way out."""

import pytest

from scaling.study.cell import AvailableMachine
from tests.made import CPU, GPUS, WORKLOAD
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
