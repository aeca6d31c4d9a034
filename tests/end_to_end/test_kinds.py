"""Kinds `device` and `transfer`, end to end on the CPU: measured, left out, reported and gone on with."""

import json
import statistics

import pytest

from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from tests.end_to_end.conftest import SYNTHETIC, ended_well
from topologies.schema import load

pytestmark = pytest.mark.processes

EXPERIMENT = {
    **{"name": "small-networks", "width": 10, "batch": 1, "widths": [10, 20], "batches": [1], "depths": [2]},
    **{"input_sizes": [64], "equal_parameters": [], "threads": [1]},
}
DEVICES = {"name": "tiny", "kind": "device", "experiment": EXPERIMENT, "devices": "cpu", "seconds": 0.05}


def test_study_is_measured_reported_and_gone_on_with(scaling):
    scaling.write(DEVICES)
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
        width = int(row["width"])  # of each hidden layer; ten classes
        parameters = 65 * width + (width + 1) * width + (width + 1) * 10
        assert (row["model"], row["parameters"]) == ("", str(parameters))
    assert "a training step, perceptrons" in (scaling.out / "report.html").read_text(encoding="utf-8")

    # A limit that nothing keeps: two more cells in the same study, both left out, and nothing has failed.
    scaling.write({**DEVICES, "parts": [{}, {"limit_seconds": 1e-6}]})
    ended_well(scaling.run_here())
    assert len(list(scaling.out.glob("launches/*.log"))) == 2
    rows = scaling.rows()
    assert sorted(row["iteration_s"] == "" for row in rows) == [False, False, True, True]
    assert all("would pass the limit of 1e-06 s" in row["left_out"] for row in rows if not row["iteration_s"])


TIMED = {
    **{"kind": "iteration", "workloads": [SYNTHETIC], "aggregators": ["all_reduce"], "scaling": "strong"},
    **{"iterations": 6, "noise_pair": False},
}
LINKS = {"kind": "transfer", "seconds": 0.5}
STUDY = {"name": "links", "device": "cpu", "world_sizes": [2], "parts": [LINKS, TIMED]}


def report_of(scaling):
    return scaling.here("report", str(scaling.out), "--all").stdout


def test_links_are_measured_in_the_studys_own_launch_and_reported(scaling):
    scaling.write(STUDY)
    ended_well(scaling.run_here())
    assert "Transfers: 2 workers on the CPU, 1 thread each" in report_of(scaling)
    assert len(list(scaling.out.glob("launches/*.log"))) == 1  # both cells have the same settings

    expected = [("iteration", "done", True), ("transfer", "done", False)]
    assert [(row["kind"], row["state"], row["model"] != "") for row in scaling.rows()] == expected
    transfers = scaling.rows("transfers.csv")
    operations = {"host_copy", "host_sum", "send", "swap", "shift", "all_reduce"}
    assert {row["operation"] for row in transfers} == operations
    assert all(float(row["seconds"]) > 0 and int(row["n"]) >= 3 for row in transfers)

    topology = load(scaling.out / "probed.yaml")
    assert simulate(ring(2), topology, 1 << 20).seconds > 0
    assert topology.sources["message_latency_s.host"].startswith("measured by scaling run on 20")
    assert "bandwidth-peers-cpu-2x1.svg" in (scaling.out / "report.html").read_text()

    (samples,) = [text for path, text in scaling.samples().items() if '"facts"' in text]
    rows = [json.loads(line) for line in samples.splitlines()]
    assert set(rows[0]) == {"facts"}
    assert sum("sample" in row for row in rows) == sum(int(row["n"]) for row in transfers)

    assert "mpi" not in rows[0]["facts"]
    before = scaling.samples()
    ended_well(scaling.run_here())
    assert scaling.samples() == before


def test_mpi_is_measured_where_mpirun_starts_the_workers_and_predictions_know_which(scaling, openmpi):
    scaling.write({**STUDY, "parts": [LINKS]})
    ended_well(scaling.run_here("--launcher", "mpirun"))
    assert "MPI all-reduce" in report_of(scaling)
    by_mpi = [row for row in scaling.rows("transfers.csv") if row["operation"] == "mpi_all_reduce"]
    assert len(by_mpi) >= 2
    assert all(int(row["n"]) >= 3 and row["who"] == "at once" for row in by_mpi)
    for row in by_mpi:  # two ranks send each byte once
        assert float(row["busbw_bytes_per_s"]) == pytest.approx(int(row["num_bytes"]) / float(row["seconds"]))

    scaling.write({**STUDY, "parts": [{**TIMED, "aggregators": ["mpi"]}]})
    machine = ("--topology", str(scaling.out / "probed.yaml"), "--from", str(scaling.out))
    told = ended_well(scaling.here("predict", str(scaling.study), "--json", *machine))
    assert ("Open MPI 5." in told.stdout, "no measured launch says which MPI" in told.stdout) == (True, False)
