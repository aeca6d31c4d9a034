"""The tables of benchmarks/results say what the committed samples give."""

import re
from pathlib import Path

import pandas as pd
import pytest

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
MIB = 1 << 20
SIZES = {"64 MiB": 64 * MIB, "512 MiB": 512 * MIB, "1 GiB": 1024 * MIB}


def tables() -> dict[str, list[list[str]]]:
    """File -> the rows of the table that follows its name."""
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"`([\w-]+\.csv)`", line):
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
