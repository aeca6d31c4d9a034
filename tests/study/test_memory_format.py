"""`memory_format`: an axis of networks that convolve images; cells without it are those of before."""

from functools import partial
from pathlib import Path

import pytest
import torch

from scaling.errors import StudyError
from scaling.store import ResultsFolder
from scaling.study.cell import Cell
from scaling.study.schema import parse_study
from tests.made import ABSENT, made_cells, made_study, problem_of
from tests.study.test_run_cell import TRAINED, group, losses, runner  # noqa: F401

pytestmark = pytest.mark.quality

RESNET = {"model": "resnet-56", "dataset": "synthetic", "global_batch": 4}
BASE = {"workloads": [RESNET], "aggregators": ["all_reduce"], "world_sizes": [1], "noise_pair": False}
study, cells, problem = partial(made_study, **BASE), partial(made_cells, **BASE), partial(problem_of, **BASE)
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
BOTH = ["contiguous", "channels_last"]
SYNTHETIC = {"dataset": "synthetic", "dataset_parameters": {"input_shape": None, "num_classes": None}}
CELL = {
    **TRAINED.to_dict(),
    **{"model": "resnet-56", "model_parameters": {}, **SYNTHETIC},
    **{"learning_rate": 0.01, "local_batch": 4, "global_batch": 4},
}


class TestAxis:
    def test_it_expands_and_contiguous_is_what_cells_were_before(self):
        first, second = cells(memory_format=BOTH)
        assert (first.memory_format, second.memory_format) == (None, "channels_last")
        assert [cell.id for cell in cells()] == [cell.id for cell in cells(memory_format="contiguous")]
        assert first.id == cells()[0].id != second.id

    def test_trainings_have_it_too(self):
        own = cells(kind="convergence", memory_format=BOTH, noise_pair=ABSENT)
        assert [cell.memory_format for cell in own] == [None, "channels_last"]

    def test_cells_say_it(self):
        first, second = cells(memory_format=BOTH)
        assert "channels_last" in second.describe()
        assert "contiguous" not in first.describe()


class TestRefused:
    @pytest.mark.parametrize("name", ["fcn-r", "lstm"])
    def test_networks_that_convolve_nothing(self, name):
        other = {"model": name, "dataset": "synthetic", "global_batch": 4}
        said = problem(workloads=[RESNET, other], memory_format=BOTH)
        assert "memory_format: channels_last" in said
        assert f"{name} on synthetic has" in said
        assert "use memory_format: contiguous" in said

    def test_other_values(self):
        assert "memory_format.0 is 'nhwc'" in problem(memory_format="nhwc")

    def test_parts_without_a_model(self):
        body = {"name": "links", "kind": "transfer", "world_sizes": 2, "memory_format": "channels_last"}
        with pytest.raises(StudyError, match="'memory_format' belongs to kind: iteration or convergence"):
            parse_study(body, "my.yaml")


@pytest.mark.parametrize("name", ["steps-4xh200", "converge-alexnet-2xh200", "compression-2xh200"])
def test_cells_of_committed_results_keep_their_ids(name):
    records = ResultsFolder(REFERENCE / name).runs()
    assert records
    for record in records:
        assert Cell(**record.cell).id == record.cell_id


@pytest.mark.parametrize("step", ["eager", "overlapped"])
def test_training_is_the_same_to_rounding(runner, group, step):  # noqa: F811
    """Losses of steps behind the first one, whose update they see; a forward pass says the order it had."""
    seen: list[bool] = []

    def noted(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, torch.nn.Conv2d) and not given[0].is_meta:  # meta: operations are counted
            seen.append(given[0].is_contiguous(memory_format=torch.channels_last))

    def trained(memory_format: str | None) -> list[float]:
        seen.clear()
        values = {**CELL, "step": step, "memory_format": memory_format}
        if step == "overlapped":
            values["bucket_mb"] = 25.0
        handle = torch.nn.modules.module.register_module_forward_pre_hook(noted)
        try:
            return losses(runner, group, Cell(**values))
        finally:
            handle.remove()

    contiguous = trained(None)
    assert not any(seen)
    last = trained("channels_last")
    assert all(seen)
    assert len(last) == len(contiguous) > 2
    assert last[:2] == pytest.approx(contiguous[:2], rel=1e-5)
    assert contiguous[0] != contiguous[1]
