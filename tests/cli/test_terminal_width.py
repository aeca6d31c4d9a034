"""What the verbs print fits a terminal of 80 columns, but for paths and addresses, which are never cut."""

import pytest

from scaling.store import ResultsFolder
from topologies.schema import shipped

FOLDED = [
    ("plan", "quickstart"), ("plan", "kernel-choices"),
    *(("list", kind) for kind in ("studies", "experiments", "aggregators", "models", "datasets",
     "topologies")),
    *(("topology", "show", name) for name in shipped()),
    ("verify", "ring", "--world-sizes", "1-2"),
    ("predict", "quickstart", "--topology", "hgx-h200-4"),
]  # fmt: skip


def too_long(text: str) -> list[str]:
    """Lines over the width, but for those that a single word makes so."""
    return [line for line in text.splitlines() if len(line) > 80 and max(map(len, line.split())) < 50]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", FOLDED, ids=" ".join)
def test_texts_fit_eighty_columns(call, words):
    out = call.printed(*words)
    assert out.count("\n") > 1
    assert too_long(out) == []


@pytest.fixture
def of_experiments(tmp_path):
    """A folder of a study of kind device, where a cell has failed and one is planned."""
    folder = ResultsFolder(tmp_path / "results")
    folder.write_study({"name": "by-hand", "parts": []})
    folder.write_environment({})
    point = {"operation": "convolution", "shape": "AlexNet 11x11", "batch": 64, "choice": "older-interface"}
    for device in ("cpu", "cuda"):
        cell = {"kind": "device", "experiment": "kernel-choices", "point": point, "device": device}
        cell |= {"threads": 1, "parameters": {}}
        folder.plan_run(device, 0, {**cell, "world_size": 1})
    record = folder.run("cuda", 0)
    folder.start_run(record, {})
    folder.fail_run(record, "rank 0: RuntimeError: " + "no such algorithm, " * 20)
    return folder.path


@pytest.mark.parametrize("words", [("status",)], ids=" ".join)
def test_states_of_experiments_fit_eighty_columns(call, of_experiments, words):
    _, out, err = call(*words, of_experiments)
    assert "no such algorithm" in out, err
    assert too_long(out) == []
