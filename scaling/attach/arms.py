"""Which arms run, in which order, and the rules by which one is not run, because its question is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaling.analysis.decisions import TIE_RATIO
from scaling.attach.findings import LEAST
from scaling.attach.inside.arms import ALL, ARMS, BUCKETS, SAFE, Arm, order_of
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
    drawn = order_of(switchable(arms), seed, launch)
    if not launch:
        drawn.sort(key=lambda arm: (arm != "baseline", arm != "no_exchange"))
    return drawn


def why_skipped(arm: str, measured: Measured) -> str | None:
    """By the first rule of its row that applies; None before a baseline is measured."""
    for rule in ARMS[arm].skipped if measured.facts.get("baseline") else ():
        text, applies = RULES[rule]
        if reason := applies(ARMS[arm], measured):
            return reason if isinstance(reason, str) else text
    return None


def _threads_fit(_: Arm, measured: Measured) -> str | None:
    places = [{"affinity": list(range(rank["cores"])), **rank} for rank in measured.ranks]
    fit = all(rank["threads"] <= threads_that_fit(rank, places) for rank in places)
    return "the ranks' threads have cores of their own" if fit else None


def _no_collectives(_: Arm, measured: Measured) -> str | None:
    ranks = measured.ranks
    if ranks[0].get("without_ddp"):
        return "without DDP they are the exchange, which no_exchange leaves out"
    if hook := ranks[0].get("script_hook"):
        return f"they cannot be distinguished from those of its communication hook {hook}"
    called = ranks[0].get("collectives", {})
    if not any(4 * count >= len(min(ranks[0]["step_s"], key=len)) for count in called.values()):
        return "the script has no collectives of its own in its steps"
    unsafe = sorted(name for name in called if name not in SAFE)
    return f"a result of {unsafe[0]} cannot be made by one rank" if unsafe else None


def _hardly_shorter(measured: Measured, least: float) -> str | None:
    saved = measured.saved("no_exchange")
    is_small = saved is not None and saved.ratio < least
    return f"without any exchange a step is not {least:.0%} shorter" if is_small else None


def _one_bucket(arm: Arm, measured: Measured) -> str | None:
    sizes = measured.ranks[0]["bucket_bytes"]
    is_one = len(sizes) < 2 and sum(sizes) <= (arm.bucket_mb or 0.0) * 2**20  # with this arm's size too
    smaller = [measured.facts[name] for name in BUCKETS[: BUCKETS.index(arm.name)] if name in measured.facts]
    if is_one or any(len(ranks[0]["bucket_bytes"]) < 2 for ranks in smaller):
        return "all gradients are in one bucket"
    # Of tiny buckets it does not show all: the hook that leaves the exchange out is called for each.
    return _hardly_shorter(measured, LEAST) if sum(sizes) >= len(sizes) * 2**20 else None


def _no_input(_: Arm, measured: Measured) -> str | None:
    if not measured.has_loader:
        return "the script draws its batches from no torch DataLoader"
    parts = [seconds["input"] / max(sum(seconds.values()), 1e-9) for seconds in shares(measured)]
    workers = [rank.get("loader_workers", 0) for rank in measured.alone]
    is_ahead = any(rank.get("draws_in_thread") for rank in measured.ranks)
    if not parts or any(workers) or is_ahead or max(parts) > LEAST / 2:
        return None
    return f"drawing a batch takes {max(parts):.1%} of a step, and no loader workers run in the background"


RULES: dict[str, tuple[str, Callable[[Arm, Measured], str | bool | None]]] = {
    # What a row names: when an arm is not run, and whether it is so; its reason where that is another one.
    "no_ddp": ("no model is wrapped in DDP", lambda _, measured: measured.ranks[0].get("without_ddp")),
    "no_gpu": ("there is no GPU", lambda _, measured: measured.device != "cuda"),
    "no_gain": ("a step without exchange is hardly shorter", lambda _, of: _hardly_shorter(of, TIE_RATIO)),
    "no_own_hook": ("the script has no communication hook of its own",
                    lambda _, measured: not measured.ranks[0].get("script_hook")),
    "is_without": ("none of it is on",
                   lambda arm, of: not of.ranks[0].get(arm.without) and f"no {arm.without} is on"),
    "is_apart": ("arms are not switched", lambda _, measured: measured.apart is not None),
    "threads_fit": ("threads have cores of their own", _threads_fit),
    "no_collectives": ("there are none, they are the exchange, or a result would have no value without them",
                       _no_collectives),
    "one_bucket": ("all gradients are in one bucket, or a step without any exchange is hardly shorter",
                   _one_bucket),
    "no_input": ("no batch is seen, or drawing one takes nothing and nothing makes the next one meanwhile",
                 _no_input),
}  # fmt: skip
