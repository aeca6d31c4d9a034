"""What is recorded of a machine and differs between two campaigns: for whoever asks why it got slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from scaling.analysis.environments import environment_differences
from scaling.files.documents import from_yaml
from scaling.store import ResultsFolder

QUEUED_MORE = 0.05
"""Of the time in which workers wait for a core: from so much more on other programs are named."""

CLOCK_RATIO = 0.98
"""GPUs' clocks vary from run to run by less."""


def machine_changes(before: ResultsFolder, after: ResultsFolder) -> list[str]:
    """One line a difference such as `versions.nccl: 2.27.5 against 2.28.3`; [] where nothing differs.

    Versions, settings and hardware; link widths; the topology; power caps and clocks of the GPUs; the load.
    """
    lines = [key.line() for key in environment_differences(before, after)]
    facts = [_facts(folder) for folder in (before, after)]
    for old, new in zip(*facts, strict=True):
        if old and new:  # else one of them did not record it
            lines += [
                f"{name}: {old.get(name, 'none')} against {new.get(name, 'none')}"
                for name in {**old, **new}
                if old.get(name) != new.get(name)
            ]
    clocks = [_median(folder, "gpu", _clock_hz) for folder in (before, after)]
    if None not in clocks and not CLOCK_RATIO < clocks[1] / clocks[0] < 1 / CLOCK_RATIO:
        lines.append(f"GPU clock under load: {clocks[0] / 1e6:.0f} against {clocks[1] / 1e6:.0f} MHz")
    queued = [_median(folder, "host", _queued_share) for folder in (before, after)]
    if None not in queued and queued[1] - queued[0] > QUEUED_MORE:
        lines.append(f"workers wait for a core (other programs): {queued[0]:.0%} against {queued[1]:.0%}")
    return lines


def _facts(folder: ResultsFolder) -> list[dict[str, str]]:
    """What should be the same in every campaign: PCIe links, all links, power caps; {} where not recorded."""
    environment = folder.environment() if (folder.path / "environment.json").exists() else {}
    pcie = {
        f"PCIe {what} of GPU {number}": str(gpu[key])
        for number, gpu in enumerate(environment.get("gpu_subset") or [])
        for what, key in (("width", "pcie_current_width"), ("generation", "pcie_generation"))
        if gpu.get(key) is not None
    }
    links: dict[str, str] = {}
    for link in (from_yaml(folder.topology_text() or "") or {}).get("links") or ():
        name, text = f"link {'-'.join(link['between'])}", f"{link.get('count', 1)} x {link['type']}"
        links[name] = f"{links[name]} and {text}" if name in links else text
    limits = {float(gpu["power_limit_w"]) for gpu in _recorded(folder, "gpu") if gpu.get("power_limit_w")}
    caps = {"power cap": ", ".join(f"{watts:.0f} W" for watts in sorted(limits))} if limits else {}
    return [pcie, links, caps]


def _recorded(folder: ResultsFolder, what: str) -> Iterator[Mapping[str, Any]]:
    for record in folder.runs():
        yield from filter(None, (record.summary or {}).get(what) or ())


def _median(folder: ResultsFolder, what: str, value_of: Any) -> Any:
    values = [value for one in _recorded(folder, what) if (value := value_of(one)) is not None]
    return median(values) if values else None


def _clock_hz(gpu: Mapping[str, Any]) -> float | None:
    return gpu.get("sm_clock_after_hz")


def _queued_share(host: Mapping[str, Any]) -> float | None:
    known = host.get("queued_s") is not None and host.get("window_s")
    return host["queued_s"] / host["window_s"] if known else None
