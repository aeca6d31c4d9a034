"""An attached script's folder, from runs that are made up: what is recommended of it."""

import pytest

from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.attach.launch import Run
from scaling.attach.records import AttachedFolder
from scaling.errors import PredictionError
from scaling.prediction.calibration_data import MeasuredFolder
from tests.attach.test_answer import _rank

SECONDS = {"baseline": 0.10, "aa": 0.10, "no_exchange": 0.05, "cached_input": 0.08, "one_worker": 0.04}


@pytest.fixture
def folder(tmp_path):
    made = AttachedFolder(tmp_path / "out", ["torchrun", "train.py"], {})
    for launch in range(3):
        for position, (arm, step_s) in enumerate(SECONDS.items()):
            ranks = [
                _rank(at, [step_s * (1 + launch / 100)] * 6) for at in range(1 if arm == "one_worker" else 2)
            ]
            facts = {"world_size": len(ranks), "gradients": [[4, 3], [3]], "threads": 1}
            made.add(launch, position, Run(arm, [{**rank, **facts} for rank in ranks]))
    return made.folder


def test_arms_are_no_choices(folder):
    cells = read_cells(folder)
    (found,) = recommend(build_table("out", cells), cells)
    assert found.choice is not None
    assert found.choice.row["arm"] == "baseline"
    assert found.rivals == []
    assert found.runner_up is None


def test_nothing_is_predicted_from_them(folder):
    with pytest.raises(PredictionError, match="nothing is predicted from runs of an attached script"):
        MeasuredFolder(folder).cells()


def test_a_step_of_several_batches_has_the_samples_of_all(tmp_path):
    made = AttachedFolder(tmp_path / "out", ["torchrun", "train.py"], {})
    ranks = [_rank(at, [0.1] * 6, [(4, 4, 0, 1)] * 6) for at in range(2)]
    made.add(0, 0, Run("baseline", [{**rank, "gradients": [[3]]} for rank in ranks]))
    (record,) = made.folder.runs()
    assert (record.cell["local_batch"], record.cell["global_batch"]) == (32, 64)
    assert record.cell["dataset_label"] == "script"
