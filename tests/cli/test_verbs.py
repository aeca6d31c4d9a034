"""Every verb: help with an example in no time, JSON where it reads, exit codes, no colour, completion."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from scaling.analysis import compare, summary
from scaling.analysis.comparison import LEVEL_SHARE
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.cli import app
from scaling.store import ResultsFolder

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
SMALL = REFERENCE / "planted-faults-4xh200"
TIMED = REFERENCE / "mnist-4xh200"
QUICK = REFERENCE / "quickstart-2xh100"
MOVED = REFERENCE / "transfer-2xh200"


def commands():
    """(words, command) of every verb, those of groups too."""

    def walk(words, command):
        for name, own in sorted(getattr(command, "commands", {}).items()):
            if hasattr(own, "commands"):
                yield [*words, name], own
                yield from walk([*words, name], own)
            else:
                yield [*words, name], own

    return list(walk([], typer.main.get_command(app)))


def numbers():
    """(words, flag, option) of every option that takes a number; any number is a seed."""
    for words, command in COMMANDS:
        for name, hint in get_type_hints(command.callback or int, include_extras=True).items():
            if get_origin(hint) is not Annotated or not {int, float} & {*types_of(hint)}:
                continue
            option = get_args(hint)[1]
            declared = (option.default, *(option.param_decls or ()), f"--{name.replace('_', '-')}")
            flag = next(word for word in declared if str(word).startswith("--"))
            if flag != "--seed":
                yield pytest.param(words, flag, option, id=" ".join([*words, flag]))


def types_of(hint):
    of_the_option = get_args(hint)[0]
    return get_args(of_the_option) or (of_the_option,)


@pytest.fixture(scope="module", autouse=True)
def _committed_folders_are_read_once():
    """None of them is changed here: their cells and summaries are kept."""
    cells, tables = {}, {}

    def read(folder):
        if not folder.path.is_relative_to(REFERENCE):
            return read_cells(folder)
        if folder.path not in cells:
            cells[folder.path] = read_cells(folder)
        return cells[folder.path]

    def build(name, of):
        if not any(of is kept for kept in cells.values()):
            return build_table(name, of)
        if id(of) not in tables:
            tables[id(of)] = build_table(name, of)
        return tables[id(of)].copy()

    with pytest.MonkeyPatch.context() as patch:
        for module in (summary, compare):
            patch.setattr(module, "read_cells", read)
        patch.setattr(summary, "build_table", build)
        yield


COMMANDS = commands()
READING = ["compare", "recommend", "explain", "status", "report", "plan", "list", "doctor", "verify"]


def ids(entry):
    return " ".join(entry) if isinstance(entry, list) else None


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=ids)
def test_help_of_every_verb_has_an_example_of_it_and_those_that_read_have_json(words, command):
    text = command.epilog or ""
    assert "Example" in text, f"`scaling {' '.join(words)}` has no example"
    assert f"scaling {' '.join(words)}" in text
    assert command.help, "and says what it does"
    if " ".join(words) in READING:
        assert "--json" in {option for parameter in command.params for option in parameter.opts}


def test_compare_of_a_folder_with_itself_finds_nothing_and_passes_a_gate(call):
    code, out, err = call("compare", TIMED, TIMED, "--fail-if", "slower > 5%")
    assert (code, "environments: the same" in out, "0 slower" in out) == (0, True, False)
    assert not re.search(r"\bslower\*?$", out, re.MULTILINE)
    assert "could not have been found" in err, "three launches of the host strategies are too unsteady for 5%"


def test_compare_gate_ends_with_3_and_names_the_cells(call):
    before, after = REFERENCE / "fcn-r-4xh200", TIMED
    code, out, err = call("compare", before, after, "--fail-if", "slower > 5%", "--json")
    comparison = json.loads(out)
    called = [cell for cell in comparison["cells"] if cell["verdict"] == "slower" and cell["ratio"] > 1.05]
    slower = [cell for cell in called if cell["p_adjusted"] < LEVEL_SHARE * comparison["family_wise_level"]]
    assert code == 3
    assert slower
    assert all(cell["p_adjusted"] < comparison["family_wise_level"] for cell in called)
    named = [line for line in err.splitlines() if line.startswith("slower: a step of")]
    assert len(named) == len(slower), "a line on the shift of all cells may follow"
    assert [one["field"] for one in comparison["environment"]][:1] == ["memory_bytes"]
    assert call("compare", before, after, "--fail-if", "slower > 900%")[0] == 0


def test_recommend_is_decided_with_0_and_one_launch_sets_no_exit_code(call):
    code, out, _ = call("recommend", TIMED, "--json")
    (found,) = json.loads(out)
    assert (code, found["state"], found["choice"]["aggregator"]) == (0, "decided", "all_reduce")
    out = call.printed("recommend", TIMED, "--objective", "time-to-accuracy")
    assert "One launch is no verdict: repeats=3 to decide." in " ".join(out.split())


def test_explain_names_the_slow_rank_that_was_planted(call):
    code, out, _ = call("explain", SMALL, "slow_rank@4", "--json")
    (cell,) = json.loads(out)
    first = cell["findings"][0]
    assert (code, first["rule"]) == (0, "slow_rank")
    assert (first["values"]["rank"], first["values"]["phase"]) == (1, "unattributed")
    assert first["values"]["lost_s"] == pytest.approx(2e-3, rel=0.2), "what was planted"
    assert first["sentence"] in " ".join(call("explain", SMALL)[1].split()), "also without a cell"


def test_explain_says_that_no_step_was_timed_where_only_trainings_are_and_watch_ends_by_itself(call):
    out = call.printed("explain", REFERENCE / "resnet-56-original-4xh200")
    said = " ".join(out.partition("What limits each setting:")[2].split())
    assert said.startswith("not known: no steps were timed here")
    assert json.loads(call.printed("status", SMALL, "--watch", "--json"))["is_over"] is True


@pytest.mark.parametrize(("arguments", "message"), [
    (("compare", SMALL, "nowhere"), "no results folder nowhere"),
    (("compare", SMALL, TIMED), "no cell in common"),
    (("compare", SMALL, MOVED), f"{MOVED} has no cell that `compare` reads"),
    (("recommend", MOVED), "`scaling report"),
    (("compare", SMALL, SMALL, "--fail-if", "slow"), "allowed: 'slower > P%'"),
    (("compare", SMALL, SMALL, "--level", "2"), "a probability between 0 and 1"),
    (("recommend", SMALL, "--objective", "money"), "allowed: 'time', 'time-to-accuracy'"),
    (("recommend", SMALL, "--objective", "time-to-accuracy"), "convergence with target_accuracy"),
    (("explain", SMALL, "rign@4"), "slow_rank@4"),
    (("export", SMALL, "--format", "xml"), "allowed: chrome, mllog, csv, extra-p"),
    (("export", SMALL, "--format", "extra-p"), "two world sizes"),
    (("status", "nowhere", "--watch"), "no results folder nowhere"),
    *((("export", SMALL, *words), "for a whole folder") for words in
      (("slow_rank@4", "--archive"), ("--archive", "--unarchive"))),
])  # fmt: skip
def test_errors_are_one_message_that_says_what_to_do(call, arguments, message):
    assert message in call.refused(*arguments)


@pytest.mark.parametrize("arguments", [
    ("compare", TIMED, TIMED), ("recommend", TIMED), ("explain", TIMED), ("explain", SMALL, "slow_rank@4"),
    ("status", SMALL), ("status", SMALL, "--watch"),
], ids=lambda words: str(words[0]))  # fmt: skip
def test_text_fits_80_columns_without_colour(call, monkeypatch, arguments):
    for name, value in {"NO_COLOR": "1", "COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    code, text, err = call(*arguments)
    assert code == 0, err
    shown = re.sub(r"\x1b\[[\d;]*m", "", text)
    lines = [line for line in shown.splitlines() if not line.startswith("  scaling run ")]  # to be pasted
    assert max(map(len, lines)) <= 80
    assert not re.search(r"\x1b\[(?:\d+;)*[349]\d", text), "bold perhaps, but no colour"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_a_shell_calls_the_program(shell):
    environment = {**os.environ, "_SCALING_COMPLETE": f"source_{shell}"}
    program = "import sys; sys.argv = ['scaling']; from scaling.cli import app; app(prog_name='scaling')"
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "_SCALING_COMPLETE" in shown.stdout
    assert "scaling" in shown.stdout


def test_reading_verbs_never_import_torch():
    program = (
        "import sys\n"
        "from scaling.cli import main\n"
        "for line in sys.argv[1:]:\n"
        "    sys.argv = ['scaling', *line.split('|')]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules, line\n"
    )
    lines = [f"compare|{SMALL}|{SMALL}", f"recommend|{QUICK}", f"explain|{SMALL}", f"export|{SMALL}"]
    subprocess.run([sys.executable, "-c", program, *lines], check=True, stdout=subprocess.DEVNULL)


def test_long_titles_of_tables_are_wrapped():
    from rich.console import Console

    from scaling.analysis.summary import summary_table
    from scaling.report.terminal import render_tables

    table = summary_table(ResultsFolder(SMALL))
    table["model"] = "mlp(hidden=[1024, 1024, 1024, 1024, 1024, 1024])"
    console = Console(soft_wrap=True, width=80, record=True, file=io.StringIO())
    for one in render_tables(table):
        console.print(one)
    assert max(map(len, console.export_text().splitlines())) <= 80


def test_archived_folder_gives_every_verb_the_same(call, tmp_path):
    study = tmp_path / SMALL.name
    shutil.copytree(SMALL, study, ignore=shutil.ignore_patterns("figures", "report.html"))
    assert call("export", study, "--unarchive")[0] == 0
    kept = [run for run in ResultsFolder(study).runs() if run.cell["aggregator"] in ("none", "slow_rank")]
    for path in study.glob("runs/*"):
        if path.name not in {run.cell_id for run in kept}:
            shutil.rmtree(path)
    verbs = [
        ("status", study, "--json"), ("explain", study, "--json"), ("recommend", study, "--json"),
        ("compare", study, SMALL, "--json"), ("export", study),
        ("export", study, "slow_rank@4", "--format", "chrome"),
    ]  # fmt: skip
    before = [call(*arguments) for arguments in verbs]
    code, out, err = call("export", study, "--archive")
    assert (code, out) == (0, "")
    said = f"is archived: runs {len(kept)} done; samples.csv.gz and runs.jsonl.gz hold what was in runs/"
    assert said in " ".join(err.split())
    assert not (study / "runs").exists()
    assert ([call(*arguments) for arguments in verbs], call("export", study, "--unarchive")[0]) == (before, 0)
    assert len(list(study.glob("runs/*/*/run.json"))) == len(kept) > 1


def test_numbers_of_workers_without_a_place_are_said_by_recommend(call):
    folder = SMALL.parent / "learning-cifar-2xh200"
    words = ("recommend", folder, "--objective", "time-to-target", "--topology", "hgx-h200", "--world-sizes")
    code, out, err = call(*words, "8,16")
    assert (code, "fastest is 8 GPUs" in out) == (0, True)
    assert "not predicted: hgx-h200: 16 ranks, but 8 places" in err
    code, out, err = call(*words, "16")
    assert (code, out, "nothing was predicted: hgx-h200 has 8 GPUs" in err) == (2, "", True)


@pytest.mark.parametrize("words", [("--into", "nowhere"), ("--into=nowhere",)])
def test_renamed_options_work_one_version_more_with_a_warning(call, words):
    code, _, err = call("verify", "one_bit", *words)
    assert (code, err.startswith("warning: --into is now called --save-to")) == (2, True)
    assert "no results folder nowhere" in err


@pytest.mark.parametrize(("words", "flag", "option"), list(numbers()))
def test_number_that_no_machine_has_is_refused(words, flag, option):
    if flag == "--level":
        pytest.skip("compare says itself that it is below 1")
    assert option.max is not None
    ended = CliRunner().invoke(app, [*words, flag, str(10**26)])
    assert (ended.exit_code, f"Invalid value for '{flag}'" in ended.output) == (2, True)


def test_help_groups_the_verbs(call):
    text = call("--help")[1]
    places = [text.index(f"─ {group} ─") for group in ["Measure", "Read", "Predict", "Prove", "Cluster"]]
    assert (places, "─ Commands ─" in text) == (sorted(places), False)
    assert places[0] < text.index("│ run ") < places[1] < text.index("│ report ") < places[2]
