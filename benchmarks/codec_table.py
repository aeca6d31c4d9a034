"""What the samples of `codec_speed.py` say, as Markdown tables.

    python benchmarks/codec_table.py FILE.json

prints a table for each number of elements: milliseconds, median [quartiles]; how many times as fast as plain
torch the kernels are, started one by one and replayed from a graph (ratios of medians); and what the bytes
that must move would take at BYTES_PER_S.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

BYTES_PER_S = 4.31e12
"""The most that any call of the committed samples reached on an H200, whose memory is specified at 4.8e12."""
WAYS = ("kernels", "kernels, graph", "torch")


def lines(document: Mapping[str, Any], elements: int) -> list[str]:
    """The table of one number of elements."""
    rows = [
        f"| {elements:,} values | kernels | kernels in a CUDA graph | plain torch | torch / kernels "
        "| torch / graph | floor |",
        "|---|---|---|---|---|---|---|",
    ]
    for codec in document["codecs"]:
        if codec["elements"] != elements:
            continue
        every = {row["name"]: row for row in codec["rows"]}
        for name in (name.removesuffix(", torch") for name in every if name.endswith(", torch")):
            kernels, graph, torch = (every[f"{name}, {way}"] for way in WAYS)
            cells = [
                *(_times(row["seconds"]) for row in (kernels, graph, torch)),
                *(
                    f"{np.median(torch['seconds']) / np.median(row['seconds']):.1f}"
                    for row in (kernels, graph)
                ),
                f"{1e3 * kernels['bytes_moved'] / BYTES_PER_S:.3f}",
            ]
            rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def _times(seconds: list[float]) -> str:
    low, median, high = 1e3 * np.percentile(seconds, [25, 50, 75])
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Prints the tables."""
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for elements in dict.fromkeys(codec["elements"] for codec in document["codecs"]):
        print("\n".join([*lines(document, elements), ""]))


if __name__ == "__main__":
    main()
