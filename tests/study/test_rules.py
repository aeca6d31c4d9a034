"""Combinations of a study that cannot be: each an error that names the rule and a way out."""

import re

import pytest

from scaling.study.cell import AvailableMachine
from tests.made import CPU, GPUS, WORKLOAD
from tests.made import made_cells as cells
from tests.made import problem_of as problem


class TestWhatCannotBe:
    def test_batch_that_does_not_divide(self):
        message = problem(world_sizes=[1, 2, 3])
        assert "by-hand: global_batch 64 does not divide by world size 3" in message
        assert "use a multiple of 3, or leave that size out" in message

    def test_unknown_aggregator(self):
        assert "unknown aggregator 'rngi' (did you mean 'ring'?); known: " in problem(aggregators=["rngi"])

    def test_world_size_twice(self):
        assert "by-hand: world_sizes [1, 2, 1] holds a size twice" in problem(world_sizes=[1, 2, 1])

    def test_part_is_named_where_there_are_several(self):
        message = problem(parts=[{}, {"world_sizes": [3]}])
        assert "by-hand: parts.1: global_batch 64 does not divide by world size 3" in message

    def test_control_arm_is_never_a_convergence_result(self):
        message = problem(kind="convergence", aggregators=["ring", "none"])
        assert "aggregator 'none' exchanges nothing: replicas drift apart" in message
        assert "leave it out of this part" in message

    def test_control_arm_may_converge_alone_and_be_timed(self):
        assert len(cells(kind="convergence", aggregators=["none"], world_sizes=1)) == 1
        assert len(cells(kind="iteration", aggregators=["none"])) == 2

    @pytest.mark.parametrize("where", ["part", "workload"])
    def test_nesterov_without_momentum(self, where):
        settings = {"nesterov": True, "momentum": 0}
        changes = settings if where == "part" else {"workloads": [{**WORKLOAD, **settings}]}
        assert "nesterov: true needs a momentum above 0" in problem(**changes)

    @pytest.mark.parametrize("where", ["part", "workload"])
    def test_momentum_that_an_aggregator_applies_itself_is_not_applied_twice(self, where):
        corrected = {"name": "top_k", "momentum_correction": 0.5}
        for aggregator, own in (("one_bit_momentum", 0.9), (corrected, 0.5)):
            settings = {"aggregators": [aggregator]}
            if where == "workload":
                settings["workloads"] = [{**WORKLOAD, "momentum": 0.8}]
            message = problem(**settings, momentum=0.7 if where == "part" else 0.0)
            assert f"applies a momentum of {own} itself, and the optimizer's is 0." in message
            assert "set momentum: 0" in message
            assert cells(aggregators=[aggregator], momentum=0.0)

    @pytest.mark.parametrize(
        ("aggregator", "message"),
        [
            ({"name": "one_bit", "treshold": "mean"}, "unknown parameter 'treshold'; allowed: threshold"),
            ({"name": "one_bit", "threshold": "median"},
             "parameter threshold: Input should be 'zero' or 'mean', got 'median'"),
            ({"name": "ring", "chunks": 4}, "unknown parameter 'chunks'; allowed: transport, captured, dir"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )  # fmt: skip
    def test_unknown_parameter_of_an_aggregator_says_what_there_is(self, aggregator, message):
        assert f"aggregator '{aggregator['name']}': {message}" in problem(aggregators=[aggregator])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model": "mpl"}, r"unknown model 'mpl' \(did you mean 'mlp'\?\)"),
            ({"model": {"name": "mlp", "hiden": [1]}}, "unknown parameter 'hiden'; allowed: hidden"),
            ({"dataset": "imagenet"}, "unknown data set 'imagenet'; known: "),
            ({"model": "fcn-r"}, r"'fcn-r' and data set 'digits' do not fit: .*\(1, 28, 28\).*\(1, 8, 8\)"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_unknown_part_of_a_workload_says_what_there_is(self, changes, message):
        assert re.search(message, problem(workloads=[{**WORKLOAD, **changes}]))


class TestCaptured:
    def test_captured_step_needs_gpus(self):
        assert "step: captured is a CUDA graph and needs GPUs; on cpu use" in problem(step="captured")

    @pytest.mark.parametrize("aggregator", ["host_serial", "host_parallel", "caffe"])
    def test_captured_step_needs_an_aggregator_that_can_be_captured(self, aggregator):
        message = problem(GPUS, step=["eager", "captured"], aggregators=["none", aggregator])
        assert f"aggregator {aggregator!r} cannot be captured in a CUDA graph" in message

    def test_step_is_an_axis(self):
        both = cells(GPUS, step=["eager", "captured"], aggregators=["ring"], world_sizes=[2])
        assert [cell.step for cell in both] == ["eager", "captured"]

    def test_control_arm_of_the_overlapped_step_alone_is_no_captured_one(self):
        message = problem(GPUS, step="captured", aggregators=["no_op"])
        assert "aggregator 'no_op' is for step: overlapped alone; for step: captured use none" in message


class TestOverlapped:
    @pytest.mark.parametrize("aggregator", ["host_serial", "host_parallel", "caffe", "mxnet_tree"])
    def test_aggregator_that_needs_the_whole_gradient_or_another_update_site_is_refused(self, aggregator):
        message = problem(step=["eager", "overlapped"], aggregators=["none", aggregator])
        assert f"by-hand: aggregator {aggregator!r} cannot overlap with the backward pass" in message
        assert "use step: eager, or a part of its own" in message

    @pytest.mark.parametrize("aggregator", ["mxnet_device", "mxnet_local"])
    def test_tensor_by_tensor_owners_and_the_host_overlap_too_and_know_no_buckets(self, aggregator):
        taken = cells(step="overlapped", aggregators=[aggregator, "ring"], bucket_mb=[1, 4])
        sizes = [(cell.aggregator, cell.world_size, cell.bucket_mb) for cell in taken]
        assert [size for size in sizes if size[0] == aggregator] == [(aggregator, n, None) for n in (1, 2)]
        said = problem(GPUS, step="captured", aggregators=[aggregator])
        assert f"{aggregator!r} cannot be captured" in said

    @pytest.mark.parametrize("aggregator", ["none", "no_op", "all_reduce", "ring", "tree", "one_bit"])
    def test_the_others_are_taken(self, aggregator):
        assert {cell.step for cell in cells(step="overlapped", aggregators=[aggregator])} == {"overlapped"}

    @pytest.mark.parametrize("aggregator", ["no_op", {"name": "no_op", "path": "hook"}])
    def test_its_control_arm_is_no_eager_one(self, aggregator):
        message = problem(step=["overlapped", "eager"], aggregators=["all_reduce", aggregator])
        assert "is for step: overlapped alone; for step: eager use none, or a part of its own" in message

    def test_control_arm_is_never_a_convergence_result(self):
        message = problem(kind="convergence", step="overlapped", aggregators=["no_op"])
        assert "aggregator 'no_op' exchanges nothing: replicas drift apart" in message

    @pytest.mark.parametrize("kind", ["iteration", "convergence"])
    def test_size_of_buckets_means_nothing_in_other_steps(self, kind):
        message = problem(kind=kind, bucket_mb=25)
        said = "by-hand: bucket_mb is the size of the buckets that are exchanged under the backward pass"
        assert said in message
        assert "leave it out" in message

    def test_captured_steps_overlap_where_the_study_sets_a_size_of_buckets(self):
        machine, part = AvailableMachine(num_gpus=2, num_cores=8), {"step": "captured", "world_sizes": 2}
        assert [cell.bucket_mb for cell in cells(machine, **part)] == [None]
        assert [cell.bucket_mb for cell in cells(machine, **part, bucket_mb=[4, 16])] == [4.0, 16.0]

    def test_size_of_buckets_may_be_set_where_one_of_the_steps_has_them(self):
        found = cells(step=["eager", "overlapped"], bucket_mb=[1, 4], world_sizes=2)
        sizes = [("eager", None), ("overlapped", 1.0), ("overlapped", 4.0)]
        assert [(cell.step, cell.bucket_mb) for cell in found] == sizes


class TestInput:
    @pytest.mark.parametrize("placement", ["pinned", "pageable"])
    def test_copies_to_a_gpu_need_one(self, placement):
        message = problem(input_placement=["device", placement])
        assert f"by-hand: input_placement: {placement} is a copy from host memory to a GPU" in message
        assert "on cpu use device or loader" in message
        assert len(cells(GPUS, input_placement=["device", placement], world_sizes=1)) == 2

    @pytest.mark.parametrize("machine", [CPU, GPUS], ids=["cpu", "gpus"])
    def test_workers_belong_to_the_loader(self, machine):
        message = problem(machine, loader_workers=2)
        assert "by-hand: loader_workers belongs to input_placement: loader; leave it out" in message

    def test_workers_are_the_loaders_alone(self):
        found = cells(input_placement=["device", "loader"], loader_workers=3, world_sizes=1)
        expected = [("device", None), ("loader", 3)]
        assert [(cell.input_placement, cell.loader_workers) for cell in found] == expected


@pytest.mark.parametrize(
    "batch", [{"scaling": "strong", "global_batch": 1440}, {"scaling": "weak", "local_batch": 720}]
)
def test_global_batch_larger_than_the_data_set_is_refused(batch):
    scaling = batch.pop("scaling")
    workload = {"model": "mlp", "dataset": "digits", **batch}
    said = "a global batch of 1440 is larger than data set 'digits', which has 1437 training samples"
    assert said in problem(scaling=scaling, workloads=[workload], world_sizes=[2])
