"""The study of computation over local batches: what predictions want, and no more than a minute."""

from pathlib import Path

from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve

STUDY = Path(__file__).parents[1] / "benchmarks" / "compute_curves.yaml"


def cells():
    return resolve(load_study(str(STUDY)), AvailableMachine(1, 16)).trained


def test_holds_every_local_batch_that_occurs_on_one_to_four_workers():
    batches = {}
    for cell in cells():
        assert (cell.world_size, cell.aggregator, cell.device) == (1, "none", "cuda")
        batches.setdefault((cell.model_label, cell.step), set()).add(cell.local_batch)
    for step in ("eager", "captured", "overlapped"):
        assert batches["resnet-56", step] == {16, 32, 64, 128}
        assert batches["fcn-r", step] == {512, 1024, 2048, 4096}
        assert batches["fcn-s4", step] == {16, 32, 64}


def test_measures_for_less_than_a_minute():
    assert sum(cell.max_seconds for cell in cells()) < 60
