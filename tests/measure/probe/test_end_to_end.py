"""`scaling topology detect` and `probe` as a user calls them; the probe with two processes on the CPU."""

import csv
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.report.machine_pictures import draw
from tests.waiting import LIMIT_S, is_running, still_there
from topologies.schema import load

ROOT = Path(__file__).parents[3]


def started(folder, *arguments):
    # With TMPDIR the workers' command lines name this folder.
    own = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "scaling", "topology", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    return subprocess.run(command, cwd=folder, env={**os.environ, **own}, **options)


def processes_of(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace")
            if str(folder) in words and is_running(int(path.parent.name)):
                found.append(words.split("\0"))
    return found


@pytest.mark.processes
def test_probe_of_two_processes_gives_a_machine_that_loads_draws_and_simulates(tmp_path):
    done = started(tmp_path, "probe", "--world-size", 2, "--seconds", 1, "--out", "box.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    topology = load(tmp_path / "box.yaml")
    assert draw(topology).startswith("<svg")
    assert simulate(ring(2), topology, 1 << 20).seconds > 0
    stamp = "measured by scaling topology probe on 20"
    measured = ("memory.bandwidth_bytes_per_s", "cpu.reduce_bytes_per_s", "cpu.bf16_flops_per_s")
    for figure in (*measured, "message_latency_s.host"):
        assert topology.sources[figure].startswith(stamp), figure
    assert "2 CPU processes, torch " in topology.sources["message_latency_s.host"]
    with (tmp_path / "box.samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"host_copy", "host_sum", "send", "shift", "all_reduce"} <= {row["operation"] for row in rows}
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert still_there(lambda: processes_of(tmp_path)) == []
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["box.environment.json", "box.samples.csv", "box.yaml"]
    assert json.loads((tmp_path / files[0]).read_text())["versions"]["torch"]


@pytest.mark.processes
def test_probe_that_mpirun_starts_has_mpis_all_reduce_too(tmp_path, openmpi):
    arguments = ("--launcher", "mpirun", "--world-size", 2, "--seconds", 1, "--out", "box.yaml")
    done = started(tmp_path, "probe", *arguments)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "box.samples.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["operation"] == "mpi_all_reduce"]
    seconds = [float(row["seconds"]) for row in rows]
    assert len(seconds) >= 6, "three of each of two sizes"
    assert min(seconds) > 0
    assert "mpi_all_reduce ranks 0,1" in (tmp_path / "box.yaml").read_text()
    assert "Open MPI v" in load(tmp_path / "box.yaml").sources["message_latency_s.host"]
    assert still_there(lambda: processes_of(tmp_path)) == []


@pytest.mark.processes
def test_workers_that_fail_are_told_with_their_last_words(tmp_path):
    text = "import os\nif 'RANK' in os.environ:\n    raise SystemExit('no luck')\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    done = started(tmp_path, "probe", "--world-size", 2, "--seconds", 1)
    assert (done.returncode, "error: the workers' launch ended with exit code 1" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr.partition("the last that they said")[0]
    assert done.stdout == ""


class TestDetect:
    def test_yaml_goes_to_stdout_and_is_a_machine(self, tmp_path):
        done = started(tmp_path, "detect")
        assert done.returncode == 0, done.stderr
        (tmp_path / "box.yaml").write_text(done.stdout)
        assert load(tmp_path / "box.yaml").sources["memory.bandwidth_bytes_per_s"].startswith("assumption")

    def test_file_is_written_and_json_printed(self, call):
        code, out, err = call("topology", "detect", "--out", "box.yaml", "--json")
        assert code == 0, err
        assert json.loads(out)["devices"]
        assert "machine file: box.yaml" in err
        assert call("topology", "show", "box.yaml")[0] == 0

    @pytest.mark.parametrize(("arguments", "message"), [
        (["detect", "--out", "none/box.yaml"], "machine file none/box.yaml: cannot be written"),
        (["probe", "--out", "none/box.yaml"], "none/box.yaml: there is no folder none; make it first"),
        (["probe", "--seconds", "0"], "--seconds is 0; it has to be positive"),
    ])  # fmt: skip
    def test_bad_input_is_one_message_and_exit_code_2(self, call, arguments, message):
        code, _, err = call("topology", *arguments)
        assert (code, message in err, "Traceback" in err) == (2, True, False)
