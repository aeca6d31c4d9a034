"""What limits an attached script in a few lines, from the differences of its runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from scaling.analysis.cautions import LONG_STEPS
from scaling.analysis.findings import Finding
from scaling.attach import facts, findings
from scaling.attach.inside.arms import ARMS, BUCKETS, PROCESS, Arm
from scaling.attach.marks import USUAL
from scaling.attach.measured import Measured, Saved
from scaling.attach.ranks import shares, slow_rank, varies
from scaling.attach.trace import Traced
from scaling.report.text import text_of

LEAST_SAID = 0.005  # of a step: other phases that take less are not said
SAME_WORK = 0.02  # batches that differ by less are of one size


def answer(measured: Measured, traced: Traced | None = None) -> list[str]:
    if "baseline" not in measured.steps_s:
        return [_missing(measured, "", "baseline")]
    lines = [*first_lines(measured), *_single_runs(measured, traced), *_few_steps(measured)]
    gains = findings.findings(measured, traced)
    following = text_of(gains[0], "advice") if gains else _otherwise(measured)
    return [line for line in [*lines, f"Next: {following}"] if line]


def _said(kind: str, **values: Any) -> str:
    return text_of(Finding(f"attached_{kind}", (), values))


def _missing(measured: Measured, what: str, arm: str) -> str:
    reason = measured.reasons.get(arm, f"the arm {arm} was not asked for")
    return _said("missing", what=what, reason=reason)


def _otherwise(measured: Measured) -> str:
    if _long_steps_seen(measured):
        return text_of(findings.long_steps_finding(measured), "advice")
    both = measured.steps_s["baseline"].keys() & measured.steps_s.get("aa", {}).keys()
    once, spread, first = measured.saved("threads"), measured.spread_ratio, measured.ranks[0]
    # Ranks share cores, and a run with threads that fit was not slower.
    fits = once is not None and spread is not None and once.ratio >= -spread
    return _said(
        "otherwise", is_few=len(both) < 2, hidden=spread if (spread or 0.0) >= findings.LEAST else None,
        threads=first["threads"], cores=first["cores"], has_loader=measured.has_loader,
        fitted=measured.facts["threads"][0]["threads"] if fits else None,
    )  # fmt: skip


def first_lines(measured: Measured) -> Iterator[str]:
    ranks, by_clock_ratio, more_ratio = measured.ranks, *measured.marks_ratio
    usual_s, aa = measured.rate_s("baseline"), measured.aa
    is_host_only = ranks[0].get("host_only") and measured.device == "cuda" and len(ranks) > 1
    yield _said(
        "step", step_s=usual_s, clock_s=usual_s / (1 + (more_ratio or 0.0)), more_ratio=more_ratio,
        marks_ratio=by_clock_ratio, is_host_only=is_host_only, aa=aa,
        spread=measured.spread_ratio, is_apart=measured.apart is not None,
        reason=measured.reasons.get("aa", "the arm aa was not asked for"), **facts.mean_step(measured),
    )  # fmt: skip
    if measured.apart is not None:
        yield _said("apart", reason=measured.apart)
    yield _where(measured)
    yield _slow(measured)
    if (saved := measured.saved("no_exchange")) is None:
        yield _missing(measured, "Without the exchange", "no_exchange")
    else:
        changed = measured.changed("no_exchange")
        yield _said("exchange", saved=saved, is_other=changed, turns=_turns(measured))
    yield _input(measured)
    if texts := [f"{said} {saved.change}" for arm, said, saved in _gains(measured) if arm.when != PROCESS]:
        yield _said("others", texts=texts)


def _gains(measured: Measured) -> Iterator[tuple[Arm, str, Saved]]:
    for name, arm in ARMS.items():
        if arm.said and (saved := measured.saved(name)) is not None:
            known = {"usual": measured.ranks[0], "own": measured.facts[name][0]}
            yield arm, arm.said.format_map({key: defaultdict(str, of) for key, of in known.items()}), saved


def _where(measured: Measured) -> str:
    what, parts = "Where it goes", []
    if why := _why_no_ranks(measured, what, "no_exchange"):
        return why
    for seconds in shares(measured):
        total_s = sum(seconds.values())
        words = [
            (word, seconds[name] / total_s)
            for name, word in measured.phase_words
            if name in USUAL or seconds.get(name, 0.0) >= LEAST_SAID * total_s
        ]
        parts.append([*words, ("rest", seconds["rest"] / total_s)])
    return _said("where", ranks=parts) if parts else _missing(measured, what, measured.phase_source)


def _why_no_ranks(measured: Measured, what: str, arm: str) -> str | None:
    if "no_exchange" not in measured.steps_s:
        return _missing(measured, what, "no_exchange")
    if measured.changed("no_exchange"):
        return _said("other_step", what=what)
    return _said("uneven_steps", what=what) if varies(measured, arm) else None


def _slow(measured: Measured) -> str:
    if why := _why_no_ranks(measured, "Slow rank", measured.own_arm):
        return why
    is_compared = measured.spread_ratio is not None and len(measured.own_s[measured.own_arm]) > 1
    are_bound = measured.alone[0].get("exchanges_used")
    return _said("slow", are_bound=are_bound, is_compared=is_compared, slow=slow_rank(measured))


def _turns(measured: Measured) -> float | None:
    """How long a step waits for whichever rank is last in it; that is no exchange."""
    ratios = [seconds / measured.usual_s for seconds in measured.uneven_s.get(measured.own_arm, {}).values()]
    if measured.spread_ratio is None or len(ratios) < 2 or min(ratios) <= measured.spread_ratio:
        return None
    return float(np.median(ratios))


def _input(measured: Measured) -> str:
    saved, made = facts.saved_by_cached_input(measured), facts.batch_making(measured)
    if saved is None and "cached_input" not in measured.steps_s:
        return _missing(measured, "With cached input", "cached_input")
    workers = [rank.get("loader_workers", 0) for rank in measured.alone]
    return _said("input", saved=saved, made={**made, "workers": workers[0]} if made else None)


def _single_runs(measured: Measured, traced: Traced | None) -> Iterator[str]:
    yield from _buckets(measured)
    for arm, said, saved in _gains(measured):
        if arm.when == PROCESS:
            yield _said("setting", what=said[0].upper() + said[1:], saved=saved)
    yield _efficiency(measured)
    if traced is not None:
        yield _said(
            "trace", **asdict(traced), waiting_s=traced.nccl_s - traced.moving_s,
            slowed=traced.step_s / measured.usual_s - 1, idle=findings.idle_ratio(measured, traced),
        )  # fmt: skip
    elif "trace" in measured.reasons and measured.device == "cuda":
        yield _missing(measured, "Trace", "trace")


def _buckets(measured: Measured) -> Iterator[str]:
    arm = next((arm for arm in BUCKETS if arm in measured.reasons), None)
    if runs := findings.bucket_runs(measured):
        yield _said(
            "buckets", count=len(measured.ranks[0].get("bucket_bytes") or []),
            runs=[(name.partition("_")[2], -saved.ratio) for name, saved in runs],
            has_best=findings.best_buckets(measured) is not None,
            is_once=not any(saved.is_compared for _, saved in runs),
        )  # fmt: skip
    elif arm is not None:
        yield _missing(measured, "Other bucket sizes", arm)
    elif any(arm in measured.steps_s for arm in BUCKETS):
        yield _said("missing", what="Other bucket sizes", reason="DDP made the same buckets")


def _efficiency(measured: Measured) -> str:
    if "one_worker" not in measured.steps_s:
        return _missing(measured, "Efficiency against one worker", "one_worker")
    if varies(measured, "one_worker"):
        return _said("uneven_steps", what="Efficiency against one worker")
    world_size = len(measured.ranks)
    alone, usual = (measured.signatures[arm][0] for arm in ("one_worker", "baseline"))
    single, several = (measured.mean_elements(arm)[0] for arm in ("one_worker", "baseline"))
    is_seen = bool(single and several)
    work = max(alone, 1) / max(usual, 1) * (single / several if is_seen else 1.0)
    step_s = measured.rate_s("clock" if "clock" in measured.steps_s else "baseline")
    ratio = measured.rate_s("one_worker") / (work * step_s)
    is_larger = ratio > 1 + max(measured.spread_ratio or 0.0, findings.LEAST)
    return _said(
        "efficiency", ratio=ratio, work=work, world_size=world_size, alone=alone, usual=usual,
        is_larger=not is_seen and alone == usual and is_larger, is_seen=is_seen,
        is_strong=abs(work / world_size - 1) < SAME_WORK, is_other=abs(work - 1) > SAME_WORK,
    )  # fmt: skip


def _few_steps(measured: Measured) -> Iterator[str]:
    often = [one for one in facts.rare(measured) if one.ratio >= LEAST_SAID]
    least, ratio = findings.other_steps(measured)
    is_more = measured.spread_ratio is not None and least > max(measured.spread_ratio, 0.02)
    if often:
        yield _said("rare", often=often, is_more=is_more)
    elif is_more:
        yield _said("other_steps", ratio=ratio)
    if _long_steps_seen(measured):
        _, usual, in_input = measured.long_steps_found()
        is_mostly = in_input > findings.MOSTLY_INPUT
        yield _said("long_steps", **asdict(usual), in_input=in_input if is_mostly else None)
    yield _said("facts", **facts.settings(measured))
    yield _said("horizon", **facts.horizon(measured))
    if some := [(arm, why) for arm, why in measured.reasons.items() if arm in measured.steps_s]:
        yield _said("left_out", runs=some)


def _long_steps_seen(measured: Measured) -> bool:
    return measured.long_steps_found()[0] > max(measured.spread_ratio or 0.0, LONG_STEPS)
