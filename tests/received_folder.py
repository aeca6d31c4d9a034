"""A results folder as a stranger may hand it over: a few cells of each kind, of committed results."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from scaling.store import ResultsFolder, RunRecord

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
TAKEN = {
    **{"libraries-2xh200": ("iteration", 6), "transfer-2xh200": ("transfer", 1)},
    **{"device-surface-regression-cpu": ("device", 3), "converge-fcn-2xh200": ("convergence", 2)},
}
"""Committed folder -> kind of its cells, and how many of them are taken."""

SHEET = {
    **{"world_size": 4, "num_steps": 50, "trained_on": "digits", "measured_on": "a CPU"},
    **{"first_error_ratio": 0.5, "sum_error_ratio": 0.01, "replicas_agree": True, "replicas_off_by": 0.0},
    **{"metered_bytes": 1000, "exact_bytes": 32_000, "encode_bytes_per_s": 2e9, "decode_bytes_per_s": None},
    "break_even_bytes_per_s": 0.25e9,
}


def received_folder(
    path: Path, taken: Mapping[str, tuple[str, int]] = TAKEN, num_lines: int = 60
) -> ResultsFolder:
    """Makes one at `path`; of each rank's samples there are `num_lines` at most."""
    made = ResultsFolder(path)
    first = ResultsFolder(REFERENCE / next(iter(taken)))
    made.write_study(first.study())
    made.write_environment(first.environment())
    made.write_topology(yaml.safe_load(first.topology_text() or ""))
    made.write_launch_times(first.launch_times()[0])
    for name, (kind, count) in taken.items():
        source = ResultsFolder(REFERENCE / name)
        records = [one for one in source.runs() if one.cell["kind"] == kind and one.state == "done"]
        for record in sorted(records, key=lambda one: (one.cell["world_size"], one.repeat))[:count]:
            made.write_run(record)
            for rank, rows in enumerate(source.samples(record.cell_id, record.repeat)):
                made.sample_writer(record.cell_id, record.repeat, rank)(rows[:num_lines])
    timed = [record for record in made.runs() if record.cell["kind"] == "iteration"]
    interval = {"iteration_s": 0.01, "iteration_s_low": 0.008, "iteration_s_high": 0.012}
    more = {"compute_s": 0.005, "exposed_comm_s": 0.005, "notes": ["compute"]}
    more |= {"transport": "sends", "topology": "x"}
    names = {"model": "mlp", "aggregator": "ring", "step": "eager", "world_size": 2}
    made.write_predictions([{"cell_id": record.cell_id, **names, **interval, **more} for record in timed])
    made.write_sheet("sign", SHEET)
    failed = RunRecord("0123456789ab", 0, dict(timed[0].cell))
    made.write_run(failed)
    made.start_run(failed, {"launcher": "local", "host": "here"})
    made.fail_run(failed, "out of memory")
    return made
