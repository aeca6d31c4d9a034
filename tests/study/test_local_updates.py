"""Studies of local updates: their cells, what they cannot be combined with, and how a cell is timed."""

from functools import partial

import pytest

from scaling.aggregators.registry import create
from scaling.errors import StudyError
from scaling.study.kinds.base import ModelSize, step_seconds
from scaling.study.rank.iteration import extent_of
from scaling.study.variants import can_be_local
from tests.made import cell_of, made_cells

WORKLOAD = {"model": "mlp", "dataset": "digits", "global_batch": 8}
cells = partial(made_cells, device="cpu", noise_pair=False, world_sizes=[2], workloads=[WORKLOAD])


def of(cell):
    return cell.sync_every, cell.outer_update, cell.outer_momentum, cell.outer_learning_rate


class TestCells:
    def test_blocks_of_one_are_todays_step_with_its_identity_and_longer_ones_averaged(self):
        plain, block = cells(sync_every=[1, 4])
        assert plain.id == cells()[0].id
        assert [of(plain), of(block)] == [(1, None, None, None), (4, "average", None, None)]
        assert (plain.lossy, block.lossy) == (False, True)

    def test_a_mean_of_one_model_or_of_single_steps_of_sgd_loses_nothing(self):
        every = {"sync_every": [1, 4], "outer_update": ["average", "nesterov"], "world_sizes": [1, 2]}
        exact = {(c.world_size, c.sync_every, c.outer_update) for c in cells(**every) if not c.lossy}
        alone = {(1, 1, "average"), (1, 4, "average")}
        assert exact == alone | {(2, 1, "average")}
        for changed in ({"optimizer": "adamw"}, {"clip_norm": 1.0}):
            found = cells(**every, **changed)
            assert {(c.world_size, c.sync_every, c.outer_update) for c in found if not c.lossy} == alone

    def test_numbers_have_the_defaults_of_their_papers_and_of_cntk(self):
        names = ["average", "block_momentum", "nesterov", "cntk_model_averaging", "cntk_block_momentum"]
        found = cells(sync_every=2, outer_update=names, world_sizes=[4])
        numbers = [(None, None), (0.75, 1.0), (0.9, 0.7), (None, None), (0.75, 1.0)]
        assert [of(cell)[1:] for cell in found] == [
            (name, *two) for name, two in zip(names, numbers, strict=True)
        ]
        assert len({cell.id for cell in found}) == 5

    def test_numbers_are_axes(self):
        found = cells(sync_every=2, outer_update="nesterov", outer_momentum=[0.5, 0.9], outer_learning_rate=1)
        assert [of(cell)[2:] for cell in found] == [(0.5, 1.0), (0.9, 1.0)]

    def test_control_arm_and_lossy_aggregators_are_measured_without_where_the_study_has_that(self):
        found = cells(sync_every=[1, 4], aggregators=["none", "ring", "one_bit", "fp16"])
        expected = [("none", 1), ("ring", 1), ("ring", 4), ("one_bit", 1), ("fp16", 1), ("fp16", 4)]
        assert [(cell.aggregator, cell.sync_every) for cell in found] == expected

    def test_description_says_how_often_models_are_exchanged(self):
        (cell,) = cells(sync_every=4)
        assert "sync_every 4, average of local updates" in cell.describe()


def test_every_exact_aggregator_and_16_bits_can_be_local_and_no_other():
    can = {name: can_be_local("eager", create(name)) for name in ("ring", "zero1", "bf16", "one_bit", "none")}
    assert can == {"ring": True, "zero1": True, "bf16": True, "one_bit": False, "none": False}


@pytest.mark.parametrize(("changes", "message"), [
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
])  # fmt: skip
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(StudyError, match=message):
        cells(**{"sync_every": 4, **changes})


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
