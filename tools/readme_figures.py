"""Makes the tables and figures of README.md and docs/background/measured.md again: `make figures`.

The README's table is one line a number of GPUs with the library's all-reduce over NVLink; the answer below it
is the report's. That of docs/background/measured.md is milliseconds a step (`iteration_s`) on four GPUs, with
and without peer access, and half of the 95% interval's width, ordered by the host-only column; what was
measured before the code changed how long it takes is left out. Both come from the raw samples of
results/reference/fcn-r-4xh200.
The figures are those of the reports of the folders in OF_THE_FIGURES.

    python tools/readme_figures.py            # writes both documents and the reports
    python tools/readme_figures.py --check    # exit code 1 if a document has other numbers
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

from scaling.analysis.columns import Row, is_of_older_code, to_rows
from scaling.analysis.summary import MeasuredStudy, read_study
from scaling.analysis.verdict import verdicts
from scaling.report import write_report
from scaling.report.formats import MISSING, of_speedup, percent, rate, ratio
from scaling.report.text import text_of
from scaling.report.verdict_text import facts_of
from scaling.store import ResultsFolder

ROOT = Path(__file__).parents[1]
README, MEASURED = ROOT / "README.md", ROOT / "docs" / "background" / "measured.md"
REFERENCE = ROOT / "results" / "reference"
OF_THE_TABLE = REFERENCE / "fcn-r-4xh200"
OF_THE_FIGURES = (OF_THE_TABLE, REFERENCE / "budget-4xh200", REFERENCE / "device-small-networks-h200")

HEAD = "| aggregator | NVLink | host-only |\n|---|---|---|\n"
EXAMPLE_HEAD = (
    "| GPUs | ms a step | samples/s | speedup | efficiency | exchange, ms |\n|---|---|---|---|---|---|\n"
)
REMARKS = {
    "none": "(no exchange)",
    "all_reduce": "(NCCL)",
    "ring": "(ours)",
    "ring(directions=2)": "(ours)",
    "tree": "(ours)",
    "schedule": "(stripes)",
}
"""Behind the name of an aggregator."""

_EXAMPLE = re.compile(re.escape(EXAMPLE_HEAD) + r"(?:\|.*\n)+")
_ANSWER = re.compile(r"(?:^> .*\n)+", re.MULTILINE)
_TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)+")
_SINGLE = re.compile(r"\(on 1 GPU: [\d.]+\)")


def table(rows: list[Row]) -> str:
    """The table of docs/background/measured.md, of the rows of a summary."""
    four = [row for row in rows if row["world_size"] == 4 and not row["aa_replicate"]]
    columns = [
        {row["aggregator"]: row for row in four if row["peer_access"] is access} for access in (True, False)
    ]
    of_today = [
        name
        for name in columns[0].keys() & columns[1].keys()
        if not any(is_of_older_code(column[name]) for column in columns)
    ]
    names = sorted(of_today, key=lambda name: columns[1][name]["iteration_s"])
    lines = []
    for name in names:
        remark = f" {REMARKS[name]}" if name in REMARKS else ""
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


def example(rows: list[Row]) -> str:
    """The README's table: the library's all-reduce over NVLink, and one GPU without exchange."""
    wanted = {1: "none", 2: "all_reduce", 4: "all_reduce"}
    lines = []
    for row in sorted(rows, key=lambda row: int(row["world_size"])):
        is_shown = wanted.get(row["world_size"]) == row["aggregator"] and row["peer_access"]
        if not is_shown or row["aa_replicate"]:
            continue
        added_s = row["exchange_overhead_s"]
        added = MISSING if added_s is None else f"{1e3 * added_s:.2f}"
        values = [
            str(row["world_size"]),
            measured(row),
            rate(row["samples_per_s"]),
            ratio(row["speedup"]) + of_speedup(row),
        ]
        values += [percent(row["parallel_efficiency"], 0) + of_speedup(row), added]
        lines.append(f"| {' | '.join(values)} |\n")
    return EXAMPLE_HEAD + "".join(lines)


def answer(study: MeasuredStudy) -> str:
    """What the report says of it, as a quotation; without the details and the next experiment."""
    (verdict,) = verdicts(study.table, study.cells, study.num_cores)
    facts = [fact for fact, _ in facts_of(verdict)]
    text = " ".join(f"{sentence.rstrip('.')}." for sentence in [text_of(verdict), *facts])
    return "".join(f"> {line}\n" for line in textwrap.wrap(text, 98))


def updated(readme: str, study: MeasuredStudy) -> str:
    """The README with the table and the answer of this study.

    Raises:
        ValueError: it does not hold each once.
    """
    if len(_EXAMPLE.findall(readme)) != 1 or len(_ANSWER.findall(readme)) != 1:
        raise ValueError("README.md should hold its table and one quotation once; restore them")
    readme = _EXAMPLE.sub(lambda _: example(to_rows(study.table)), readme)
    return _ANSWER.sub(lambda _: answer(study), readme)


def updated_measured(text: str, rows: list[Row]) -> str:
    """docs/background/measured.md with the table and the sentence of these rows.

    Raises:
        ValueError: it does not hold the table or the sentence once.
    """
    if len(_TABLE.findall(text)) != 1 or len(_SINGLE.findall(text)) != 1:
        raise ValueError(f"{MEASURED} should hold once the table and `(on 1 GPU: ...)`; restore them")
    return _SINGLE.sub(single(rows), _TABLE.sub(lambda _: table(rows), text))


def figures(*texts: str) -> list[str]:
    """The images that documents show, as paths from the repository's root."""
    found = re.findall(r"(?:!\[[^\]]*\]\(|^\[\w+\]: )([^)\s]+\.(?:png|svg))", "\n".join(texts), re.MULTILINE)
    return [path.replace("../", "") for path in found]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="README's table and figures from the committed studies")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if it would differ")
    check = parser.parse_args().check
    study = read_study(ResultsFolder(OF_THE_TABLE))
    rows = to_rows(study.table)
    before = {path: path.read_text(encoding="utf-8") for path in (README, MEASURED)}
    new = {README: updated(before[README], study), MEASURED: updated_measured(before[MEASURED], rows)}
    if check:
        return int(new != before)
    for path, text in new.items():
        path.write_text(text, encoding="utf-8")
    for folder in OF_THE_FIGURES:
        print(write_report(ResultsFolder(folder)).page)
    missing = [name for name in figures(*new.values()) if not (ROOT / name).is_file()]
    for name in missing:
        print(f"a document shows {name}, which the reports no longer draw; name another", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
