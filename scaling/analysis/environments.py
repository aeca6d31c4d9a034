"""How two environments differ, field by field: the first part of a comparison of two folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.files.documents import from_yaml
from scaling.store import ResultsFolder

IDENTITY = ("cpu", "gpus", "memory_bytes", "versions", "settings", "cpu_governors")
"""What decides how fast things run. A folder never holds measurements that differ in these, but for the
memory's size; `scaling.measure.environment` writes them."""

FOR_PEOPLE = ("hostname", "git")
"""Recorded too: where it was, and the commit with a digest of what was changed since."""


@dataclass(frozen=True)
class DifferingKey:
    """A field with different values in two environments; None where an environment lacks it."""

    field: str  # its name, dotted
    a: Any  # a, b: its values
    b: Any
    decides: bool  # whether it belongs to what decides how fast things run

    def line(self) -> str:
        """One line such as `versions.torch: 2.11.0 against 2.13.0`."""
        here, there = ("nothing" if value is None else value for value in (self.a, self.b))
        return f"{self.field}: {here} against {there}"


def environment_of(folder: ResultsFolder) -> dict[str, Any] | None:
    """The recorded environment, if any; StoreError where it is damaged."""
    return folder.environment() if (folder.path / "environment.json").exists() else None


def environment_differences(a: ResultsFolder, b: ResultsFolder) -> list[DifferingKey]:
    """All fields in which two folders' environments differ, first those that affect times."""
    environments = [environment_of(folder) or {} for folder in (a, b)]
    first, second = environments
    if not first or not second:
        known = ["recorded" if environment else None for environment in environments]
        return [] if first == second else [DifferingKey("environment.json", known[0], known[1], True)]
    differing = [
        DifferingKey(field, here, there, decides)
        for names, decides in ((IDENTITY, True), (FOR_PEOPLE, False))
        for name in names
        for field, here, there in _differences(name, _value(first, name), _value(second, name))
    ]
    names = [_name(folder) for folder in (a, b)]
    if None not in names and names[0] != names[1]:
        differing.insert(0, DifferingKey("--against", names[0], names[1], decides=True))
    # Folders from before the digest of changes was recorded: both had some, perhaps not the same.
    states = [environment.get("git") or {} for environment in environments]
    if all(state.get("dirty") and "changes" not in state for state in states):
        differing.append(DifferingKey("git.changes", "some", "some, perhaps others", decides=False))
    return differing


def _name(folder: ResultsFolder) -> str | None:
    """The environment's name in `run --against`; None if it has none."""
    return next((run.launch.get("environment") for run in folder.runs() if run.state == "done"), None)


def _value(environment: Mapping[str, Any], name: str) -> Any:
    value = environment.get(name)
    if name == "gpus":  # equal ones are counted: `4 x NVIDIA H200`
        counts = Counter(str(gpu.get("name")) for gpu in value or [])
        return ", ".join(f"{number} x {gpu}" for gpu, number in counts.items()) or "none"
    return value


def _differences(name: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _differences(f"{name}.{key}", a.get(key), b.get(key))
    elif a != b:
        yield name, a, b


QUEUED_MORE = 0.05  # of the time in which workers wait for a core: from so much more on it is named
CLOCK_RATIO = 0.98  # GPUs' clocks vary from run to run by less


def machine_changes(before: ResultsFolder, after: ResultsFolder) -> list[str]:
    """One line a difference such as `versions.nccl: 2.27.5 against 2.28.3`, of versions, settings, hardware,
    link widths, topology, power caps and clocks of GPUs, and the load."""
    lines = [key.line() for key in environment_differences(before, after)]
    for old, new in zip(_facts(before), _facts(after), strict=True):
        found = _differences("", old, new) if old and new else ()  # else one of them did not record it
        lines += [DifferingKey(name.removeprefix("."), a, b, decides=True).line() for name, a, b in found]
    clocks_mhz = [_recorded(folder, "sm_clock_after_hz").median() / 1e6 for folder in (before, after)]
    if min(clocks_mhz) <= CLOCK_RATIO * max(clocks_mhz):
        lines.append("GPU clock under load: {:.0f} against {:.0f} MHz".format(*clocks_mhz))
    queued = [(_recorded(one, "queued_s") / _recorded(one, "window_s")).median() for one in (before, after)]
    if queued[1] - queued[0] > QUEUED_MORE:
        lines.append("workers wait for a core (other programs): {:.0%} against {:.0%}".format(*queued))
    return lines


def _facts(folder: ResultsFolder) -> list[dict[str, str]]:
    """What should be the same in every campaign: PCIe links, all links, power caps; {} where not recorded."""
    pcie = {
        f"PCIe {what} of GPU {number}": str(gpu[key])
        for number, gpu in enumerate((environment_of(folder) or {}).get("gpu_subset") or [])
        for what, key in (("width", "pcie_current_width"), ("generation", "pcie_generation"))
        if gpu.get(key) is not None
    }
    links: dict[str, str] = {}
    for link in (from_yaml(folder.topology_text() or "") or {}).get("links") or ():
        name, text = f"link {'-'.join(link['between'])}", f"{link.get('count', 1)} x {link['type']}"
        links[name] = f"{links[name]} and {text}" if name in links else text
    caps = dict.fromkeys(f"{watts:.0f} W" for watts in sorted(_recorded(folder, "power_limit_w").dropna()))
    return [pcie, links, {"power cap": ", ".join(caps)} if caps else {}]


def _recorded(folder: ResultsFolder, key: str) -> pd.Series[float]:
    """What the runs recorded of each rank's GPU and host."""
    rows = [record.summary.get(what) or [] for record in folder.runs() for what in ("gpu", "host")]
    return pd.Series([one.get(key) for row in rows for one in row if one], dtype=float)
