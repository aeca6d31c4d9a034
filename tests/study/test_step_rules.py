"""How precision, wire, optimizer, accumulation and clipping combine, and what is refused."""

import pytest
import yaml

from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import StudyError
from scaling.study import step_rules
from scaling.study.cell import AvailableMachine
from scaling.study.rank.prepared_step import settings_of
from scaling.study.schema import parse_study
from scaling.training.optimizers import AdamSettings, SgdSettings
from tests.made import ABSENT, made_cells, made_study

GPT = {"model": {"name": "gpt", "size": "nano"}, "dataset": "synthetic", "global_batch": 8}
BASE = {"workloads": [GPT], "aggregators": ["all_reduce"], "world_sizes": [2], "noise_pair": False}


def cells(num_gpus=0, **changes):
    return made_cells(AvailableMachine(num_gpus, 8), **{**BASE, **changes})


def one(**changes):
    (cell,) = cells(**changes)
    return cell


class TestPrecision:
    def test_tf32_true_means_precision_tf32(self):
        assert one(num_gpus=2, tf32=True).id == one(num_gpus=2, precision="tf32").id

    def test_float32_keeps_the_identity_of_studies_without_the_key(self):
        assert one().id == one(precision="float32").id
        assert one(num_gpus=2).id == one(num_gpus=2, precision="float32").id

    def test_precisions_are_cells_of_their_own(self):
        found = cells(num_gpus=2, precision=["float32", "tf32", "bf16", "fp16"])
        expected = [(False, None), (True, None), (False, "bf16"), (False, "fp16")]
        assert [(cell.tf32, cell.precision) for cell in found] == expected
        assert len({cell.id for cell in found}) == 4

    def test_a_cpu_has_no_tf32(self):
        assert [cell.precision for cell in cells(precision=["float32", "tf32", "bf16"])] == [None, "bf16"]


class TestOptimizer:
    def test_sgd_keeps_its_numbers_and_its_identity(self):
        assert settings_of(one()) == SgdSettings(0.01, 0.9, 0.0)
        assert one().id == one(optimizer="sgd", learning_rate=0.01, momentum=0.9).id

    def test_adams_have_torchs_numbers(self):
        adam, adamw = cells(optimizer=["adam", "adamw"])
        assert settings_of(adam) == AdamSettings(0.001)
        assert settings_of(adamw) == AdamSettings(0.001, weight_decay=0.01, decoupled=True)

    def test_workload_sets_its_own(self):
        cell = one(optimizer="adamw", beta2=0.98, workloads=[{**GPT, "learning_rate": 0.1, "beta2": 0.95}])
        assert (cell.learning_rate, cell.beta2, cell.momentum) == (0.1, 0.95, 0.0)

    def test_numbers_of_another_optimizer_are_refused(self):
        with pytest.raises(StudyError, match="momentum belongs to optimizer: sgd, and the part has adamw"):
            cells(optimizer="adamw", momentum=0.9)


def test_ddps_arguments_are_those_of_ddp_alone():
    own = {"static_graph": True, "gradient_as_bucket_view": True, "first_bucket_mb": 2}
    ddp, bare = cells(step="overlapped", aggregators=["all_reduce", "none"], **own)
    assert (ddp.static_graph, ddp.gradient_as_bucket_view, ddp.first_bucket_mb) == (True, True, 2)
    assert (bare.static_graph, bare.gradient_as_bucket_view, bare.first_bucket_mb) == (None, None, None)


def test_ddps_usual_arguments_change_no_identity():
    assert one(step="overlapped").id == one(step="overlapped", static_graph=False).id


def test_aggregators_that_encode_have_a_wire_of_their_own():
    found = cells(aggregators=["all_reduce", "power_sgd", "none"], wire=["float32", "bf16"])
    assert [(cell.aggregator, cell.wire, cell.lossy) for cell in found] == [
        ("all_reduce", None, False),
        ("all_reduce", "bf16", True),
        ("power_sgd", None, True),
        ("none", None, False),
    ]


RESHARDED = {"step": "overlapped", "aggregators": [{"name": "fsdp2", "reshard_after_forward": 3}]}
REFUSED = [
    ({"tf32": True, "precision": "bf16"}, "tf32: true is precision: tf32"),
    ({"precision": "fp16", "aggregators": ["host_serial"]}, "precision: fp16 needs its loss scaled"),
    ({"precision": "fp16", "aggregators": ["one_bit"]}, "'one_bit' encodes gradients"),
    ({"wire": "bf16", "aggregators": ["one_bit"]}, "has an encoding of its own"),
    ({"wire": "bf16", "aggregators": ["caffe"]}, "wire: bf16: aggregator 'caffe' sends parameters too"),
    ({"clip_norm": 1, "aggregators": ["one_bit"]}, "say which is clipped, clip_gradient: mean"),
    ({"clip_norm": 1, "clip_gradient": "local", "step": "overlapped"}, "begins under the backward pass"),
    ({"clip_gradient": "local"}, "set clip_norm, or leave it out"),
    ({"accumulate": 3}, "accumulate: 3 does not divide the local batch of 4"),
    ({**RESHARDED, "world_sizes": [2, 4]}, "reshard_after_forward is 3, and 4 ranks are no groups of 3"),
    ({"static_graph": True}, "static_graph is an argument of torch's DDP"),
    ({"compile": True, "step": "captured"}, "compile: true goes with step: eager and overlapped"),
    ({"optimizer": "adamw", "aggregators": ["one_bit_momentum"]},
     "it goes with optimizer: sgd and momentum: 0 alone"),
    ({"checkpoint_activations": True, "workloads": [{**GPT, "model": "mlp", "dataset": "digits"}]},
     "model 'mlp' has no layers to compute again"),
    ({"checkpoint_activations": True, "workloads": [{**GPT, "model": "resnet-56"}]},
     "has batch normalisation"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_combinations_that_cannot_be_are_refused_by_name(changes, message):
    with pytest.raises(StudyError, match=message):
        cells(**changes)


@pytest.mark.parametrize("which", ["mean", "local"])
def test_lossy_gradients_are_clipped_where_the_study_says(which):
    cell = one(clip_norm=1, clip_gradient=which, aggregators=["one_bit"])
    assert (cell.clip_norm, cell.clip_gradient) == (1, which)


class TestBitsPerByte:
    TEXT = {"model": GPT["model"], "dataset": "text", "global_batch": 8, "target_bits_per_byte": 3.0}

    def trained(self, **changes):
        return cells(kind="convergence", workloads=[{**self.TEXT, **changes}], noise_pair=ABSENT)

    def test_target_is_the_cells(self):
        assert [cell.target_bits_per_byte for cell in self.trained()] == [3.0]

    def test_data_of_no_bytes_have_no_such_target(self):
        with pytest.raises(StudyError, match="is a target of texts of bytes"):
            self.trained(dataset="synthetic")

    def test_one_target_is_enough(self):
        with pytest.raises(StudyError, match="two targets; leave one out"):
            self.trained(target_accuracy=0.5)


class TestBucketSizes:
    def test_a_list_in_the_list_is_one_cell_with_sizes_one_by_one(self):
        found = cells(step="overlapped", bucket_mb=[25, [1, 25], [0.5, 2.25]])
        expected = [(25, None), (None, (1, 25)), (None, (0.5, 2.25))]
        assert [(cell.bucket_mb, cell.bucket_sizes_mb) for cell in found] == expected
        assert len({cell.id for cell in found}) == 3
        assert found[2].describe().endswith("overlapped, buckets of 0.5 2.25 MiB")

    def test_without_sizes_they_are_those_of_ddp_and_one_size_holds_for_the_first_too(self):
        default, given = one(step="overlapped"), one(step="overlapped", bucket_mb=25)
        assert (default.first_bucket_mb, default.bucket_mb) == DDP_BUCKETS_MB
        assert (given.first_bucket_mb, given.bucket_mb) == (None, 25)
        assert one(step="overlapped", bucket_mb=25, first_bucket_mb=1).id == default.id
        assert one(step="overlapped", aggregators=["none"]).first_bucket_mb is None

    def test_a_flat_list_is_of_cells_as_before(self):
        found = cells(step="overlapped", bucket_mb=[1, 25])
        assert [(cell.bucket_mb, cell.bucket_sizes_mb) for cell in found] == [(1, None), (25, None)]

    @pytest.mark.parametrize("sizes", [[], [0], [-1.0, 2], ["a"]])
    def test_sizes_are_positive_numbers(self, sizes):
        with pytest.raises(StudyError, match="bucket_mb"):
            cells(step="overlapped", bucket_mb=[sizes])

    def test_they_are_for_ddp_alone(self):
        with pytest.raises(StudyError, match="which step: overlapped alone has"):
            cells(num_gpus=2, step=["overlapped", "captured"], bucket_mb=[[1, 25]])

    def test_they_have_the_first_bucket_too(self):
        for more in ({"first_bucket_mb": 2}, {"find_unused_parameters": True}):
            with pytest.raises(StudyError, match="leave first_bucket_mb and find_unused_parameters out"):
                cells(step="overlapped", bucket_mb=[[1, 25]], **more)

    def test_older_torch_takes_two(self, monkeypatch):
        monkeypatch.setattr(step_rules, "TAKES_SIZES", False)
        assert one(step="overlapped", bucket_mb=[[1, 25]]).bucket_sizes_mb == (1, 25)
        with pytest.raises(StudyError, match="takes two, of the first bucket and of the others"):
            cells(step="overlapped", bucket_mb=[[1, 2, 25]])

    def test_a_written_study_is_read_again(self):
        study = made_study(**BASE, step="overlapped", bucket_mb=[25, [1, 2.5]])
        again = parse_study(yaml.safe_load(yaml.safe_dump(study.model_dump(mode="json"))), "my.yaml")
        assert again == study
