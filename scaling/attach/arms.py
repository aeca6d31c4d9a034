"""Which arms run, in which order, and the rules by which one is not run, because its question is answered."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from scaling.attach.findings import LEAST
from scaling.attach.inside.arms import ALL, ARMS, BUCKETS, SAFE, Arm
from scaling.attach.inside.settings import threads_that_fit
from scaling.attach.measured import Measured
from scaling.attach.ranks import shares


def switchable(arms: Sequence[str]) -> list[str]:
    """Those that can be switched within one process: none that is excluded by one before it."""
    chosen: list[str] = []
    for arm in arms:
        excluded_by = ARMS[arm].excluded_by
        if excluded_by != ALL and not set(excluded_by) & set(chosen):
            chosen.append(arm)
    return chosen


def apart(arms: Sequence[str], launch: int, seed: int) -> list[str]:
    """The same, each as a process of its own, in the order of a launch."""
    drawn = switchable(arms)
    random.Random(f"{seed}-{launch}").shuffle(drawn)
    if not launch:
        drawn.sort(key=lambda arm: (arm != "baseline", arm != "no_exchange"))
    return drawn


WORTH = 0.03  # of a step: if the exchange takes less, compressing it is not tried


def why_skipped(arm: str, measured: Measured) -> str | None:
    """By the first rule of its row that applies; None before a baseline is measured."""
    if not measured.facts.get("baseline"):
        return None
    reasons = (RULES[rule](ARMS[arm], measured) for rule in ARMS[arm].skipped)
    return next((reason for reason in reasons if reason is not None), None)


def _no_gpu(_: Arm, measured: Measured) -> str | None:
    """there is no GPU"""
    return None if measured.device == "cuda" else "there is no GPU"


def _no_gain(_: Arm, measured: Measured) -> str | None:
    """a step without any exchange is hardly shorter"""
    saved = measured.exchange
    is_small = saved is not None and saved.ratio < WORTH
    return f"without any exchange a step is not {WORTH:.0%} shorter" if is_small else None


def _no_own_hook(_: Arm, measured: Measured) -> str | None:
    """the script has no communication hook of its own"""
    has_hook = measured.ranks[0].get("script_hook")
    return None if has_hook else "the script has no communication hook of its own"


def _is_without(arm: Arm, measured: Measured) -> str | None:
    """none of it is on"""
    return None if measured.ranks[0].get(arm.without) else f"no {arm.without} is on"


def _is_apart(_: Arm, measured: Measured) -> str | None:
    """arms are not switched"""
    return "arms are not switched" if measured.apart is not None else None


def _threads_fit(_: Arm, measured: Measured) -> str | None:
    """threads have cores of their own"""
    places = [{"affinity": list(range(rank["cores"])), **rank} for rank in measured.ranks]
    if all(rank["threads"] <= threads_that_fit(rank, places) for rank in places):
        return "the ranks' threads have cores of their own"
    return None


def _no_collectives(_: Arm, measured: Measured) -> str | None:
    """there are none, or leaving them out would leave results without a value"""
    ranks = measured.ranks
    called = ranks[0].get("collectives", {})
    often = [name for name, count in called.items() if 4 * count >= len(min(ranks[0]["step_s"], key=len))]
    if not often:
        return "the script has no collectives of its own in its steps"
    unsafe = sorted(name for name in called if name not in SAFE)
    return f"a result of {unsafe[0]} cannot be made by one rank" if unsafe else None


def _one_bucket(arm: Arm, measured: Measured) -> str | None:
    """all gradients are in one bucket, or a step without any exchange is hardly shorter"""
    sizes, saved = measured.ranks[0]["bucket_bytes"], measured.exchange
    is_one = len(sizes) < 2 and sum(sizes) <= (arm.bucket_mb or 0.0) * 2**20  # with this arm's size too
    smaller = [measured.facts[name] for name in BUCKETS[: BUCKETS.index(arm.name)] if name in measured.facts]
    if is_one or any(len(ranks[0]["bucket_bytes"]) < 2 for ranks in smaller):
        return "all gradients are in one bucket"
    # Of tiny buckets it does not show all: the hook that leaves the exchange out is called for each.
    if saved is not None and saved.ratio < LEAST and sum(sizes) >= len(sizes) * 2**20:
        return f"without any exchange a step is not {LEAST:.0%} shorter"
    return None


def _no_input(_: Arm, measured: Measured) -> str | None:
    """no batch is seen, or drawing one takes nothing and nothing makes the next one meanwhile"""
    if not measured.has_loader:
        return "the script draws its batches from no torch DataLoader"
    parts = [seconds["input"] / max(sum(seconds.values()), 1e-9) for seconds in shares(measured)]
    workers = [rank.get("loader_workers", 0) for rank in measured.alone]
    is_ahead = any(rank.get("draws_in_thread") for rank in measured.ranks)
    if not parts or any(workers) or is_ahead or max(parts) > LEAST / 2:
        return None
    return f"drawing a batch takes {max(parts):.1%} of a step, and no loader workers run in the background"


RULES: dict[str, Callable[[Arm, Measured], str | None]] = {
    rule.__name__[1:]: rule
    for rule in (
        _no_gpu, _no_gain, _no_own_hook, _is_without, _is_apart, _threads_fit, _no_collectives,
        _one_bucket, _no_input,
    )
}  # fmt: skip
"""What a row names."""
