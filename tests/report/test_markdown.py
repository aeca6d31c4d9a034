"""The report in other forms: for a pull request, as tables to be loaded, and its findings in words."""

import ast
import csv
import io
import json
import re
import struct
from pathlib import Path

import jinja2
import pytest

import scaling
from scaling.analysis.explain import RULES
from scaling.analysis.findings import Finding
from scaling.analysis.samples import read_cells
from scaling.errors import ScalingError
from scaling.report import summary_table, write_report
from scaling.report.exports import FORMATS
from scaling.report.exports.logs import event_files, masked_crc, record, scalar_event
from scaling.report.text import macros, next_experiment, text_of
from scaling.store import ResultsFolder


@pytest.fixture
def filled(study, epoch_line):
    """Two kinds of cells, a note with markup in it, a failed cell."""
    for size in (1, 2):
        for aggregator, slower in (("none", 1.0), ("ring", 1.2)):
            steps = [[slower / size, 1.01 * slower / size]] * 3
            aggregator_label = f"{aggregator}(a=[1|2])"
            study.add_steps(steps, aggregator=aggregator, aggregator_label=aggregator_label, world_size=size)
    study.add([[[epoch_line(1, 1.0, 0.5, 0.9)]]], kind="convergence", notes=["a *note* with <marks>"])
    study.add(["failed: killed by <signal> 9"], aggregator="tree", world_size=2)
    return study.folder


def test_markdown_says_what_the_page_says_in_tables_and_markup_that_are_well_formed(filled):
    made = write_report(filled)
    text = made.markdown()
    assert text.startswith("# by-hand: how many workers\n")
    for figure in (filled.path / "figures").glob("*.svg"):
        assert f"(figures/{figure.name})" in text
    for row in made.as_dict()["cells"]:
        assert row["cell_id"] in text
    for shown in ("> Use 2 workers", "## The answer", "## Failed cells", "cpu.usable_cores"):
        assert shown in text
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("| ---")]
    assert len(heads) >= 3
    for at in heads:
        width = fields(lines[at])
        assert fields(lines[at - 1]) == width
        below = at + 1
        while lines[below].startswith("|"):
            assert fields(lines[below]) == width
            below += 1
        assert below > at + 1
    assert r"ring(a=\[1\|2\])" in text
    assert (r"a \*note\* with &lt;marks>" in text, "<signal>" in text) == (True, False)
    assert text.count("<details>") == text.count("</details>") >= 1


def fields(line):
    return line.replace(r"\|", "").count("|") - 1


@pytest.mark.usefixtures("without_figures")
def test_command_prints_markdown_or_json_but_not_both(filled, call):
    assert call.printed("report", filled.path, "--markdown").startswith("# by-hand")
    assert json.loads(call.printed("report", filled.path, "--json"))["cells"]
    assert call("report", filled.path, "--json", "--markdown")[0] != 0


REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "results" / "reference"


@pytest.mark.parametrize("name", ["mnist-4xh200", "gpt-2xh200"])
def test_cells_are_the_summary_and_their_times_are_those_of_the_timed_steps(name):
    """In the first all steps have phases and count; in the second profiled steps are others."""
    results = scaling.load(REFERENCE / name)
    assert results.cells.equals(summary_table(ResultsFolder(REFERENCE / name)))
    steps = results.samples[results.samples.timed]
    expected = (True,) * 2 if name == "mnist-4xh200" else (False,) * 2
    assert (steps.profiled.any(), steps.profiled.all()) == expected
    slowest = steps.groupby(["cell_id", "repeat", "iteration"]).step_s.max()
    found = (slowest.groupby("cell_id").mean() / results.cells.set_index("cell_id").iteration_s).dropna()
    assert found.between(0.95, 1.05).all()  # gaps, and how launches are combined
    assert len(found) > 10


def test_findings_begin_with_the_verdicts_and_samples_of_every_kind_are_rows():
    findings = scaling.load(REFERENCE / "gpt-2xh200").findings
    assert findings.kind.iloc[0] == "verdict"
    assert findings.kind.nunique() > 3
    assert findings.text.str.len().min() > 0
    assert scaling.load(REFERENCE / "converge-fcn-2xh200").samples.test_accuracy.notna().any()
    assert scaling.load(REFERENCE / "device-batch-sizes-cpu").samples.seconds.notna().any()


def test_the_example_of_the_page_runs(monkeypatch, capsys):
    page = (REPOSITORY / "docs" / "how-to" / "own-analysis.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(REPOSITORY)
    exec(code, {})
    assert "fcn-r" in capsys.readouterr().out


PACKAGE = Path(__file__).parents[2] / "scaling"


def kinds_in_code():
    """The kinds that are written out where a finding is made."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_finding = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
            if is_finding and node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def test_every_kind_of_finding_and_every_rule_has_its_templates_which_need_all_values():
    kinds = set(kinds_in_code())
    assert len(kinds) > 20
    assert kinds - set(macros()) == set()
    for rule in RULES:
        assert {rule.name, f"{rule.name}_next"} <= set(macros())
    with pytest.raises(jinja2.UndefinedError, match="reason"):
        text_of(Finding("failed", ("a",), {"is_out_of_memory": False}))


def test_a_speedup_below_one_is_said_in_one_line_and_not_all_have_a_next_experiment():
    values = {"world_size": 2, "speedup": 0.98, "speedup_low": 0.93, "speedup_high": 1.03}
    said = "2 workers process no more samples per second than one: speedup 0.98 ±5.1%"
    assert text_of(Finding("no_speedup", ("a",), values)) == said
    values = {"world_size": 2, "speedup": 0.8, "speedup_low": None, "speedup_high": None}
    finding = Finding("no_speedup", ("a",), values)
    assert text_of(finding) == "2 workers process fewer samples per second than one: speedup 0.80"
    assert next_experiment(finding) == "fewer workers, or a larger local batch"
    rates = {"break_even_bytes_per_s": 1e9, "bytes_per_s": 2e9}
    assert next_experiment(Finding("compression", (), {"aggregator": "x", "pays": False, **rates})) is None


def text(study, name, end="\n"):
    return end.join(FORMATS[name](study.folder, read_cells(study.folder)))


def regions(study):
    """Names after what is common to all, and the data lines, of Extra-P's input."""
    lines = text(study, "extra-p").splitlines()
    assert all(line.startswith(f"REGION {COMMON}->") for line in lines if line.startswith("REGION"))
    names = [line.removeprefix(f"REGION {COMMON}->") for line in lines if line.startswith("REGION")]
    return names, [float(line.removeprefix("DATA ")) for line in lines if line.startswith("DATA")]


COMMON = "mlp->synthetic->strong->eager"


@pytest.fixture
def timed(study, split_line, line):
    """Two ranks, an unprofiled and a profiled iteration each; rank 1 starts a millisecond later."""

    def rank(late_s):
        own = {**line(0, 0.010, profiled=False), "start_s": 100.0 + late_s}
        spans = [("forward", "main", 0.001, 0.004), ("communicate", "comm", 0.003, 0.008)]
        return [own, split_line(1, 0.010, *spans, start_s=100.02 + late_s)]

    sent = {"num_parameters": 500, "wire_bytes_per_rank": [2000, 2000]}
    summary = {"clock_uncertainty_s": [1e-5, 2e-5], **sent}
    study.add([[rank(0.0), rank(0.001)]], aggregator="ring", world_size=2, summary=summary)
    return study


def test_chrome_trace_has_all_ranks_on_one_clock(timed):
    trace = json.loads(text(timed, "chrome"))
    steps = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert (trace["otherData"]["clock_uncertainty_s"], {event["pid"] for event in steps}) == (2e-5, {0, 1})
    begin = {(event["pid"], event["name"]): (event["ts"], event["dur"], event["tid"]) for event in steps}
    assert begin[0, "step (unprofiled)"][:2] == (0.0, 10_000.0)
    assert begin[1, "step (unprofiled)"][0] == pytest.approx(1000.0, abs=0.01)
    assert begin[1, "forward"][0] == pytest.approx(20_000 + 1000 + 1000, abs=0.01)
    exchanges = [event for event in steps if event["name"] == "communicate"]
    sent = {event["pid"]: event["args"].get("sent_bytes_a_step") for event in exchanges}
    assert sent == {0: {"1": 2000.0}, 1: {"0": 2000.0}}
    assert begin[0, "forward"][2] != begin[0, "communicate"][2], "a stream of its own"
    told = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    names = {(event["pid"], event.get("tid")): event["args"]["name"] for event in told}
    assert (names[0, None], names[1, begin[1, "communicate"][2]]) == ("rank 0", "comm")


@pytest.mark.parametrize(("name", "message"), [
    ("chrome", "none of these cells has steps on a clock"), ("extra-p", "two world sizes"),
])  # fmt: skip
def test_what_a_format_needs_is_said(study, name, message):
    study.add_steps([[0.1] * 3], aggregator="ring", world_size=2)
    with pytest.raises(ScalingError, match=message):
        text(study, name)


def test_csv_has_a_value_a_row_and_every_part_of_the_split_step(timed):
    rows = list(csv.DictReader(io.StringIO(text(timed, "csv", "\r\n"))))
    unprofiled = [row for row in rows if row["sample"] == "unprofiled"]
    shown = [(row["rank"], row["value"], row["unit"]) for row in unprofiled]
    assert shown == [("0", "0.01", "s"), ("1", "0.01", "s")]
    first = [row for row in rows if (row["sample"], row["rank"]) == ("profiled", "0")]
    of_rank_0 = {row["quantity"]: float(row["value"]) for row in first}
    beside = ("step_s", "hidden_comm_s", "arrived_after_first_s")
    parts = [value for name, value in of_rank_0.items() if name not in beside]
    assert sum(parts) == pytest.approx(of_rank_0["step_s"])
    assert of_rank_0["hidden_comm_s"] == pytest.approx(0.001)
    assert {row["aggregator"] for row in rows} == {"ring"}
    planned = [(row["rank"], row["quantity"], row["value"]) for row in rows if row["sample"] == "plan"]
    assert planned == [("0", "sent_to_1", "2000"), ("1", "sent_to_0", "2000")]


def test_mllog_lines_are_mlperfs_with_epochs_accuracies_and_an_end(study, epoch_line):
    epochs = [epoch_line(0, 5.0, 1.0, 0.5), epoch_line(1, 9.0, 0.5, 0.98)]
    more = {"kind": "convergence", "target_accuracy": 0.97, "epochs": 2, "aggregator": "ring"}
    study.add([[epochs]], **more)
    lines = text(study, "mllog").splitlines()
    assert all(re.match(r":::MLLOG \{.*\}$", line) for line in lines)
    logged = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    for one in logged:
        assert list(one) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
        assert one["event_type"] in ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")
    keys = [one["key"] for one in logged]
    order = [keys.index(key) for key in ("run_start", "epoch_start", "eval_accuracy", "run_stop")]
    assert order == sorted(order)
    assert [one["value"] for one in logged if one["key"] == "eval_accuracy"] == [0.5, 0.98]
    assert logged[-1]["metadata"] == {"status": "success"}
    assert logged[-1]["time_ms"] - next(one["time_ms"] for one in logged if one["key"] == "run_start") == 9000


def test_mllog_of_a_missed_target_is_aborted_and_of_a_timing_is_its_throughput(study, epoch_line):
    more = {"kind": "convergence", "target_accuracy": 0.97, "epochs": 1, "aggregator": "ring"}
    study.add([[[epoch_line(0, 5.0, 1.0, 0.5)]]], **more)
    study.add_steps([[0.125] * 3], aggregator="tree", batch=64)
    assert '{"status": "aborted"}' in text(study, "mllog")
    assert '"throughput": 512.0' in text(study, "mllog")


def test_rates_have_the_long_steps_in_them(study):
    for size in (1, 2):
        study.add_steps([[0.125, 0.125, 0.125, 0.625]], aggregator="ring", world_size=size, batch=64)
    assert text(study, "mllog").count('"throughput": 256.0') == 2
    assert text(study, "extra-p").splitlines().count("DATA 0.250000000") == 2


def test_extra_p_has_a_data_line_for_every_point_of_every_region(study):
    for size in (1, 2, 4):
        for aggregator in ("none", "ring"):
            study.add_steps([[0.1 / size] * 3, [0.11 / size] * 3], aggregator=aggregator, world_size=size)
    study.add_steps([[0.1] * 3], aggregator="tree", world_size=4)
    lines = text(study, "extra-p").splitlines()
    assert [line for line in lines if line.startswith("POINTS")] == ["POINTS (1) (2) (4)"]
    regions = [line for line in lines if line.startswith("REGION")]
    assert (len(regions), sum(line.startswith("DATA") for line in lines)) == (2, 3 * len(regions))
    assert "DATA 0.050000000 0.055000000" in lines
    assert any(line.startswith("# left out") and "tree" in line for line in lines)


@pytest.mark.parametrize(("changes", "names"), [
    ({"tf32": True}, ["float32", "tf32"]),
    ({"memory_format": "channels_last"}, ["contiguous", "channels_last"]),
    ({"tf32": True, "memory_format": "channels_last"}, ["float32->contiguous", "tf32->channels_last"]),
    ({"augmentation": "standard"}, ["augmentation_none", "augmentation_standard"]),
])  # fmt: skip
def test_extra_p_keeps_cells_apart_that_differ_in_one_setting(study, changes, names):
    base = {"tf32": False, "memory_format": None}
    for size in (1, 2):
        study.add_steps([[0.1 / size] * 3], world_size=size, **base)
        study.add_steps([[0.06 / size] * 3], world_size=size, **{**base, **changes})
    assert regions(study) == ([f"none->{name}" for name in names], [0.1, 0.05, 0.06, 0.03])


@pytest.mark.parametrize(("cells", "seconds"), [
    ([(1, True, 0.1), (2, True, 0.05), (2, False, 0.07)], [0.1, 0.05, 0.1, 0.07]),  # one single worker
    ([(1, True, 0.1), (2, True, 0.05), (1, False, 0.2), (2, False, 0.1)], [0.1, 0.05, 0.2, 0.1]),
])  # fmt: skip
def test_extra_p_keeps_cells_without_access_apart_each_with_a_single_worker(study, cells, seconds):
    """Of the same access where there is one."""
    for size, has_access, step_s in cells:
        study.add_steps([[step_s] * 3], world_size=size, peer_access=has_access)
    assert regions(study) == (["none->peer_access", "none->host-only"], seconds)


def test_extra_p_does_not_name_what_all_regions_share(study):
    same = {"tf32": True, "memory_format": "channels_last", "augmentation": "standard"}
    for size in (1, 2):
        for aggregator in ("none", "ring"):
            study.add_steps([[0.1 / size] * 3], world_size=size, aggregator=aggregator, **same)
    assert regions(study)[0] == ["none", "ring"]


def test_event_files_have_a_scalar_a_step_in_records_as_the_library_writes_them(timed):
    ((path, content),) = event_files(read_cells(timed.folder))
    assert re.fullmatch(r"ring@2-\w+/0/events\.out\.tfevents\.\d+\.scaling", path)
    records = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert content[8:12] == struct.pack("<I", masked_crc(content[:8]))
        assert content[12 + length : 16 + length] == struct.pack("<I", masked_crc(data))
        records.append(data)
        content = content[16 + length :]
    version, step = records
    assert version.endswith(b"brain.Event:2")
    assert step.endswith(b"\x06step_s\x15" + struct.pack("<f", 0.010))
    # Of tensorboard 2.21's RecordWriter: Event(1.5, step=300, Value("step_s", 0.25)).
    written = "1d00000000000000602fdf2309000000000000f83f10ac022a0f0a0d0a06737465705f73150000803e407cb64f"
    assert record(scalar_event(1.5, "step_s", 300, 0.25)).hex() == written
    crc = 0xE3069283  # of "123456789", RFC 3720
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
