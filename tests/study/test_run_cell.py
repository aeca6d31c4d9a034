"""One cell on one rank: its samples and summary, and what stays from one cell to the next."""

import gc
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scaling.errors import StudyError
from scaling.measure.matrix_rate import MatrixRate, matrix_rate
from scaling.measure.probe.cases import matrix_sizes
from scaling.process_group import TorchGroup
from scaling.registry import trust
from scaling.study.cell import Cell
from scaling.study.rank import loaded
from scaling.study.rank.context import RankSummary
from scaling.study.rank.iteration import extent_of
from scaling.study.rank.launch import CellRunner
from scaling.study.rank.loaded import MAX_LOADED, Loaded
from scaling.training.timing import PROFILED_SETTLING
from scaling.workloads.base import DataShape, Model
from tests.made import cell_of

ALONE = {"aggregator": "all_reduce", "world_size": 1, "model_parameters": {"hidden": [8]}}
EXTENT = {"warmup": 2, "iterations": 30, "profiled_iterations": 4, "precision_goal": 0.5}
TIMED = cell_of(**ALONE, **EXTENT, global_batch=32, min_seconds=0.0, max_seconds=20.0)
OF_TRAINING = {"kind": "convergence", "local_batch": 128, "global_batch": 128, "epochs": 1}
TRAINED = replace(TIMED, **OF_TRAINING, warmup=None, iterations=None, profiled_iterations=None)


class Noting(nn.Sequential):
    seen: ClassVar[list[torch.Tensor]] = []

    def __init__(self, shape: DataShape) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, shape.num_classes))

    def forward(self, inputs):
        self.seen.append(torch.get_rng_state())
        return super().forward(inputs)


class Narrow(nn.Module):
    """A body and a head, of bfloat16 or float32."""

    def __init__(self, shape: DataShape, body: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.body = nn.Linear(64, 8, dtype=body)
        self.head = nn.Linear(8, shape.num_classes, dtype=torch.bfloat16)

    def forward(self, inputs):
        hidden = torch.tanh(self.body(inputs.flatten(1).to(self.body.weight.dtype)))
        return self.head(hidden.to(torch.bfloat16)).float()


narrow = Model("narrow", Narrow, None, "digits", "these tests", {})
of_float32 = partial(Narrow, body=torch.float32)
narrow_head = Model("narrow_head", of_float32, None, "digits", "these tests", {})
noting = Model("noting", Noting, None, "digits", "these tests", {})


@pytest.fixture(scope="module")
def group() -> Iterator[TorchGroup]:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = dist.group.WORLD
    assert data is not None
    yield TorchGroup(data, data, ranks_on_this_host=1)
    dist.destroy_process_group()
    torch.set_num_threads(threads)


RATE = MatrixRate(2e9, 1e9, 3e9, 512, 5)


@pytest.fixture(autouse=True)
def _rate_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "matrix_rate", lambda *_: RATE)


@pytest.fixture
def runner() -> CellRunner:
    return CellRunner(torch.device("cpu"))


def run(runner: CellRunner, group: TorchGroup, cell: Cell) -> tuple[list[dict[str, Any]], RankSummary]:
    rows: list[dict[str, Any]] = []
    summary = runner.run(cell, group, rows.extend)
    return rows, summary


def losses(runner: CellRunner, group: TorchGroup, cell: Cell = TRAINED) -> list[float]:
    """Of all steps: another initial weight, batch or random number would show."""
    (row,), _ = run(runner, group, cell)
    return row["step_losses"]


class TestInitialWeights:
    def test_kept_ones_are_those_that_are_freshly_drawn(self, runner, group):
        fresh = losses(CellRunner(torch.device("cpu")), group)
        assert losses(runner, group) == fresh
        assert losses(runner, group) == fresh

    @pytest.mark.parametrize("step", ["eager", "overlapped"])
    def test_timed_cell_in_between_does_not_change_them(self, runner, group, step):
        before = losses(runner, group)
        run(runner, group, replace(TIMED, step=step, bucket_mb=25.0 if step == "overlapped" else None))
        assert losses(runner, group) == before

    def test_every_model_and_seed_has_its_own(self, runner, group):
        others = [replace(TRAINED, seed=1), replace(TRAINED, model_parameters={"hidden": [9]})]
        first = [losses(runner, group, cell)[0] for cell in (TRAINED, *others)]
        assert len(set(first)) == 3

    def test_more_than_are_kept_are_drawn_again(self, runner, group):
        before = losses(runner, group)
        for seed in range(1, MAX_LOADED + 1):
            assert losses(runner, group, replace(TRAINED, seed=seed)) != before
        assert losses(runner, group) == before

    def test_random_numbers_of_the_training_go_on_from_them(self, runner, group):
        trust([f"{__name__}:noting"])
        first = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            Noting.seen.clear()
            run(runner, group, replace(TIMED, model=f"{__name__}:noting", model_parameters={}))
            first.append(Noting.seen[0])
        assert torch.equal(*first)


def test_tokens_of_a_sample_are_recorded_of_models_of_tokens_alone(runner, group):
    assert run(runner, group, TIMED)[1].tokens_per_sample is None
    gpt = {"model": "gpt", "model_parameters": {"size": "nano", "context": 8}, "dataset": "synthetic"}
    decoder = replace(TIMED, **gpt, iterations=2, precision_goal=None)
    assert run(runner, group, decoder)[1].tokens_per_sample == 8
    text = replace(decoder, dataset="text", dataset_parameters={"max_bytes": 2000})
    assert run(runner, group, text)[1].tokens_per_sample == 8


def test_a_sample_of_local_updates_is_a_whole_block(runner, group):
    blocks = {"sync_every": 4, "outer_update": "block_momentum", "precision_goal": None}
    rows, summary = run(runner, group, replace(TIMED, iterations=20, **blocks))
    timed = [row for row in rows if not (row["warmup"] or row["profiled"])]
    assert [row["steps"] for row in timed] == [4] * 5
    (profiled, *_) = [row for row in rows if row["profiled"] and not row["warmup"]]
    phases = [phase for phase, *_ in profiled["spans"]]
    assert [phases.count(name) for name in ("forward", "backward", "encode")] == [4, 4, 1]
    assert summary.messages_sent is None
    assert summary.warmup_iterations % 4 == 0
    assert summary.checks["exchange"] == "exact mean"


class TestMatrixRate:
    def test_it_is_measured_once_a_launch_and_precision(self, runner, group, monkeypatch):
        asked = []

        def measured(precision, device):
            asked.append(precision)
            return RATE

        monkeypatch.setattr(loaded, "matrix_rate", measured)
        first = run(runner, group, TIMED)[1].matrix_rate
        assert first == {"flops_per_s": 2e9, "low": 1e9, "high": 3e9, "size": 512, "num_samples": 5}
        assert run(runner, group, replace(TIMED, seed=1))[1].matrix_rate == first
        run(runner, group, replace(TIMED, precision="bf16"))
        assert asked == ["float32", "bf16"]
        assert run(runner, group, TRAINED)[1].matrix_rate is None
        monkeypatch.setattr(loaded, "matrix_rate", matrix_rate)
        rate = run(CellRunner(torch.device("cpu")), group, TIMED)[1].matrix_rate
        assert rate["low"] <= rate["flops_per_s"] <= rate["high"], "of this machine"
        assert rate["size"] in matrix_sizes(on_gpus=False)


class TestFullyShardedParametersOf16Bits:
    SHARDED = {"aggregator": "fsdp2", "step": "overlapped", "bucket_mb": 25.0}
    CELL = replace(TIMED, **SHARDED, model_parameters={}, iterations=2)

    def test_those_of_one_dtype_are_trained_and_checked(self, runner, group):
        trust([f"{__name__}:narrow"])
        summary = run(runner, group, replace(self.CELL, model=f"{__name__}:narrow"))[1]
        assert summary.checks["steps"] > 0
        assert summary.tensor_shapes.startswith("bfloat16: ")
        assert summary.matrix_rate is None, "products of bfloat16 are not those of float32"

    def test_those_of_several_are_refused_by_name(self, runner, group):
        trust([f"{__name__}:narrow_head"])
        said = "'fsdp2' takes parameters of one dtype, and the model has float32 and bfloat16"
        with pytest.raises(StudyError, match=said):
            run(runner, group, replace(self.CELL, model=f"{__name__}:narrow_head"))


class TestDataThatDoesNotFit:
    """Here the device's memory is the host's: what is planted is the failure of the move."""

    @pytest.fixture
    def fail(self, monkeypatch):
        """fail(count): the first moves of a split raise; gives what is noted of the others."""

        def plant(count):
            moved = []
            move = Loaded._on_device

            def on_device(self, split):
                moved.append(len(self._data))
                if len(moved) <= count:
                    raise torch.OutOfMemoryError("planted")
                return move(self, split)

            monkeypatch.setattr(Loaded, "_on_device", on_device)
            return moved

        return plant

    @pytest.mark.parametrize("step", ["eager", "overlapped"])
    def test_it_stays_in_host_memory_with_the_same_training_and_a_note(self, runner, group, fail, step):
        cell = replace(TRAINED, step=step, bucket_mb=25.0 if step == "overlapped" else None)
        expected = losses(CellRunner(torch.device("cpu")), group, cell)
        fail(count=1000)
        (row,), summary = run(runner, group, cell)
        assert row["step_losses"] == expected
        assert summary.data_in_host_memory
        assert summary.checksums
        rows, summary = run(runner, group, TIMED)
        assert (bool(rows), summary.data_in_host_memory) == (True, True)

    def test_data_of_other_cells_make_room_first(self, runner, group, fail):
        shape = {"input_shape": [4], "num_classes": 3}
        run(runner, group, replace(TIMED, dataset="synthetic", dataset_parameters=shape))
        moved = fail(count=1)
        _, summary = run(runner, group, TRAINED)
        assert moved == [1, 0, 0], "with the other data set, then alone: training and test samples"
        assert not summary.data_in_host_memory


@pytest.fixture(scope="module")
def ran(group) -> tuple[list[dict[str, Any]], RankSummary, dict[str, float]]:
    """A timed cell's rows and summary, and what its runner says."""
    runner = CellRunner(torch.device("cpu"))
    return (*run(runner, group, TIMED), runner.seconds)


class TestTimedCell:
    def test_samples_are_of_three_parts(self, ran):
        rows, summary, _ = ran
        warmup = [row for row in rows if row["warmup"] and not row["profiled"]]
        split = [row for row in rows if row["profiled"]]
        assert len(warmup) == summary.warmup_iterations >= 10
        assert len(split) == PROFILED_SETTLING + 4
        assert rows == [*warmup, *(row for row in rows if not (row["warmup"] or row["profiled"])), *split]
        assert [phase for phase, *_ in split[-1]["spans"]] == ["input", "forward", "backward", "update"]

    def test_summary_says_how_it_went(self, ran):
        _, summary, seconds = ran
        assert str(summary.warmup_end).startswith(("no trend in the last 10 ", "a trend was left after "))
        assert summary.stop_reason in ("precision", "iterations")
        assert summary.clock_uncertainty_s == 0
        assert (summary.gpu, summary.memory_peak_bytes) == (None, None)
        assert set(summary.seconds) == {"setup", "warmup", "unprofiled", "profiled"}
        assert summary.seconds == seconds

    def test_cell_that_fails_leaves_the_seconds_of_the_parts_it_came_through(self, runner, group):
        def full(_: object) -> None:
            raise OSError("no space left")

        with pytest.raises(OSError, match="no space left"):
            runner.run(TIMED, group, full)
        assert set(runner.seconds) == {"setup", "warmup", "unprofiled", "profiled"}
        with pytest.raises(ValueError, match="unknown aggregator"):
            run(runner, group, replace(TIMED, aggregator="rings"))
        assert runner.seconds == {}

    def test_loader_hands_out_batches_to_any_step_and_its_workers_end_before_cycles_are_collected(
        self, runner, group, monkeypatch
    ):
        # A collection closes their queues first, and each is waited for in vain for five seconds.
        left: list[Any] = []
        monkeypatch.setattr(gc, "collect", lambda: left.extend(multiprocessing.active_children()))
        rows, _ = run(runner, group, replace(TIMED, input_placement="loader", loader_workers=2))
        assert "input" in [phase for phase, *_ in rows[-1]["spans"]]
        assert left == []


def test_extent_is_the_cells():
    extent = extent_of(replace(TIMED, min_seconds=None, profiled_iterations=None))
    assert (extent.warmup, extent.iterations, extent.precision_goal) == (2, 30, 0.5)
    assert (extent.min_seconds, extent.max_seconds, extent.profiled_iterations) == (0.0, 20.0, 0)
