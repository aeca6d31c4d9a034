"""Titles of what is compared: of groups of cells, of workloads and of transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.axes import axis
from scaling.report.formats import percent

UNITS = {
    "iteration_ms": "ms a step",
    "sample_us": "us a sample",
    "memory_gb": "GB on the fullest GPU",
    "gpu_hours": "GPU hours a billion samples",
    "worker_hours": "worker hours a billion samples",
    "energy": "J a thousand samples",
}
"""Quantity of a candidate (`scaling.analysis.candidates`) -> its unit."""


def unit_of(values: Mapping[str, Any]) -> str:
    """The unit of a candidate's value, of its values as findings have them."""
    if values["quantity"] == "training_s":
        return f"s to {percent(values['target_accuracy'])}"
    return UNITS[values["quantity"]]


def title_parts(given: Mapping[str, Any]) -> list[str]:
    """What cells of a group or workload have in common, part by part, the model and the data set first."""
    first = f"{given['model']} on {given['dataset']}"
    further = [axis(name).text(value) for name, value in given["further"].items()]
    if "target_accuracy" in given:
        return [f"{first} to an accuracy of {percent(given['target_accuracy'])}", given["device"], *further]
    is_weak = given["scaling"] == "weak"
    batch = f"local batch {given['batch']}" if is_weak else f"global batch {given['batch']}"
    return [first, f"{given['scaling']} scaling", batch, given["device"], *further]


def title_of(given: Mapping[str, Any]) -> str:
    return ", ".join(title_parts(given))


def short_names(titles: Sequence[Sequence[str]]) -> list[list[str]]:
    """Titles without the parts, after the first, that all of them share."""
    if len(titles) < 2:
        return [list(parts[:1]) for parts in titles]
    shared = set(titles[0]).intersection(*titles[1:])
    return [[parts[0], *(part for part in parts[1:] if part not in shared)] for parts in titles]
