"""What the samples of `power_sgd_speed.py` say: medians, ratios and tables.

    python benchmarks/power_sgd_table.py FILE.json ...

prints the Markdown tables of those files: of each network, and an overview, of which a cell has milliseconds,
or so many times as fast as the hook. The hook's time is that of its fastest configuration, found among
these very samples, which favours the hook. A ratio is the median over the rounds of its time to the
contender's in the same round, above 1: faster than the hook; behind it the median's 95% interval by order
statistics, of this launch only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scaling.measure.statistics import interval_within_launch

WIDTH = 80
NAME_WIDTH = 27
TIMES_WIDTH = 25
RATIO_WIDTH = 18
NUM_LAST = 4
"""The loss at the end is the mean of so many, one pass over the batches."""

LOSSES_EQUAL = (0.5, 2.0)
"""A decrease of the loss within these factors of the hook's is called the same."""


def summary(network: Mapping[str, Any]) -> dict[str, Any]:
    """What one network's samples say.

    Args:
        network: an entry of the file's `networks`.

    Returns:
        `best_hook` and `best_ours`, names (None where there is none), and `contenders`: name -> median_s,
        quartiles_s, num_rounds, ratio, ratio_low, ratio_high (None where the hook or an interval is missing),
        loss_first, loss_last.
    """
    contenders = network["contenders"]
    medians = {name: float(np.median(measured["iteration_s"])) for name, measured in contenders.items()}
    best_hook = _fastest(contenders, medians, "hook")
    rows = {}
    for name, measured in contenders.items():
        low, high = np.percentile(measured["iteration_s"], [25, 75])
        rows[name] = {
            "median_s": medians[name],
            "quartiles_s": [float(low), float(high)],
            "num_rounds": len(measured["iteration_s"]),
            **_ratio(contenders[best_hook]["iteration_s"] if best_hook else None, measured["iteration_s"]),
            "loss_first": measured["losses"][0],
            "loss_last": float(np.mean(measured["losses"][-NUM_LAST:])),
        }
    return {
        "best_hook": best_hook,
        "best_ours": _fastest(contenders, medians, "ours"),
        "contenders": rows,
    }


def _fastest(contenders: Mapping[str, Any], medians: Mapping[str, float], kind: str) -> str | None:
    names = [name for name in contenders if contenders[name]["kind"] == kind]
    return min(names, key=lambda name: medians[name], default=None)


def _ratio(hook: list[float] | None, our_s: list[float]) -> dict[str, float | None]:
    if hook is None:
        return {"ratio": None, "ratio_low": None, "ratio_high": None}
    ratios = [a / b for a, b in zip(hook, our_s, strict=True)]
    low, high = interval_within_launch(ratios)
    return {"ratio": float(np.median(ratios)), "ratio_low": low, "ratio_high": high}


def setting(document: Mapping[str, Any]) -> str:
    """Where it ran, in words."""
    size = document["world_size"]
    if document["device"] == "cpu":
        return f"{size} processes, CPU"
    links = "host-only" if document["host_only"] else "peer access"
    return f"{size} GPUs, {links}"


def lines(document: Mapping[str, Any], name: str) -> list[str]:
    """One network's table, for a terminal of 80 columns."""
    network = document["networks"][name]
    said = summary(network)
    title = f"{name}, global batch {network['global_batch']}, {setting(document)}, "
    header = (
        f"{'':{NAME_WIDTH}} {'ms [quartiles]':>{TIMES_WIDTH}} {'best hook / this':>{RATIO_WIDTH}}    loss"
    )
    rows = [title + f"{network['num_rounds']} rounds", header]
    for contender, row in said["contenders"].items():
        star = "*" if contender in (said["best_hook"], said["best_ours"]) else ""
        shown = f"{contender}{star}"
        rows.append(
            f"{shown:{NAME_WIDTH}} {_times(row):>{TIMES_WIDTH}} {_ratio_text(row):>{RATIO_WIDTH}} "
            f"{row['loss_last']:7.4g}"
        )
    rows += [f"{contender}: failed: {reason}"[:WIDTH] for contender, reason in network["failed"].items()]
    rows += verdict(said)
    return rows


def verdict(said: Mapping[str, Any]) -> list[str]:
    """Whether ours is ahead of the hook, and learns as it does."""
    hook, ours = said["best_hook"], said["best_ours"]
    if hook is None or ours is None:
        return ["no verdict: the hook or power_sgd is missing"]
    our_row = said["contenders"][ours]
    rows = [f"* fastest: {hook}; {ours}", f"  ours is {_ratio_text(our_row)} times as fast as the hook"]
    decreases = {name: row["loss_first"] - row["loss_last"] for name, row in said["contenders"].items()}
    ratio = decreases[ours] / decreases[hook] if decreases[hook] else float("nan")
    are_close = LOSSES_EQUAL[0] < ratio < LOSSES_EQUAL[1]
    rows.append(
        f"  loss decreases by {decreases[hook]:.4g} with the hook, by {decreases[ours]:.4g} with ours: "
        + ("the same" if are_close else "NOT THE SAME")
    )
    return rows


def markdown(document: Mapping[str, Any], name: str) -> list[str]:
    """One network's table, for a page."""
    said = summary(document["networks"][name])
    rows = [
        f"| {name}, {setting(document)} | ms [quartiles] | best hook / this [95%] | loss |",
        "|---|---|---|---|",
    ]
    for contender, row in said["contenders"].items():
        shown = f"**{contender}**" if contender in (said["best_hook"], said["best_ours"]) else contender
        rows.append(f"| {shown} | {_times(row)} | {_ratio_text(row)} | {row['loss_last']:.4g} |")
    return rows


def overview(document: Mapping[str, Any]) -> list[str]:
    """Ours, the fastest hook and what was not compressed, a row a network, for a page.

    Of several sizes of buckets the fastest stands for all.
    """
    rows = [
        f"| {setting(document)} | DDP | fastest hook | power_sgd captured | none captured "
        "| hook / captured [95%] | hook / eager | hook / overlapped | DDP / captured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, network in document["networks"].items():
        said = summary(network)
        every, hook = said["contenders"], said["best_hook"]
        captured, none, overlapped = (
            min(
                (row for other, row in every.items() if other.startswith(start)),
                key=lambda row: float(row["median_s"]),
            )
            for start in ("power_sgd captured", "none captured", "power_sgd overlap")
        )
        cells = [
            *map(_times, (every["DDP"], every[hook], captured, none)),
            *map(_ratio_text, (captured, every["power_sgd eager"], overlapped)),
            f"{every['DDP']['median_s'] / captured['median_s']:.2f}",
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def _times(row: Mapping[str, Any]) -> str:
    low, high = (1e3 * value for value in row["quartiles_s"])
    return f"{1e3 * row['median_s']:.3f} [{low:.3f}, {high:.3f}]"


def _ratio_text(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return "-"
    if row["ratio_low"] is None:
        return f"{row['ratio']:.2f}"
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


def main() -> None:
    """Prints the tables."""
    for path in sys.argv[1:]:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        for name in document["networks"]:
            print("\n".join([*markdown(document, name), ""]))
        if document["device"] == "cuda":
            print("\n".join([*overview(document), ""]))


if __name__ == "__main__":
    main()
