"""Writes the table of planted faults into docs/background/reliability.md, from what tests/faults last saw.

SCALING_FAULT_RESULTS=benchmarks/results/faults.json python -m pytest tests/faults
python tools/fault_table.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "faults.json"
PAGE = ROOT / "docs" / "background" / "reliability.md"
START, END = "<!-- planted faults -->\n", "<!-- end -->\n"


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """The rows, by the names of the tests.

    Args:
        results: name of a test -> `said`: what the command said; `lost`: what was lost by the fault.
    """
    lines = ["| fault | what is said | what is lost |", "|---|---|---|"]
    for name, seen in results.items():
        fault = name.removeprefix("test_").replace("_", " ")
        lines.append(f"| {fault} | {seen['said'].replace('|', '/')} | {seen['lost']} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, rows: str) -> str:
    """The page with these rows between its two marks."""
    before, _, rest = page.partition(START)
    return f"{before}{START}{rows}{END}{rest.partition(END)[2]}"


def main() -> None:
    """Writes the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
