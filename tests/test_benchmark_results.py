"""The tables of benchmarks/results say what the committed samples give."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from topologies.schema import load

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS = BENCHMARKS / "results"
MIB = 1 << 20
SIZES = {"64 MiB": 64 * MIB, "512 MiB": 512 * MIB, "1 GiB": 1024 * MIB}


def tables() -> dict[str, list[list[str]]]:
    """File -> the rows of the table that follows its name."""
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"`([\w/-]+\.(?:csv(?:\.gz)?|json))`", line):
            name = match[1]
        elif line.startswith("|") and not line.startswith("|---"):
            found.setdefault(name, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def samples(file: str, comparison: str) -> pd.DataFrame:
    table = pd.read_csv(RESULTS / "collective-speed-4xh200" / file)
    return table[table.comparison.str.startswith(comparison)]


def quartiles(table: pd.DataFrame, contender: str, num_bytes: int) -> str:
    times = table[(table.contender == contender) & (table.bytes == num_bytes)].seconds * 1e3
    low, median, high = times.quantile([0.25, 0.5, 0.75])
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


@pytest.mark.parametrize("file", ["nvlink.csv", "host-only.csv"])
def test_all_reduce_tables_are_those_of_the_samples(file):
    (header, *rows), table = tables()[file], samples(file, "all-reduce")
    assert len(rows) >= 4
    for name, *cells in rows:
        for size, shown, ratio in zip(header[1::2], cells[::2], cells[1::2], strict=True):
            assert shown == quartiles(table, name, SIZES[size]), (name, size)
            by_round = table[table.bytes == SIZES[size]].pivot(
                index="round", columns="contender", values="seconds"
            )
            expected = (by_round["NCCL all-reduce"] / by_round[name]).median()
            assert ratio == f"{expected:.2f}", (name, size)


def test_host_table_is_that_of_the_samples():
    (_, *rows), table = tables()["host-sums.csv"], samples("host-sums.csv", "host sums")
    assert len(rows) == 6
    for name, *cells in rows:
        for num_bytes, shown in zip(sorted(table.bytes.unique()), cells, strict=True):
            assert shown == quartiles(table, name, num_bytes), (name, num_bytes)


@pytest.fixture
def probe_against_model(monkeypatch):
    spec = importlib.util.spec_from_file_location(
        "probe_against_model", BENCHMARKS / "probe_against_model.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_probe_tables_are_what_file_and_samples_give(probe_against_model):
    folder = RESULTS / "probe-4xh200"
    samples = probe_against_model.read_samples(folder / "samples.csv.gz")
    found = list(probe_against_model.compare(load(folder / "machine.yaml"), samples))
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    for launch in probe_against_model.LAUNCHES:
        own = [one for one in found if one.launch == launch]
        assert {one.operation for one in own} == {"all_reduce", "shift"}
        assert set(probe_against_model.table(own)) <= set(lines)


def test_table_of_the_ddp_loop_is_that_of_the_samples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from against_ddp_loop import table

    (_, *rows) = tables()["against-ddp-loop-4xh200/samples.csv"]
    made = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table(RESULTS / "against-ddp-loop-4xh200")
    ]
    assert len(rows) == 36
    assert rows == made[2:]


def test_one_bit_table_is_that_of_the_samples():
    header, *rows = tables()["one-bit-h200/samples.csv"]
    table = pd.read_csv(RESULTS / "one-bit-h200" / "samples.csv")
    suffixes = [", kernels", ", kernels, graph", ", torch"]
    assert len(rows) == 4
    assert len(header) == 1 + len(suffixes)
    for name, *cells in rows:
        for suffix, shown in zip(suffixes, cells, strict=True):
            times = table[table.contender == name + suffix].seconds * 1e3
            assert len(times) == 30
            low, median, high = times.quantile([0.25, 0.5, 0.75])
            assert shown == f"{median:.3f} [{low:.3f}, {high:.3f}]", name + suffix


def cells(lines: list[str]) -> list[list[str]]:
    """The rows of a Markdown table, without the rule below its header."""
    rows = [line for line in lines if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def milliseconds(seconds: list[float]) -> str:
    low, median, high = 1e3 * np.percentile(seconds, [25, 50, 75])
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


POWER_SGD = ["power-sgd-2xh200/nvlink.json", "power-sgd-2xh200/host-only.json"]


@pytest.mark.parametrize("file", POWER_SGD)
def test_power_sgd_tables_are_those_of_the_samples(file, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from power_sgd_table import overview

    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    shown = tables()[file]
    assert shown == cells(overview(document))
    assert len(shown) == 4
    for name, *row in shown[1:]:
        every = document["networks"][name]["contenders"]
        fastest = {
            start: min(
                (one["iteration_s"] for other, one in every.items() if other.startswith(start)), key=np.median
            )
            for start in ("hook", "power_sgd captured", "none captured")
        }
        times = [every["DDP"]["iteration_s"], *fastest.values()]
        assert row[:4] == [milliseconds(one) for one in times]
        ratios = np.divide(fastest["hook"], fastest["power_sgd captured"])
        assert row[4] == f"{np.median(ratios):.2f} [{ratios.min():.2f}, {ratios.max():.2f}]"


@pytest.mark.parametrize("file", POWER_SGD)
def test_text_on_losses_and_configurations_is_that_of_the_samples(file):
    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    text = " ".join((RESULTS / "README.md").read_text(encoding="utf-8").split())
    falls: dict[str, dict[str, float]] = {}
    for name, network in document["networks"].items():
        assert network["num_rounds"] == 6
        assert not network["failed"]
        every = network["contenders"]
        assert 5 <= sum(one["kind"] == "hook" for one in every.values()) <= 9
        falls[name] = {
            short: every[contender]["losses"][0] - np.mean(every[contender]["losses"][-4:])
            for short, contender in (
                ("ours", "power_sgd captured, 1 MB"),
                ("hook", "hook, 1000 MB, batched"),
                ("ddp", "DDP"),
            )
        }
    one, two, three = (falls[name] for name in ("fcn-r", "fcn-s4", "resnet-56"))
    assert f"by {one['ours']:.3f} with ours and {one['hook']:.3f} with the hook on FCN-R" in text
    assert f"by {two['ours']:.2f} and {two['hook']:.2f} on fcn-s4" in text
    assert f"DDP's fall by {one['ddp']:.3f}, {two['ddp']:.2f} and {three['ddp']:.2f}" in text
    assert three["ours"] == pytest.approx(0.163, abs=0.001)
    assert "by 0.163 and 0.188 on ResNet-56" in text
    assert three["hook"] == pytest.approx(0.188, abs=0.001)


def test_codec_tables_are_those_of_the_samples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from codec_table import BYTES_PER_S, lines

    file = "codec-speed-h200/codec_speed.json"
    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    shown = tables()[file]
    assert shown == [row for size in (122_194_048, 14_205_962) for row in cells(lines(document, size))]
    assert len(shown) == 2 * (1 + 16)
    every = [row for codec in document["codecs"] for row in codec["rows"]]
    assert {len(row["seconds"]) for row in every} == {15}
    assert 4.27e12 < max(row["bytes_moved"] / np.median(row["seconds"]) for row in every) < BYTES_PER_S
    large = {row["name"]: row["seconds"] for one in document["codecs"][:6] for row in one["rows"]}
    for name, *row in shown[1:17]:
        assert row[0] == milliseconds(large[f"{name}, kernels"])
        assert row[2] == milliseconds(large[f"{name}, torch"])
    slower = [row[0] for row in shown if row[4].replace(".", "").isdigit() and float(row[4]) < 1]
    assert slower == ["two_bit, decode"], "what the text names"
    assert max(value for one in document["codecs"] for value in one["equality"].values()) < 3e-7


def test_accuracies_of_compressed_gradients_are_those_of_the_folder():
    reference = Path(__file__).parents[1] / "results" / "reference"
    table = pd.read_csv(reference / "compression-2xh200" / "summary.csv")
    accuracy = dict(zip(table.aggregator, 100 * table.final_test_accuracy, strict=True))
    assert len(accuracy) == 6
    bytes_sent = dict(zip(table.aggregator, table.wire_bytes_per_rank, strict=True))
    text = (Path(__file__).parents[1] / "docs" / "convergence.md").read_text(encoding="utf-8")
    shown = {row[0].strip("`"): row[1:] for row in cells(text.splitlines()) if row[0].strip("`") in accuracy}
    assert shown == {
        name: [f"{value:.2f}%", f"{value - accuracy['host_parallel']:+.2f}", f"{bytes_sent[name] / 1e6:.2f}"]
        for name, value in accuracy.items()
    }
    assert max(abs(value - accuracy["host_parallel"]) for value in accuracy.values()) < 0.135
