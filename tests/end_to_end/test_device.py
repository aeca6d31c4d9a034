"""`kind: device`, end to end on the CPU alone: measured, left out, reported, and gone on with."""

import statistics

import pytest

from tests.end_to_end.conftest import ended_well

pytestmark = pytest.mark.processes

EXPERIMENT = {
    **{"name": "small-networks", "width": 10, "batch": 1, "widths": [10, 20], "batches": [1], "depths": [2]},
    **{"input_sizes": [64], "equal_parameters": [], "threads": [1]},
}
STUDY = {"name": "tiny", "kind": "device", "experiment": EXPERIMENT, "devices": "cpu", "seconds": 0.05}


def test_study_is_measured_reported_and_gone_on_with(scaling):
    scaling.write(STUDY)
    assert "When is the GPU worth it for a small network?" in ended_well(scaling.run_here()).stdout
    rows = scaling.rows()
    expected = [("10", "1", "done"), ("20", "1", "done")]
    assert [(row["width"], row["threads"], row["state"]) for row in rows] == expected
    for row in rows:
        low, middle, high = (float(row[f"iteration_s{of}"]) for of in ("_low", "", "_high"))
        assert 0 < low <= middle <= high
        lines = scaling.results().samples(row["cell_id"], 0)[0]
        samples = [line["seconds"] for line in lines if line.get("phase") == "step"]
        assert float(row["samples_per_s"]) == pytest.approx(1 / statistics.mean(samples))
        assert (row["model"], row["parameters"]) == ("", str(65 * int(row["width"]) + 11 * 10 + _second(row)))
    assert "a training step, perceptrons" in (scaling.out / "report.html").read_text(encoding="utf-8")

    # A limit that nothing keeps: two more cells in the same study, both left out, and nothing has failed.
    scaling.write({**STUDY, "parts": [{}, {"limit_seconds": 1e-6}]})
    ended_well(scaling.run_here())
    assert len(list(scaling.out.glob("launches/*.log"))) == 2
    rows = scaling.rows()
    assert sorted(row["iteration_s"] == "" for row in rows) == [False, False, True, True]
    assert all("would pass the limit of 1e-06 s" in row["left_out"] for row in rows if not row["iteration_s"])


def _second(row: dict[str, str]) -> int:
    """Parameters of the second hidden layer and, of the last one, those above the ten of width 10."""
    width = int(row["width"])
    return (width + 1) * width + (width - 10) * 10
