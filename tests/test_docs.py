"""What the documents say is true: numbers against results and simulations, examples by running them."""

import csv
import importlib
import math
import operator
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from scaling import conformance
from scaling.aggregators.registry import create
from scaling.codecs import kernels
from scaling.codecs.chunks import TorchChunks
from scaling.conformance import verify as verification
from scaling.process_group import run_in_process
from scaling.study.schema import parse_study
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.workloads.base import DataShape
from scaling.workloads.registry import build_module, create_model
from tests.made import loaded

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"


def code_blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def four_gpu_rows(study, peer_access):
    with (REFERENCE / study / "summary.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["world_size"] == "4"]
    return {row["aggregator"]: row for row in rows if row["peer_access"] == peer_access}


def test_table_of_aggregators_is_that_of_the_committed_results():
    text = (ROOT / "docs" / "background" / "measured.md").read_text()
    row = r"^\| `([^`]+)`[^|]*\| ([\d.]+) ± ([\d.]+) \| ([\d.]+) ± ([\d.]+) \|$"
    table = re.findall(row, text, re.MULTILINE)
    assert "cntk" not in [line[0] for line in table]  # of older code: below the table
    table += re.findall(r"`(cntk)` took ([\d.]+) ± ([\d.]+) and ([\d.]+) ± ([\d.]+)", text)
    columns = [four_gpu_rows("fcn-r-4xh200", peer_access) for peer_access in ("True", "False")]
    assert {line[0] for line in table} == set(columns[0]) == set(columns[1])
    for name, *numbers in table:
        for rows, shown, shown_half in zip(columns, numbers[::2], numbers[1::2], strict=True):
            row = {key: float(row) for key, row in rows[name].items() if key.startswith("iteration_s")}
            half = (row["iteration_s_high"] - row["iteration_s_low"]) / 2
            for text, value in ((shown, row["iteration_s"] * 1e3), (shown_half, half * 1e3)):
                digits = len(text.partition(".")[2])
                assert math.isclose(float(text), value, abs_tol=0.5001 * 10**-digits), (name, text, value)


@pytest.mark.parametrize("route", ["a gradient", "a study", "`scaling attach`"])
def test_routes_of_the_architecture_have_few_stops_that_exist(route):
    page = (ROOT / "docs" / "background" / "architecture.md").read_text()
    text = page.partition(f"## The route of {route}\n")[2].partition("\n## ")[0]
    stops = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    assert 3 < len(stops) <= 8
    for stop in stops:
        named = re.findall(r"`(\w[\w/]*)\.py:([\w.]+)`", stop)
        assert named, stop
        for file, name in named:
            operator.attrgetter(name)(importlib.import_module(file.replace("/", ".")))


def test_readme_study_is_valid():
    (study,) = code_blocks("README.md", "yaml")
    assert parse_study(yaml.safe_load(study), "README.md").name == "mine"


@pytest.fixture
def examples(tmp_path, monkeypatch, named_by_a_study):
    """The modules of docs/how-to, importable."""
    pages = ("docs/how-to/own-aggregator.md", "docs/how-to/own-network.md")
    for block in [block for page in pages for block in code_blocks(page, "python")]:
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for module in ("my_aggregators", "my_codecs", "my_schedules", "my_models", "my_networks"):
        sys.modules.pop(module, None)


def test_example_aggregator_keeps_the_contract(examples):
    from my_aggregators import ScaledSigns

    for world_size in (1, 2, 4):
        conformance.check_drawn(ScaledSigns(), world_size)


def test_example_codec_runs_its_own_kernel_where_that_is_asked_for(examples, monkeypatch):
    from my_codecs import LargestSigns, LargestSignsCoder

    monkeypatch.setattr(kernels, "triton_problem", lambda device: None)
    codecs = [LargestSigns(kernels=kernels) for kernels in ("torch", "triton")]
    coders = [type(own.coder(own.chunks(100), torch.device("cpu"))) for own in codecs]
    assert coders == [TorchChunks, LargestSignsCoder]


@pytest.mark.quality
def test_everything_that_extending_says_to_verify_holds(examples):
    names = re.findall(r"scaling verify (my_\w+:\w+)", (ROOT / "docs/how-to/own-aggregator.md").read_text())
    own = ["my_aggregators:ScaledSigns", "my_schedules:chain", "my_schedules:Chain", "my_codecs:LargestSigns"]
    assert names == own
    for name in names:
        (subject,) = verification.subjects_of(name)
        finding = verification.examine(subject, [1, 2, 3])
        assert (finding.failure, bool(finding.checked)) == (None, True)


def test_example_model_is_built_with_its_parameter(examples):
    module = build_module(create_model("my_models:small", {"width": 32}), DataShape((1, 8, 8), 10))
    assert (module(torch.zeros(3, 1, 8, 8)).shape, module[1].out_features) == ((3, 10), 32)


def test_example_network_is_built_trained_and_has_its_loss(examples):
    model = create_model("my_networks:convolutional", {"channels": 4})
    assert model.shape == DataShape((1, 8, 8), 10)
    module = build_module(model, model.shape)
    assert module[0].out_channels == 4
    inputs = torch.randn((3, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    logits, targets = module(inputs), torch.tensor([1, 2, 3])
    smoothed = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
    assert torch.equal(model.loss(logits, targets), smoothed)

    def step(group):
        replica = FlatReplica(module, model.loss)
        take = EagerStep(replica, create("all_reduce"), SgdSettings(learning_rate=0.01), group)
        return [take(inputs, targets).item() for _ in range(2)]

    ((before, after),) = run_in_process(1, step)
    assert before == smoothed.item()
    assert after < before - 1e-4


TIMED_TABLES = {
    "| aggregator | NVLink, overlapped": ("gpt-2xh100", "gpt-host-only-2xh100"),
    "| link | no exchange": ("gpt-2xh100", "gpt-host-only-2xh100"),
    "| link | DDP, all_reduce": ("one-bit-step-4xh200",),
    "| aggregator | small: ms": ("sharded-2xh100",),
    "| network, link | DDP": ("headline-bf16-2xh100",),
    "| step | compile | ms": ("gpt-mfu-1xh200",),
}
"""How tables of docs/background/measured.md begin -> their folders."""


@pytest.mark.parametrize("first", TIMED_TABLES)
def test_times_of_measured_steps_are_wall_clock_over_steps_of_their_folders(first):
    text = (ROOT / "docs" / "background" / "measured.md").read_text(encoding="utf-8")
    head, _, *rows = text[text.index(first) :].partition("\n\n")[0].splitlines()
    headings = head.strip("| ").split(" | ")
    times_ms = []
    for folder in TIMED_TABLES[first]:
        with (REFERENCE / folder / "summary.csv").open() as file:
            times = [row["iteration_s"] for row in csv.DictReader(file)]
            times_ms += [1e3 * float(iteration_s) for iteration_s in times if iteration_s]
    for row in rows:
        for heading, cell in zip(headings, row.strip("| ").split(" | "), strict=True):
            if re.fullmatch(r"\d+\.\d+", cell) and heading != "GB":
                decimals = len(cell.partition(".")[2])
                assert cell in {f"{time_ms:.{decimals}f}" for time_ms in times_ms}, (heading, row)


SCRIPT = ROOT / "benchmarks" / "dual_k80_presets.py"


def test_table_has_the_simulated_times_of_every_preset_and_at_two_gpus_the_papers_order():
    text = (ROOT / "docs" / "background" / "dual-k80.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*" + 4 * r"\| ([\d.]+) " + r"\|", text, re.MULTILINE)
    module = loaded(SCRIPT)
    places = [(machine, n) for machine in module.MACHINES for n in (2, 4)]
    times = {(machine, n): module.simulated_s(n, machine) for machine, n in places}
    for column, place in enumerate(places, 1):
        assert {row[0]: row[column] for row in rows} == {k: f"{s * 1e3:.1f}" for k, s in times[place].items()}
    order = list(times["dual-k80", 2])
    paper = ["caffe", "torch_cpu", "tensorflow"]
    assert [name for name in order if name in paper] == paper
    assert {"mxnet_device", "cntk"} < set(order[: order.index("caffe")])


def test_every_line_shows_its_arithmetic(capsys):
    loaded(SCRIPT).main()
    lines = [line for line in capsys.readouterr().out.splitlines() if "speed-up" in line]
    assert len(lines) == 48
    for line in lines:
        total, parts = line.split("=", 1)
        milliseconds = [float(part) for part in re.findall(r"(?:^| \+) ?[\w() ]*? (\d+\.\d\d)", parts)]
        assert sum(milliseconds) == pytest.approx(float(total.split()[1]), abs=0.1)


MODELS = ("fcn-r", "alexnet-r", "resnet-56")
NAMED = {"no exchange": "none", "host-only": "host", "NVLink": "NVLink", "host memory": "host"}


def table(page, beginning):
    """First cell of each row -> the others; of the table whose heading begins like that."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(beginning))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0]: row[1:] for row in rows}


def shown(ms):
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}"


def test_the_five_systems_on_two_gpus():
    summary = pd.read_csv(ROOT / "results/reference/paper-2xh200/summary.csv", low_memory=False)
    kept = summary[summary.iteration_s.notna() & (summary.aa_replicate.fillna(0) == 0)]
    ms = 1e3 * kept.set_index(["aggregator", "step", "model", "world_size", "peer_access"]).iteration_s
    rows = table("docs/background/measured.md", "| strategy | FCN-R: 1 |")
    assert len(rows) == 11
    for label, cells in rows.items():
        name, _, step = label.replace("`", "").partition(", ")
        at = NAMED.get(name, name), step or "eager"
        places = [(*at, model, *place) for model in MODELS for place in ((1, True), (2, True), (2, False))]
        assert cells == [shown(ms[place]) if place in ms else "" for place in places], label


def test_hooks_beside_captured_steps():
    samples = pd.read_csv(ROOT / "benchmarks/results/hooked-exchanges-2xh200/three_launches.csv")
    samples = samples[samples.run.str.startswith("table")].copy()
    samples[["link", "launch"]] = samples.label.str.split(" ", expand=True)
    medians = samples.groupby(["batch", "link", "arm", "launch"]).ms.median()
    by_key = medians.groupby(["batch", "link", "arm"])
    launches = {key: " ".join(f"{value:.1f}" for value in of) for key, of in by_key}
    rows = table("benchmarks/results/README.md", "| arm | batch 8, NVLink |")
    assert len(rows) == 12
    ways = {"plain": "/plain", "graphs": "", "captured step": "/captured"}
    for label, cells in rows.items():
        name, _, way = label.partition("`: ")
        name = "by hand" if name.startswith("loop") else name.split("`")[1]
        arms = [name + ways[each] for each in way.split(", ")] if way else [name]
        places = [(batch, link) for batch in (8, 16) for link in ("NVLink", "host")]
        found = [[launches.get((*place, arm), "") for arm in arms] for place in places]
        assert cells == [", ".join(filter(None, of_arms)) for of_arms in found], label
