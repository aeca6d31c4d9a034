"""The tables of benchmarks/results say what the committed samples give."""

import importlib.util
import re
import sys
from pathlib import Path

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
        if match := re.match(r"`([\w/-]+\.csv(?:\.gz)?)`", line):
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
