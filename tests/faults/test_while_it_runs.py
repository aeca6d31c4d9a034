"""Faults of a study that runs: each is named, costs the run that it hit, and the study goes on to its end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from scaling.store import ResultsFolder
from tests.faults.commands import WORKLOAD, command_in, in_general, line_with, study_of, worker
from tests.ranks import free_port
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

FIRST_CALLS = 14
"""The checked steps and the first of the warm-up: those after them are known to be fast."""

LAST_CALL = 60


@pytest.fixture(scope="module")
def planted(draw):
    """fault -> what of it was drawn."""
    faults = {}
    for fault in ("stop", "hold", "exit", "kill", "nan"):
        first = FIRST_CALLS if fault in ("stop", "hold") else 1
        if fault == "nan":  # what is not finite when it begins fails as a wrong exchange
            first = FIRST_CALLS + 20
        faults[fault] = {"rank": draw.randrange(2), "call": draw.randrange(first, LAST_CALL)}
    faults["exit"]["code"] = draw.choice([0, 0, 3])
    print(faults)
    return faults


@pytest.fixture(scope="module")
def study(planted, tmp_path_factory):
    """A study with all of them, after its end: (its Scaling, what it said)."""
    folder = tmp_path_factory.mktemp("planted")
    plants = [
        {"name": "planted:Plant", "fault": fault, "once": str(folder / fault), **drawn}
        for fault, drawn in planted.items()
    ]
    parts = [
        {"aggregators": [*plants, "all_reduce"]},
        {"workloads": [{**WORKLOAD, "model": "planted:other_width"}]},
    ]
    command = command_in(folder)
    command.study.write_text(yaml.safe_dump({**study_of(), "parts": parts}))
    outcome = command.run_here()
    print(outcome.stderr)
    assert "Traceback" not in outcome.stderr
    assert outcome.returncode == 1, "the cell with two models has failed"
    assert not command.processes()
    return command, outcome.stderr


def record_of(command, fault):
    records = command.results().runs()
    return next(r for r in records if r.cell["aggregator_parameters"].get("fault") == fault)


def test_rank_that_is_stopped_by_a_signal(study, planted, found):
    command, said = study
    line = line_with(said, f"rank {planted['stop']['rank']} is behind", "stopped by a signal", "fault=stop")
    assert (record_of(command, "stop").state, record_of(command, "stop").deaths) == ("done", 1)
    assert "planted.py" in said, "its stack"
    found(in_general(line))


def test_rank_that_is_stuck_in_c_code_with_the_interpreters_lock(study, planted, found):
    command, said = study
    line = line_with(said, f"rank {planted['hold']['rank']} is behind", "fault=hold")
    assert "stopped" not in line
    assert re.search(r'planted.py", line \d+ in _go_wrong', said), "its stack"
    assert (record_of(command, "hold").state, record_of(command, "hold").deaths) == ("done", 1)
    found(in_general(line))


def test_rank_that_exits_without_a_word(study, planted, found):
    command, said = study
    rank, code = planted["exit"]["rank"], planted["exit"]["code"]
    line = line_with(said, f"rank {rank} left first", f"with exit code {code}, without a word", "fault=exit")
    assert (record_of(command, "exit").state, record_of(command, "exit").deaths) == ("done", 1)
    found(in_general(line).replace(f"code {code}", "code N"))


def test_rank_that_is_killed(study, planted, found):
    command, said = study
    line = line_with(said, f"rank {planted['kill']['rank']} left first", "killed by SIGKILL", "fault=kill")
    assert (record_of(command, "kill").state, record_of(command, "kill").deaths) == ("done", 1)
    found(in_general(line))


def test_gradients_that_are_not_finite_in_a_timed_cell(study, found):
    command, _ = study
    record = record_of(command, "nan")
    assert record.state == "done"
    (note,) = [note for note in record.notes if "not finite" in note]
    assert note.startswith("loss and gradients and parameters not finite (NaN or infinite) after the timed")
    found(note)


def test_ranks_that_build_different_models(study, found):
    command, _ = study
    (record,) = [r for r in command.results().runs() if r.cell["model"] == "planted:other_width"]
    assert record.state == "failed"
    said = "rank 1 has built another model than rank 0: 0.weight is [9, 20] float32 on rank 1"
    assert said in record.reason
    found(record.reason, "nothing: that cell fails, the others run")


def test_everything_else_of_the_study_is_measured(study, found):
    command, _ = study
    others = [r for r in command.results().runs() if r.cell["aggregator"] == "all_reduce"]
    states = {record.cell["model"]: record.state for record in others}
    assert states == {"mlp": "done", "planted:other_width": "failed"}
    assert (command.out / "report.html").exists()
    found("the study goes on with the next cell and ends with its report")


def test_ranks_that_are_started_with_other_arguments_studies_or_code(tmp_path, found):
    port, workers = free_port(), []
    for rank in ("0", "1"):
        own = tmp_path / rank
        own.mkdir()
        (own / "of_this_rank.py").write_text(f"from planted import Plant\nrank = {rank}\n")
        (own / "study.yaml").write_text(
            yaml.safe_dump(study_of(aggregators=[{"name": "of_this_rank:Plant"}], iterations=6 + int(rank)))
        )
        command = command_in(own)
        command.study = Path("study.yaml")
        path = os.pathsep.join([str(own), command.environment["PYTHONPATH"]])
        workers.append(worker(command, rank, port, f"seed={rank}", PYTHONPATH=path))
    said = [one.communicate(timeout=LIMIT_S)[1] for one in workers]
    assert [one.returncode for one in workers] == [2, 2]
    assert "Traceback" not in "".join(said)
    line = line_with(said[0], "error: ranks were not started with the same: arguments: ", "on rank 1")
    assert "the study file study.yaml: " in line
    assert "the code of of_this_rank: " in line
    said = "error: ranks were not started with the same: arguments: A on rank N, B on rank 0"
    found(f"{said}; the study file ...")


def test_port_that_another_program_holds(tmp_path, found):
    command = command_in(tmp_path)
    command.study.write_text(yaml.safe_dump(study_of(world_sizes=[1])))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        one = worker(command, "0", port, WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        said = one.communicate(timeout=LIMIT_S)[1]
    assert one.returncode == 2
    assert "Traceback" not in said
    line = line_with(said, f"error: port {port} of this host")
    found(line.replace(str(port), "N"))


def test_terminal_that_has_ascii_alone(study):
    command, _ = study
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    outcome = command.run(**ascii_alone)
    assert "Traceback" not in outcome.stderr
    words = [sys.executable, "-m", "scaling", "report", str(command.out), "--all"]
    environment = {**command.environment, **ascii_alone}
    shown = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.search(r"all_reduce .* \? ", shown), "the table of all cells, with ? for its dashes"


def zombies_of(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and fields[1] == str(pid):
            found.append(path.parent.name)
    return found


def test_ctrl_c_twice(scaling, draw, found):
    scaling.study.write_text(yaml.safe_dump(study_of(aggregators=["faulty_aggregators:Slow"])))
    process = scaling.start()
    scaling.wait_for_worker()
    process.send_signal(signal.SIGINT)
    time.sleep(draw.uniform(0, 0.5))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert "Traceback" not in said
    assert process.returncode in (130, -signal.SIGINT), said  # the second may come when all is over
    assert set(scaling.states().values()) == {"planned"}
    assert zombies_of(os.getpid()) == []
    lost = "nothing: the run that was cut off is planned again"
    found("stopping the workers; what is finished is kept", lost)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_process_that_forks_the_ranks_is_killed(scaling, draw, found):
    scaling.study.write_text(yaml.safe_dump(study_of(aggregators=["faulty_aggregators:Slow"])))
    process = scaling.start()
    leader = parent_of(scaling.wait_for_worker())
    name, pid = draw.choice([("leader of the launch", leader), ("zygote", parent_of(leader))])
    os.kill(pid, signal.SIGKILL)
    said = []
    while "a run was cut off" not in (line := process.stderr.readline()):
        assert line, "".join(said)
        said.append(line)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert line.startswith(f"a run was cut off: the {name}")
    assert f"(pid {pid}) was ended by SIGKILL, see " in line
    assert not [one for one in said if "left first" in one], "no rank is blamed"
    found("a run was cut off: the leader of the launch, or the zygote that forks the workers, (pid N) was "
          "ended by SIGKILL", "nothing: the run is tried once more")  # fmt: skip


def test_disk_that_is_full(tmp_path, draw, found, need):
    small = tmp_path / "small"
    small.mkdir()
    size = draw.randrange(60, 400)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", str(small)]
    need(
        os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0,
        "a small file system can be mounted by root alone",
    )
    try:
        command = command_in(tmp_path)
        command.out = small / "out"
        parts = [{}, {"iterations": 4000, "aggregators": ["ring"]}]
        command.study.write_text(yaml.safe_dump({**study_of(), "parts": parts}))
        outcome = command.run()
        assert outcome.returncode == 2, outcome.stderr
        assert "Traceback" not in outcome.stderr
        line = line_with(outcome.stderr, "error: ", "cannot be written: the disk is full", "another folder")
        records = ResultsFolder(command.out).runs()
        assert "running" not in {record.state for record in records}
        for record in records:
            if record.state == "done":
                assert len(ResultsFolder(command.out).samples(record.cell_id, 0)) == 2
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    text = re.sub(r"error: \S+: ", "error: PATH: ", line)
    found(re.sub(r"[\d.]+ [kM]B (needed|free)", r"N \1", text))
