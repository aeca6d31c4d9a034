"""What a command finds around it that is not as it should be: variables, streams, folders, places, code."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.faults.commands import command_in, study_of, worker
from tests.faults.mutants import complaint, run
from tests.faults.valid_inputs import PREDICTED
from tests.ranks import free_port
from tests.store.test_archive import make
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

ALONE = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
NOTHING = "nothing: nothing has begun"
PLUG_INS = {
    "sys.exit(0)": "SystemExit: 0",
    "raise SystemExit('bye')": "SystemExit: bye",
    "raise GeneratorExit": "GeneratorExit: ",
    "raise RuntimeError('no licence')": "RuntimeError: no licence",
    "raise MemoryError": "MemoryError: ",
    "load = lambda: load()\nload()": "RecursionError: maximum recursion depth",
    "import a_plug_in_of_a_test": "has no attribute 'Own'",
}
"""Code of a plug-in -> what is said of it."""


@pytest.fixture
def command(tmp_path):
    made = command_in(tmp_path)
    made.study.write_text(yaml.safe_dump(study_of(world_sizes=[1], iterations=10, warmup=2)))
    return made


def started(command, *words):
    options = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    return subprocess.run(words, cwd=command.folder, env=command.environment, **options)


def said_by(one):
    said = one.communicate(timeout=LIMIT_S)[1]
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("code", PLUG_INS)
@pytest.mark.parametrize("key", ["aggregators", "model"])
def test_plug_in_that_raises_when_it_is_imported(tmp_path, monkeypatch, key, code, found):
    (tmp_path / "a_plug_in_of_a_test.py").write_text(f"import sys\n{code}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    study = yaml.safe_load(PREDICTED)
    named = "a_plug_in_of_a_test:Own"
    if key == "model":
        study["workloads"][0]["model"] = named
    else:
        study["aggregators"].append(named)
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**study, "device": "cpu"}))
    ended = run(("plan", path))
    sys.modules.pop("a_plug_in_of_a_test", None)
    assert (ended.code, complaint(("plan", path), ended, tmp_path)) == (2, None)
    assert "cannot load a_plug_in_of_a_test:Own: " in ended.err
    assert PLUG_INS[code] in ended.err
    said = "error: STUDY: aggregator 'MODULE:NAME': cannot load MODULE:NAME: what it raises"
    found(said, NOTHING)


WRONG = {
    "WORLD_SIZE": (str(10**20), "it must be at most 2147483647"),
    "RANK": ("one", "it must be a number"),
    "SCALING_JOIN_TIMEOUT_S": ("soon", "it must be a number of seconds above 0"),
    "SCALING_LAUNCH": ("rubbish", "which `scaling run` sets, is damaged"),
}


@pytest.mark.parametrize("variable", WRONG)
def test_variable_of_the_environment_that_is_wrong(command, variable, found):
    value, said = WRONG[variable]
    one = worker(command, "0", free_port(), **{**ALONE, variable: value})
    lines = [line for line in said_by(one).splitlines() if line.startswith("error: ")]
    assert one.returncode == 2
    assert [variable in line and said in line for line in lines] == [True]
    found("error: VARIABLE is VALUE; it must be ...", NOTHING)


def test_join_timeout_that_is_wrong_starts_no_launch_and_a_wrong_backend_of_matplotlib_is_no_fault(command):
    outcome = command.run_here(SCALING_JOIN_TIMEOUT_S="soon")
    assert outcome.returncode == 2
    said = "error: SCALING_JOIN_TIMEOUT_S is 'soon'; it must be a number of seconds above 0\n"
    assert outcome.stderr.splitlines(keepends=True)[-1] == said  # a busy machine is warned of before
    outcome = command.run(MPLBACKEND="rubbish")
    assert outcome.returncode == 0, outcome.stderr
    assert (command.out / "report.html").is_file()


def test_address_of_rank_0_that_nobody_has(command, found):
    command.study.write_text(yaml.safe_dump(study_of()))
    one = worker(command, "1", 29555, MASTER_ADDR="nowhere.invalid", SCALING_JOIN_TIMEOUT_S="3")
    said = said_by(one)
    line = "rank 1 cannot join the other workers: nobody answered at nowhere.invalid, port 29555"
    assert (one.returncode, said.count("\n")) == (2, 1)
    assert line in said
    said = said.strip().replace("rank 1", "rank N").replace("3 s", "N s")
    found(said.replace("nowhere.invalid, port 29555", "ADDRESS, port N"), NOTHING)


def test_standard_streams_that_are_closed(command, found):
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    one = worker(command, "0", free_port(), before=closed, **ALONE)
    said_by(one)
    assert one.returncode == 0
    assert set(command.states().values()) == {"done"}
    found("nothing can be said; the run is measured")


def test_folder_that_was_removed_while_a_command_is_in_it(command, found):
    gone = command.folder / "gone"
    gone.mkdir()
    words = [sys.executable, "-m", "scaling", "list", "aggregators"]
    ended = started(command, "sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: the current folder was removed; go to another one, as with `cd`\n"
    found(ended.stderr.strip(), NOTHING)


def test_limit_of_open_files_that_is_too_low(command, found):
    words = [sys.executable, "-m", "scaling", "run", str(command.study), "--out", str(command.out)]
    ended = started(command, "sh", "-c", 'ulimit -n 12 && exec "$@"', "sh", *words)
    assert ended.returncode == 2
    assert ended.stderr == "error: at most 12 files may be open (`ulimit -n`); at least 64 are needed\n"
    found(ended.stderr.strip().replace("12", "N"), NOTHING)


@pytest.mark.parametrize("place", ["a file", "a link to nothing", "a link to itself"])
def test_folder_of_runs_whose_place_something_else_takes(tmp_path, place, found):
    folder = make(tmp_path / "results")
    runs = folder.path / "runs"
    runs.rename(tmp_path / "runs")
    runs.touch() if place == "a file" else runs.symlink_to("nothing" if "nothing" in place else "runs")
    for words in [("status", folder.path), ("export", folder.path, "--archive"), ("report", folder.path)]:
        ended = run(words)
        assert (ended.code, complaint(words, ended, tmp_path)) == (2, None)
        assert f"{runs} is no folder" in ended.err
    said = "error: PATH/runs is no folder; put it back, or remove what stands in its place"
    found(said, "nothing: nothing is written")


@pytest.mark.parametrize("verb", ["run", "status", "plan"])
def test_name_whose_bytes_are_no_text(verb, found):
    ended = run((verb, os.fsdecode(b"out\xff\xc3")))
    assert ended.code == 2
    assert ended.err.startswith("error: 'out\\\\udcff\\\\udcc3' is no text here: its bytes are no utf-8; ")
    said = "error: NAME is no text here: its bytes are no utf-8; use another name, or a locale with UTF-8"
    found(said, NOTHING)


@pytest.mark.parametrize("verb", ["status", "report", "plan"])
def test_name_that_is_too_long_for_the_file_system(tmp_path, verb, found):
    path = tmp_path / ("x" * 300)
    ended = run((verb, path))
    assert (ended.code, complaint((verb, path), ended, tmp_path)) == (2, None)
    assert "File name too long" in ended.err or "no study " in ended.err
    found("error: PATH: cannot be read or written: File name too long", NOTHING)


def test_results_folder_whose_name_looks_like_an_option(command, found):
    ended = started(command, sys.executable, "-m", "scaling", "run", "study.yaml", "--out=-x")
    assert ended.returncode == 0, ended.stderr
    assert os.path.isfile(command.folder / "-x" / "report.html")
    found("it is taken as any other name")
