"""Makes the README's table and figures again from the committed studies: `make figures`.

The table is milliseconds an iteration on four GPUs, with and without peer access, from the raw samples of
results/reference/fcn-r-4xh200: median and half of the 95% interval's width, ordered by the host-only column.
The figures are those of the reports of the folders in OF_THE_FIGURES. What was measured before the code
changed how long it takes is named so, in the table as in the figures.

    python benchmarks/readme_figures.py            # writes README.md and the reports
    python benchmarks/readme_figures.py --check    # exit code 1 if README.md has other numbers
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from scaling.analysis import summary_table
from scaling.analysis.columns import Row, is_of_older_code, to_rows
from scaling.report import write_report
from scaling.store import ResultsFolder

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "results" / "reference"
OF_THE_TABLE = REFERENCE / "fcn-r-4xh200"
OF_THE_FIGURES = (OF_THE_TABLE, REFERENCE / "one-bit-step-4xh200", REFERENCE / "device-small-networks-h200")

HEAD = "| aggregator | NVLink | host-only |\n|---|---|---|\n"
REMARKS = {
    "none": "(no exchange)",
    "all_reduce": "(NCCL)",
    "ring": "(ours)",
    "ring(directions=2)": "(ours)",
    "tree": "(ours)",
    "schedule": "(stripes)",
}
"""Behind the name of an aggregator."""

_TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)+")
_SINGLE = re.compile(r"\(on 1 GPU: [\d.]+\)")


def table(rows: list[Row]) -> str:
    """The README's table, of the rows of a summary."""
    four = [row for row in rows if row["world_size"] == 4 and not row["aa_replicate"]]
    columns = [
        {row["aggregator"]: row for row in four if row["peer_access"] is access} for access in (True, False)
    ]
    names = sorted(columns[0].keys() & columns[1].keys(), key=lambda name: columns[1][name]["iteration_s"])
    lines = []
    for name in names:
        remark = f" {REMARKS[name]}" if name in REMARKS else ""
        if any(is_of_older_code(column[name]) for column in columns):
            remark += " (older code)"
        shown = " | ".join(measured(column[name]) for column in columns)
        lines.append(f"| `{name}`{remark} | {shown} |\n")
    return HEAD + "".join(lines)


def measured(row: Row) -> str:
    """`2.53 ± 0.02`: milliseconds, with as many decimals as the half width has."""
    value, half = 1e3 * row["iteration_s"], 500 * (row["iteration_s_high"] - row["iteration_s_low"])
    decimals = 0 if half >= 10 else 2 if value < 10 else 1
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


def single(rows: list[Row]) -> str:
    """What one GPU takes, as the sentence above the table has it."""
    (one,) = (
        row for row in rows if row["world_size"] == 1 and row["aggregator"] == "none" and row["peer_access"]
    )
    return f"(on 1 GPU: {1e3 * one['iteration_s']:.2f})"


def updated(readme: str, rows: list[Row]) -> str:
    """The README with the table and the sentence of these rows.

    Raises:
        ValueError: it does not hold the table or the sentence once.
    """
    if len(_TABLE.findall(readme)) != 1 or len(_SINGLE.findall(readme)) != 1:
        raise ValueError("README.md should hold once the table and `(on 1 GPU: ...)`; restore them")
    readme = _TABLE.sub(lambda _: table(rows), readme)
    return _SINGLE.sub(single(rows), readme)


def figures(readme: str) -> list[str]:
    """The paths of the images that the README shows."""
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="README's table and figures from the committed studies")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if it would differ")
    check = parser.parse_args().check
    readme = README.read_text(encoding="utf-8")
    new = updated(readme, to_rows(summary_table(ResultsFolder(OF_THE_TABLE))))
    if check:
        return int(new != readme)
    README.write_text(new, encoding="utf-8")
    for folder in OF_THE_FIGURES:
        print(write_report(ResultsFolder(folder)).page)
    missing = [name for name in figures(new) if not (ROOT / name).is_file()]
    for name in missing:
        print(f"README.md shows {name}, which the reports no longer draw; name another", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
