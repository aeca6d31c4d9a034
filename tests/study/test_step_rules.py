"""How precision, wire, optimizer, accumulation, clipping and local updates combine, and what is refused."""

import re
from functools import partial

import pytest
import yaml

from scaling.aggregators.registry import create
from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import StudyError
from scaling.study import step_rules
from scaling.study.cell import AvailableMachine
from scaling.study.kinds.base import ModelSize, step_seconds
from scaling.study.rank.iteration import extent_of
from scaling.study.rank.prepared_step import settings_of
from scaling.study.schema import parse_study
from scaling.study.variants import can_be_local
from scaling.training.optimizers import AdamSettings, SgdSettings
from tests.made import ABSENT, WORKLOAD, cell_of, made_cells, made_study

GPT = {"model": {"name": "gpt", "size": "nano"}, "dataset": "synthetic", "global_batch": 8}
BASE = {"workloads": [GPT], "aggregators": ["all_reduce"], "world_sizes": [2], "noise_pair": False}


def cells(num_gpus=0, **changes):
    return made_cells(AvailableMachine(num_gpus, 8), **{**BASE, **changes})


def one(**changes):
    (cell,) = cells(**changes)
    return cell


class TestPrecision:
    def test_tf32_true_means_precision_tf32_and_float32_keeps_the_identity_of_studies_without_the_key(self):
        assert one(num_gpus=2, tf32=True).id == one(num_gpus=2, precision="tf32").id
        assert one().id == one(precision="float32").id
        assert one(num_gpus=2).id == one(num_gpus=2, precision="float32").id

    def test_precisions_are_cells_of_their_own(self):
        found = cells(num_gpus=2, precision=["float32", "tf32", "bf16", "fp16"])
        expected = [(False, None), (True, None), (False, "bf16"), (False, "fp16")]
        assert [(cell.tf32, cell.precision) for cell in found] == expected
        assert len({cell.id for cell in found}) == 4
        on_cpu = cells(precision=["float32", "tf32", "bf16"])
        assert [cell.precision for cell in on_cpu] == [None, "bf16"], "a CPU has no TF32"


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


def test_ddps_arguments_are_those_of_ddp_alone():
    own = {"static_graph": True, "gradient_as_bucket_view": True, "first_bucket_mb": 2}
    ddp, bare = cells(step="overlapped", aggregators=["all_reduce", "none"], **own)
    assert (ddp.static_graph, ddp.gradient_as_bucket_view, ddp.first_bucket_mb) == (True, True, 2)
    assert (bare.static_graph, bare.gradient_as_bucket_view, bare.first_bucket_mb) == (None, None, None)
    assert one(step="overlapped").id == one(step="overlapped", static_graph=False).id, "its usual ones"


def test_aggregators_that_encode_have_a_wire_of_their_own():
    found = cells(aggregators=["all_reduce", "power_sgd", "none"], wire=["float32", "bf16"])
    assert [(cell.aggregator, cell.wire, cell.lossy) for cell in found] == [
        ("all_reduce", None, False),
        ("all_reduce", "bf16", True),
        ("power_sgd", None, True),
        ("none", None, False),
    ]


OVERLAPPED = {"step": "overlapped"}
RESHARDED = {"step": "overlapped", "aggregators": [{"name": "fsdp2", "reshard_after_forward": 3}]}
BYTES = {"model": GPT["model"], "dataset": "text", "global_batch": 8, "target_bits_per_byte": 3.0}
TEXT = {"kind": "convergence", "workloads": [BYTES], "noise_pair": ABSENT}
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
    ({"optimizer": "adamw", "momentum": 0.9}, "momentum belongs to optimizer: sgd, and the part has adamw"),
    # Of texts of bytes.
    ({**TEXT, "workloads": [{**BYTES, "dataset": "synthetic"}]}, "is a target of texts of bytes"),
    ({**TEXT, "workloads": [{**BYTES, "target_accuracy": 0.5}]}, "two targets; leave one out"),
    # Bucket sizes are positive numbers, for DDP alone, and have the first bucket too.
    *(({**OVERLAPPED, "bucket_mb": [sizes]}, "bucket_mb") for sizes in ([], [0], [-1.0, 2], ["a"])),
    ({"num_gpus": 2, "step": ["overlapped", "captured"], "bucket_mb": [[1, 25]]},
     "which step: overlapped alone has"),
    *(({**OVERLAPPED, "bucket_mb": [[1, 25]], **more},
       "leave first_bucket_mb and find_unused_parameters out")
      for more in ({"first_bucket_mb": 2}, {"find_unused_parameters": True})),
]  # fmt: skip


@pytest.mark.parametrize("which", ["mean", "local"])
def test_lossy_gradients_are_clipped_where_the_study_says_and_targets_of_texts_are_the_cells(which):
    cell = one(clip_norm=1, clip_gradient=which, aggregators=["one_bit"])
    assert (cell.clip_norm, cell.clip_gradient) == (1, which)
    assert [cell.target_bits_per_byte for cell in cells(**TEXT)] == [3.0], (
        "the target of a text is the cells'"
    )


class TestBucketSizes:
    def test_a_list_in_the_list_is_one_cell_with_sizes_one_by_one(self):
        found = cells(step="overlapped", bucket_mb=[25, [1, 25], [0.5, 2.25]])
        expected = [(25, None), (None, (1, 25)), (None, (0.5, 2.25))]
        assert [(cell.bucket_mb, cell.bucket_sizes_mb) for cell in found] == expected
        assert len({cell.id for cell in found}) == 3
        assert found[2].describe().endswith("overlapped, buckets of 0.5 2.25 MiB")
        flat = cells(step="overlapped", bucket_mb=[1, 25])
        assert [(cell.bucket_mb, cell.bucket_sizes_mb) for cell in flat] == [(1, None), (25, None)]

    def test_without_sizes_they_are_those_of_ddp_and_one_size_holds_for_the_first_too(self):
        default, given = one(step="overlapped"), one(step="overlapped", bucket_mb=25)
        assert (default.first_bucket_mb, default.bucket_mb) == DDP_BUCKETS_MB
        assert (given.first_bucket_mb, given.bucket_mb) == (None, 25)
        assert one(step="overlapped", bucket_mb=25, first_bucket_mb=1).id == default.id
        assert one(step="overlapped", aggregators=["none"]).first_bucket_mb is None

    def test_older_torch_takes_two(self, monkeypatch):
        monkeypatch.setattr(step_rules, "TAKES_SIZES", False)
        assert one(step="overlapped", bucket_mb=[[1, 25]]).bucket_sizes_mb == (1, 25)
        with pytest.raises(StudyError, match="takes two, of the first bucket and of the others"):
            cells(step="overlapped", bucket_mb=[[1, 2, 25]])

    def test_a_written_study_is_read_again(self):
        study = made_study(**BASE, step="overlapped", bucket_mb=[25, [1, 2.5]])
        again = parse_study(yaml.safe_load(yaml.safe_dump(study.model_dump(mode="json"))), "my.yaml")
        assert again == study


local = partial(
    made_cells, device="cpu", noise_pair=False, world_sizes=[2], workloads=[{**WORKLOAD, "global_batch": 8}]
)


def of(cell):
    return cell.sync_every, cell.outer_update, cell.outer_momentum, cell.outer_learning_rate


class TestCells:
    def test_blocks_of_one_are_todays_step_with_its_identity_and_longer_ones_averaged(self):
        plain, block = local(sync_every=[1, 4])
        assert plain.id == local()[0].id
        assert [of(plain), of(block)] == [(1, None, None, None), (4, "average", None, None)]
        assert (plain.lossy, block.lossy) == (False, True)
        assert "sync_every 4, average of local updates" in block.describe()

    def test_a_mean_of_one_model_or_of_single_steps_of_sgd_loses_nothing(self):
        every = {"sync_every": [1, 4], "outer_update": ["average", "nesterov"], "world_sizes": [1, 2]}
        exact = {(c.world_size, c.sync_every, c.outer_update) for c in local(**every) if not c.lossy}
        alone = {(1, 1, "average"), (1, 4, "average")}
        assert exact == alone | {(2, 1, "average")}
        for changed in ({"optimizer": "adamw"}, {"clip_norm": 1.0}):
            found = local(**every, **changed)
            assert {(c.world_size, c.sync_every, c.outer_update) for c in found if not c.lossy} == alone

    def test_numbers_have_the_defaults_of_their_papers_and_of_cntk_and_are_axes(self):
        names = ["average", "block_momentum", "nesterov", "cntk_model_averaging", "cntk_block_momentum"]
        found = local(sync_every=2, outer_update=names, world_sizes=[4])
        numbers = [(None, None), (0.75, 1.0), (0.9, 0.7), (None, None), (0.75, 1.0)]
        assert [of(cell)[1:] for cell in found] == [
            (name, *two) for name, two in zip(names, numbers, strict=True)
        ]
        assert len({cell.id for cell in found}) == 5
        found = local(sync_every=2, outer_update="nesterov", outer_momentum=[0.5, 0.9], outer_learning_rate=1)
        assert [of(cell)[2:] for cell in found] == [(0.5, 1.0), (0.9, 1.0)]

    def test_control_arm_and_lossy_aggregators_are_measured_without_where_the_study_has_that(self):
        found = local(sync_every=[1, 4], aggregators=["none", "ring", "one_bit", "fp16"])
        expected = [("none", 1), ("ring", 1), ("ring", 4), ("one_bit", 1), ("fp16", 1), ("fp16", 4)]
        assert [(cell.aggregator, cell.sync_every) for cell in found] == expected


def test_every_exact_aggregator_and_16_bits_can_be_local_and_no_other():
    can = {name: can_be_local("eager", create(name)) for name in ("ring", "zero1", "bf16", "one_bit", "none")}
    assert can == {"ring": True, "zero1": True, "bf16": True, "one_bit": False, "none": False}


NOT_LOCAL = [
    ({"aggregators": ["one_bit"]}, "sync_every: 4: aggregator 'one_bit' encodes"),
    ({"aggregators": ["none"]}, "no aggregator of this part exchanges anything"),
    ({"step": "overlapped", "aggregators": ["all_reduce"]}, "step: overlapped exchanges each gradient"),
    ({"step": "overlapped", "aggregators": ["fsdp2"]}, "step: overlapped exchanges each gradient"),
    ({"step": ["eager", "overlapped"], "aggregators": ["all_reduce"]}, "add 1 to sync_every"),
    ({"sync_every": [1, 4], "aggregators": ["one_bit"]}, "'one_bit' encodes"),
    ({"outer_update": "nesterov", "aggregators": ["ring", "top_k"]}, "outer_update: nesterov: aggreg"),
    ({"precision": "fp16"}, "ranks would skip different steps"),
    ({"batch_norm": "sync"}, "exchanges statistics in every step"),
    ({"outer_momentum": 0.9}, "outer_momentum belongs to outer_update"),
    ({"outer_update": "average", "outer_learning_rate": 1}, "outer_learning_rate belongs to"),
    ({"sync_every": 0}, "sync_every"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "changes", "message"), [
    *((cells, *case) for case in REFUSED),
    *((local, {"sync_every": 4, **changes}, message) for changes, message in NOT_LOCAL),
], ids=lambda value: re.sub("<.*?>", "", str(value)))  # fmt: skip
def test_combinations_that_cannot_be_are_refused_by_name(make, changes, message):
    with pytest.raises(StudyError, match=message):
        make(**changes)


def test_a_cell_is_timed_in_whole_blocks():
    cell = cell_of(sync_every=8, outer_update="average", warmup=5, iterations=50, profiled_iterations=20)
    extent = extent_of(cell)
    assert (extent.warmup, extent.iterations, extent.profiled_iterations) == (3, 7, 3)
    assert extent_of(cell_of(warmup=5, iterations=50)).iterations == 50


def test_planned_time_has_a_part_of_the_exchange():
    size = ModelSize(10**7)
    alone, plain, block = (
        step_seconds(cell_of(**changes), size, 2)
        for changes in ({"exchanges": False}, {}, {"sync_every": 4, "outer_update": "average"})
    )
    assert block - alone == pytest.approx((plain - alone) / 4)
