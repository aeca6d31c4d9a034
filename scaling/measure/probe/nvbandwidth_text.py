"""The text that nvbandwidth prints, as the document that its `-j` writes.

    Running host_to_device_memcpy_ce.
    memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
              0         1
    0     26.03     25.94

The text does not tell the size of the buffers. Source: NVIDIA/nvbandwidth, output.cpp and README.md, v0.8.
"""

from __future__ import annotations

import re
from typing import Any

TEST = re.compile(r"\s*Running (?:benchmark )?(\w+)\.")
ROW = re.compile(r"\s*\d+((?:\s+(?:\d+\.\d+|N/A))+)\s*")
VERSION = re.compile(r"nvbandwidth Version: (\S+)")


def is_text(text: str) -> bool:
    return "bandwidth (GB/s)" in text and any(TEST.match(line) for line in text.splitlines())


def document(text: str) -> dict[str, Any]:
    """The same as nvbandwidth's JSON; a test that failed has no matrix."""
    cases: list[dict[str, Any]] = []
    for line in text.splitlines():
        if match := TEST.match(line):
            cases.append({"name": match[1], "bandwidth_matrix": []})
        elif cases and (row := ROW.fullmatch(line)):
            cases[-1]["bandwidth_matrix"].append(row[1].split())
    version = VERSION.search(text)
    return {"nvbandwidth": {"version": version[1] if version else "", "testcases": cases}}
