"""`kind: device`, end to end on the CPU alone: measured, left out, reported, and gone on with."""

import csv
import statistics

import pytest
import yaml

pytestmark = pytest.mark.processes

STUDY = {
    "name": "tiny",
    "kind": "device",
    "experiment": {
        "name": "small-networks",
        "width": 10,
        "batch": 1,
        "widths": [10, 20],
        "batches": [1],
        "depths": [2],
        "input_sizes": [64],
        "equal_parameters": [],
        "threads": [1],
    },
    "devices": "cpu",
    "seconds": 0.05,
}


def test_study_is_measured_reported_and_gone_on_with(scaling):
    scaling.study.write_text(yaml.safe_dump(STUDY))
    done = scaling.run_here()
    assert done.returncode == 0, done.stderr
    assert "When is the GPU worth it for a small network?" in done.stdout
    rows = list(csv.DictReader((scaling.out / "summary.csv").open(newline="")))
    assert [(row["width"], row["threads"], row["state"]) for row in rows] == [
        ("10", "1", "done"),
        ("20", "1", "done"),
    ]
    for row in rows:
        assert (
            0 < float(row["iteration_s_low"]) <= float(row["iteration_s"]) <= float(row["iteration_s_high"])
        )
        lines = scaling.results().samples(row["cell_id"], 0)[0]
        samples = [line["seconds"] for line in lines if line.get("phase") == "step"]
        assert float(row["samples_per_s"]) == pytest.approx(1 / statistics.mean(samples))
        assert (row["model"], row["parameters"]) == ("", str(65 * int(row["width"]) + 11 * 10 + _second(row)))
    page = (scaling.out / "report.html").read_text(encoding="utf-8")
    assert "a training step, perceptrons" in page

    # A limit that nothing keeps: two more cells in the same study, both left out, and nothing has failed.
    wider = {**STUDY, "parts": [{}, {"limit_seconds": 1e-6}]}
    scaling.study.write_text(yaml.safe_dump(wider))
    again = scaling.run_here()
    assert again.returncode == 0, again.stderr
    assert len(list(scaling.out.glob("launches/*.log"))) == 2
    rows = list(csv.DictReader((scaling.out / "summary.csv").open(newline="")))
    assert sorted(row["iteration_s"] == "" for row in rows) == [False, False, True, True]
    assert all("would pass the limit of 1e-06 s" in row["left_out"] for row in rows if not row["iteration_s"])


def _second(row: dict[str, str]) -> int:
    """Parameters of the second hidden layer and, of the last one, those above the ten of width 10."""
    width = int(row["width"])
    return (width + 1) * width + (width - 10) * 10
