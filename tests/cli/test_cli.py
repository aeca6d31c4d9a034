"""The command line: bad input is one message and exit code 2; reading verbs answer without torch; what is
printed fits 80 columns, but for paths and addresses, which are never cut; `run` ends with the answer."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

import scaling.cli
from launchers.local import LocalLauncher
from scaling.cli import app, main
from scaling.report import write_report
from scaling.store import ResultsFolder
from scaling.study.session import RunResult
from topologies.schema import shipped

ROOT = Path(__file__).parents[2]
STUDY = """
name: small
kind: iteration
device: cpu
workloads:
  - {model: mlp, dataset: digits, global_batch: 96}
aggregators: [none, ring]
world_sizes: [1, 2]
scaling: strong
"""


@pytest.fixture(autouse=True)
def _no_data(monkeypatch):
    monkeypatch.delenv("SCALING_DATA_DIR", raising=False)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


@pytest.mark.parametrize(("change", "message"), [
    (("model: mlp", "model: mpl"), "unknown model 'mpl' (did you mean 'mlp'?)"),
    (("scaling: strong", "scalling: strong"), "unknown key 'scalling'; did you mean 'scaling'?"),
    (("[1, 2]", "[0]"), "world_sizes.0 is 0"),
    (("[1, 2]", "[1, 5]"), "global_batch 96 does not divide by world size 5"),
    (("ring", "rngi"), "unknown aggregator 'rngi' (did you mean 'ring'?)"),
    (("name: small", "nome: small"), "key 'name' is missing"),
    (("[none, ring]", "[{name: one_bit, threshold: median}]"), "threshold"),
    (("global_batch: 96", "local_batch: 96"), "needs global_batch"),
    (("workloads:", "workloads: ["), "no valid YAML"),
])  # fmt: skip
def test_bad_study_is_one_message_and_exit_code_2(call, study, change, message):
    study.write_text(STUDY.replace(*change))
    for verb in ("plan", "run"):
        assert message in call.refused(verb, study)


def test_unknown_study_and_list_name_what_there_is_and_a_wrong_override_what_is_allowed(call, study):
    assert "mnist" in call.refused("plan", "mnits")
    assert "models" in call.refused("list", "modells")
    assert "not of the form key=value" in call.refused("plan", study, "repeats")


@pytest.mark.parametrize("verb", ["report", "status"])
def test_unreadable_results_folder_is_one_message(call, tmp_path, verb):
    for path, message in [(tmp_path / "missing", "no results folder"), (tmp_path, "no study.yaml")]:
        assert message in call.refused(verb, path)
    broken = tmp_path / "broken"
    (broken / "runs" / "abc" / "0").mkdir(parents=True)
    (broken / "study.yaml").write_text("name: broken\n")
    (broken / "runs" / "abc" / "0" / "run.json").write_text('{"schema_version": 1, "cell_')
    assert "run.json is damaged" in call.refused(verb, broken)


def test_folder_of_another_study_is_refused_naming_the_difference(call, study, tmp_path):
    from scaling.study.overrides import load_study
    from scaling.study.prepare import prepare, this_machine
    from scaling.study.resolve import resolve

    loaded = load_study(str(study))
    prepare(ResultsFolder(tmp_path / "out"), loaded, resolve(loaded, this_machine()))
    said = "parts.0.learning_rate is not set there and 0.5 here"
    assert said in call.refused("run", study, "--out", tmp_path / "out", "learning_rate=0.5")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    assert "is not empty and holds no study" in call.refused("run", study, "--out", foreign)


def test_truncated_mnist_file_is_named_with_its_checksum(call, study, tmp_path, monkeypatch):
    from scaling.workloads.mnist import FILES

    study.write_text(STUDY.replace("digits", "mnist"))
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for file in FILES:
        (folder / file.name).write_bytes(b"\x1f\x8b truncated")
    monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path / "data"))
    err = call.refused("run", study)
    assert FILES[0].name in err
    assert FILES[0].md5 in err


def test_plan_lists_cells_launches_and_an_estimate(call, study):
    code, out, _ = call("plan", study, "--json", "repeats=3")
    plan = json.loads(out)
    assert (code, len(plan["cells"])) == (0, 5)
    assert [cell["world_size"] for cell in plan["cells"] if cell["aa_replicate"]] == [2], (
        "the A/A pair's second cell"
    )
    expected = [(repeat, size, 1 + size) for repeat in range(3) for size in (1, 2)]
    assert [(one["repeat"], one["world_size"], one["num_cells"]) for one in plan["launches"]] == expected
    assert plan["estimated_seconds"] > 0


def test_list_gives_json_with_whole_names(call):
    code, out, _ = call("list", "models", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert (code, entries["fcn-r"]["num_parameters"]) == (0, 14_205_962)
    assert set(entries["fcn-r"]) >= {"name", "num_parameters", "dataset", "source"}
    for kind in ("studies", "aggregators", "datasets"):
        assert call("list", kind)[0] == 0


def test_ctrl_c_while_a_library_starts_is_no_broken_library(monkeypatch):
    def interrupted(_):
        raise ImportError("initialization failed", name="matplotlib") from KeyboardInterrupt()

    monkeypatch.setattr(scaling.cli, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["scaling"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.parametrize("words", ["--help", "run --help", "list studies", "topology show dual-k80"])
def test_help_and_lists_of_studies_and_machines_do_not_import_torch(words):
    program = (
        "import sys; sys.argv = ['scaling', *sys.argv[1:]]\n"
        "from scaling.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "heavy = {'torch', 'numpy', 'pandas', 'scipy', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program, *words.split()], check=True, capture_output=True)


@pytest.mark.parametrize("words", ["", "run", "topology", "topology show", "list"])
def test_short_help_works_everywhere_and_list_alone_says_what_can_be_listed(words):
    done = CliRunner().invoke(app, [*words.split(), "-h"])
    assert (done.exit_code, "Usage:" in done.stdout) == (0, True)
    alone = CliRunner().invoke(app, ["list"])
    assert alone.exit_code == 0
    for kind in ("studies", "aggregators", "models", "datasets", "topologies", "experiments"):
        assert kind in alone.stdout


def test_script_finds_modules_of_the_working_folder_last_and_none_with_a_safe_path(tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "scaling"
    script.write_text(
        "import importlib.util, sys\nfrom scaling.cli import main\ntry:\n    main()\nexcept SystemExit:\n"
        "    print([importlib.util.find_spec(name).origin for name in ('numpy', 'mine') "
        "if importlib.util.find_spec(name)])\n"
    )
    for name in ("numpy", "mine"):
        (tmp_path / f"{name}.py").touch()
    found = {}
    for safe in ("", "1"):
        variables = {**os.environ, "PYTHONSAFEPATH": safe, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(script), "--version"]
        ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        found[safe] = ended.stdout
    assert (str(tmp_path / "mine.py") in found[""], str(tmp_path / "numpy.py") in found[""]) == (True, False)
    assert str(tmp_path) not in found["1"]


@pytest.mark.parametrize("words", [["list", "aggregators"], ["--help"]])
def test_reader_of_stdout_that_has_gone_is_said(words: list[str]):
    command = [sys.executable, "-m", "scaling", *words]
    ended, unread = os.pipe()
    os.close(ended)
    with os.fdopen(unread, "w") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, "the rest was not printed" in done.stderr) == (141, True)


def test_pipe_of_another_one_that_broke_is_not_taken_for_stdout(monkeypatch):
    def broken(self):
        raise BrokenPipeError(errno.EPIPE, "of a worker")

    monkeypatch.setattr("scaling.store.ResultsFolder.require", broken)
    monkeypatch.setattr(sys, "argv", ["scaling", "report", str(ROOT)])
    with pytest.raises(BrokenPipeError, match="of a worker"):
        main()


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


def test_states_of_experiments_fit_eighty_columns(call, tmp_path):
    """Of a study of kind device, where a cell has failed and one is planned."""
    folder = ResultsFolder(tmp_path / "results")
    folder.write_study({"name": "by-hand", "parts": []})
    folder.write_environment({})
    point = {"operation": "convolution", "shape": "AlexNet 11x11", "batch": 64, "choice": "older-interface"}
    for device in ("cpu", "cuda"):
        cell = {"kind": "device", "experiment": "kernel-choices", "point": point, "device": device}
        folder.plan_run(device, 0, {**cell, "threads": 1, "parameters": {}, "world_size": 1})
    record = folder.run("cuda", 0)
    folder.start_run(record, {})
    folder.fail_run(record, "rank 0: RuntimeError: " + "no such algorithm, " * 20)
    _, out, err = call("status", folder.path)
    assert "no such algorithm" in out, err
    assert too_long(out) == []


running = sys.modules[f"{scaling.cli.__name__}.run"]  # `scaling.cli.run` is the verb


@pytest.mark.parametrize("name", ["transfer-2xh200", "quickstart-2xh100"])
def test_run_ends_with_the_screen_of_the_report(name, tmp_path, without_figures, capsys):
    """Of a folder with long tables, and of one with a verdict."""
    ignored = shutil.ignore_patterns("figures")
    copied = shutil.copytree(ROOT / "results/reference" / name, tmp_path / name, ignore=ignored)
    made = write_report(ResultsFolder(copied))
    running._show(made)
    shown = capsys.readouterr().out
    assert " ".join(made.answer[0].split()) in " ".join(shown.split())
    assert f"All tables: scaling report {shlex.quote(str(made.page.parent))} --all" in shown


def test_verdict_comes_after_what_failed(monkeypatch):
    said, made = [], object()
    failed = [SimpleNamespace(cell={"kind": "transfer", "world_size": 2}, repeat=0, reason="rank 1: no")]
    outcome = RunResult(SimpleNamespace(path=Path("x")), made, failed, ["left out"], leaves_the_rest=False)
    monkeypatch.setattr("scaling.study.session.run_session", lambda *_, **__: outcome)
    monkeypatch.setattr(running, "note", said.append)
    monkeypatch.setattr(running, "load_text", lambda: "other programs take 85% of the cores")
    monkeypatch.setattr(running, "_show", said.append)
    monkeypatch.setattr(LocalLauncher, "forks_workers", False)
    with pytest.raises(typer.Exit) as ended:
        running.run("quickstart")
    assert ended.value.exit_code == 1
    warned, first, again, left_out, shown = said
    assert warned.startswith("warning: other programs take 85% of the cores")
    assert (first, "--retry-failed" in again) == ("failed: transfer, 2 workers, repeat 0: rank 1: no", True)
    assert (left_out, shown) == ("left out", made)
