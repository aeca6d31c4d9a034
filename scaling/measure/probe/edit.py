"""Puts measured figures into the content of a machine file, each with its source.

Devices and links of a type share the median; one that is more than a tenth off gets a type of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from scaling.files.texts import flops_per_s, gigabytes_per_s, microseconds
from scaling.measure.probe.series import Observed, size_text

OWN_TYPE_RATIO = 0.1
DIGITS = 4


def set_figures(
    file: dict[str, Any], section: str, figures: Mapping[str, Mapping[str, Observed]], stamp: str
) -> None:
    """Replaces figures of devices or links, and their sources.

    Args:
        file: changed in place.
        section: "devices" or "links".
    """
    types = file["device_types" if section == "devices" else "link_types"]
    entries = {entry.get("id") or "-".join(entry["between"]): entry for entry in file[section]}
    by_type: dict[str, list[str]] = {}
    for id_ in figures:
        by_type.setdefault(entries[id_]["type"], []).append(id_)
    for type_, ids in by_type.items():
        middle = _middle([figures[id_] for id_ in ids])
        usual = [id_ for id_ in ids if not _is_off(figures[id_], middle)]
        for id_ in ids:
            if id_ not in usual:
                type_name = f"{type_}-{id_}"
                types[type_name] = copy.deepcopy(types[type_])
                entries[id_]["type"] = type_name
                _set(types[type_name], figures[id_], stamp)
        if usual:
            _set(types[type_], _middle([figures[id_] for id_ in usual]), stamp)


def set_latency(file: dict[str, Any], kind: str, observed: Observed, links_s: float, stamp: str) -> None:
    """Replaces the software's latency of messages on a kind of path.

    Args:
        file: changed in place.
        observed: the whole latency of a message.
    """
    section = file["message_latency_s"]
    section[kind] = rounded(max(0.0, observed.value - links_s))
    less = f", less {microseconds(links_s)} of the links" if links_s > 0 else ""
    section["source"][kind] = (
        f"{stamp}, median of {observed.num_samples}: {observed.what}, {microseconds(observed.low)} to "
        f"{microseconds(observed.high)}{less}"
    )


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _set(type_: dict[str, Any], figures: Mapping[str, Observed], stamp: str) -> None:
    source = type_.pop("source")  # it stands last
    source = dict(source) if isinstance(source, dict) else {}
    for name, figure in figures.items():
        unit = flops_per_s if name.endswith("flops_per_s") else gigabytes_per_s
        spread = f"{unit(figure.low)} to {unit(figure.high)}"
        type_[name] = rounded(figure.value)
        size = f", {size_text(figure.num_bytes)}" if figure.num_bytes else ""
        source[name] = f"{stamp}{size}, median of {figure.num_samples}: {figure.what}, {spread}"
    type_["source"] = source


def _middle(several: Sequence[Mapping[str, Observed]]) -> dict[str, Observed]:
    names = dict.fromkeys(name for figures in several for name in figures)
    return {
        name: Observed.middle([figures[name] for figures in several if name in figures]) for name in names
    }


def _is_off(figures: Mapping[str, Observed], middle: Mapping[str, Observed]) -> bool:
    return any(
        abs(figure.value / middle[name].value - 1) > OWN_TYPE_RATIO for name, figure in figures.items()
    )
