"""What limits an attached script in a few lines, from the differences of its runs."""

from __future__ import annotations

import numpy as np

from scaling.attach.facts import facts_text, horizon_text, rare_text
from scaling.attach.findings import (
    LEAST,
    MOSTLY_INPUT,
    best_buckets,
    bucket_runs,
    findings,
    idle_ratio,
    long_steps_advice,
    other_steps,
)
from scaling.attach.inside.arms import ARMS, BUCKETS
from scaling.attach.loading import batch_making, saved_by_cached_input
from scaling.attach.measured import BEFORE, Measured, Saved
from scaling.attach.ranks import MOST_VARIATION, SlowRank, has_larger_batch, shares, slow_rank
from scaling.attach.trace import Traced

LEAST_SAID = 0.005
"""Of a step: other phases that take less are not said."""

OFTEN = ("input", "forward", "backward", "update")
"""Said even where they take nothing."""


def answer(measured: Measured, traced: Traced | None = None) -> list[str]:
    """A few lines: where the time goes, what would change it, and what to try next."""
    if "baseline" not in measured.steps_s:
        return [f"Not measured, because {measured.reasons.get('baseline', 'the baseline did not run')}."]
    ranks = measured.facts["baseline"]
    is_host_only = ranks[0].get("host_only") and measured.device == "cuda" and len(ranks) > 1
    peers = " without peer access" if is_host_only else ""
    gains = findings(measured, traced)
    lines = [
        _step_text(measured, peers),
        _apart_text(measured),
        _where(measured),
        _slow_text(measured, slow_rank(measured)),
        _exchange_text(measured),
        _input_text(measured),
        _others_text(measured),
        _buckets_text(measured),
        _threads_text(measured),
        _debugging_text(measured),
        _efficiency_text(measured),
        _trace_text(measured, traced),
        rare_text(measured),
        _other_steps_text(measured),
        _long_steps_text(measured),
        facts_text(measured),
        horizon_text(measured),
        _left_out_text(measured),
        f"Next: {gains[0].advice if gains else _otherwise(measured)}",
    ]
    return [line for line in lines if line]


SAME_WORK = 0.02
"""Batches that differ by less are of one size."""

OTHER_STEP = "not measured, because without the exchange the script's step became another one"
UNEVEN_STEPS = "not measured, because some steps of a rank take twice as long as others by themselves"
NO_VERDICT = "no verdict, which takes two launches with an A/A pair"
NOTHING = "nothing stands out; profile the computation itself, which the arms leave as it is."
NOT_TOLD_APART = f"nothing stands out; profile the {BEFORE} (input, logging, forward) and the computation."


def _otherwise(measured: Measured) -> str:
    if _long_steps_text(measured):
        return long_steps_advice(measured)
    if len(measured.steps_s["baseline"].keys() & measured.steps_s.get("aa", {}).keys()) < 2:
        return "two or more launches with the arm aa; fewer give no verdict."
    if (spread := measured.spread_ratio or 0.0) >= LEAST:
        again = _fewer_threads(measured) or "attach again on a machine where nothing else runs"
        return f"{again}: unchanged runs differ by {spread:.0%}, which hides smaller gains."
    return NOTHING if measured.has_loader else NOT_TOLD_APART


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _missing(measured: Measured, what: str, arm: str) -> str:
    reason = measured.reasons.get(arm, f"the arm {arm} was not asked for")
    return f"{what}: not measured, because {reason}."


def _step_text(measured: Measured, peers: str) -> str:
    """The script's own step where the clock took it, what is added, and how well differences are known."""
    usual_s, saved = measured.step_s("baseline"), measured.aa
    by_clock_ratio, more_ratio = measured.marks_ratio
    hook = f"its marks cost {by_clock_ratio:.2%}"
    text = f"A step takes {_ms(usual_s)}{peers}"
    if more_ratio is not None:
        text = f"A step takes {_ms(usual_s / (1 + more_ratio))}{peers}"
        hook = f"with the hook that switches arms {_ms(usual_s)}, {more_ratio:+.1%}"
    if saved is None:
        reason = measured.reasons.get("aa", "the arm aa was not asked for")
        return f"{text} ({hook}; no A/A pair, because {reason}: nothing is claimed)."
    launches = len(saved.launches)
    spread = f"A/A {saved.change}, {measured.spread_ratio:.1%} in a launch at most"
    rounds = f"{saved.rounds} rounds of {launches} launch{'es' * (launches > 1)}"
    return f"{text} ({hook}; {spread}; {rounds})."


def _apart_text(measured: Measured) -> str:
    if measured.apart is None:
        return ""
    return f"Each arm was a process of its own, which is less exact: {measured.apart}."


def _where(measured: Measured) -> str:
    by_rank = shares(measured)
    if not by_rank and "no_exchange" in measured.steps_s and measured.changed("no_exchange"):
        return f"Where it goes: {OTHER_STEP}."
    if not by_rank and measured.variation.get("no_exchange", 1.0) > MOST_VARIATION:
        return f"Where it goes: {UNEVEN_STEPS}."
    if not by_rank:
        missing = measured.phase_source if "no_exchange" in measured.steps_s else "no_exchange"
        return _missing(measured, "Where it goes", missing)
    parts, named = [], measured.phase_words
    for rank, seconds in enumerate(by_rank):
        total_s = sum(seconds.values())
        words = [
            (word, seconds[name])
            for name, word in named
            if name in OFTEN or seconds.get(name, 0.0) >= LEAST_SAID * total_s
        ]
        texts = [f"{word} {value / total_s:.0%}" for word, value in [*words, ("rest", seconds["rest"])]]
        parts.append(f"rank {rank}: {', '.join(texts)}")
    return f"Where it goes: {'; '.join(parts)}."


def _no_gain(saved: Saved) -> str:
    if not saved.is_compared:
        return NO_VERDICT
    return f"no gain above the A/A spread ({saved.change} of a step's time)"


def _slow_text(measured: Measured, slow: SlowRank | None) -> str:
    if "no_exchange" not in measured.steps_s:
        return _missing(measured, "Slow rank", "no_exchange")
    if measured.changed("no_exchange"):
        return f"Slow rank: {OTHER_STEP}."
    if measured.facts["no_exchange"][0].get("exchanges_used"):
        return "Slow rank: not measured, because find_unused_parameters makes ranks wait for one another."
    if measured.spread_ratio is None or len(measured.own_s[measured.own_arm]) < 2:
        return f"Slow rank: {NO_VERDICT}."
    if slow is None:
        return "Slow rank: none above the A/A spread."
    batch = f"; its batches have {slow.batch_ratio:.2g} times the elements" if has_larger_batch(slow) else ""
    return (
        f"Slow rank: {slow.name}, in its {slow.phase}; alone it takes {slow.longer_ratio:.0%} of a step "
        f"more than the others{batch}."
    )


def _exchange_text(measured: Measured) -> str:
    saved = measured.exchange
    if saved is None:
        return _missing(measured, "Without the exchange", "no_exchange")
    if measured.changed("no_exchange"):
        return "Without the exchange: not measured, because the script's step became another one."
    if not saved.is_certain:
        return f"Without the exchange: {_no_gain(saved)}{_turns_text(measured)}."
    return f"Without the exchange a step would be {saved.text} shorter{_turns_text(measured)}."


def _others_text(measured: Measured) -> str:
    """What arms give whose rows say it."""
    gains = [(arm.said, measured.saved("baseline", name)) for name, arm in ARMS.items() if arm.said]
    texts = [f"{said} {saved.change}" for said, saved in gains if saved is not None]
    return f"A step's time {', '.join(texts)}." if texts else ""


def _turns_text(measured: Measured) -> str:
    """How long a step waits for whichever rank is last in it; that is no exchange."""
    uneven_s = measured.uneven_s.get(measured.own_arm, {})
    ratios = [seconds / measured.step_s("baseline") for seconds in uneven_s.values()]
    if measured.spread_ratio is None or len(ratios) < 2 or min(ratios) <= measured.spread_ratio:
        return ""
    return f"; ranks take turns at being late, for {float(np.median(ratios)):.0%} of it"


def _buckets_text(measured: Measured) -> str:
    runs = bucket_runs(measured)
    if not runs:
        arm = next((arm for arm in BUCKETS if arm in measured.reasons), None)
        if arm is not None:
            return _missing(measured, "Other bucket sizes", arm)
        same = any(arm in measured.steps_s for arm in BUCKETS)
        return "Other bucket sizes: not measured, because DDP made the same buckets." if same else ""
    count = len(measured.facts["baseline"][0].get("bucket_bytes") or [])
    buckets = f"{count} bucket{'s' * (count != 1)}"
    changes = ", ".join(f"{arm.partition('_')[2]} MB {-saved.ratio:+.0%}" for arm, saved in runs)
    best = best_buckets(measured)
    if best is None:
        once = "" if any(saved.is_compared for _, saved in runs) else ", seen once"
        return f"Other bucket sizes (it has {buckets}): no gain for sure ({changes} of a step's time{once})."
    return f"Other bucket sizes (it has {buckets}): {changes} of a step's time."


def _fewer_threads(measured: Measured) -> str:
    """What to set, where ranks share cores and a run with threads that fit was not slower; else empty."""
    once, spread = measured.saved_once("threads"), measured.spread_ratio
    if once is None or spread is None or once.ratio < -spread:
        return ""
    base, fitted = measured.facts["baseline"][0], measured.facts["threads"][0]
    shared = f"{base['threads']} threads a rank share {base['cores']} cores"
    return f"set OMP_NUM_THREADS to {fitted['threads']} ({shared}) and attach again"


def _threads_text(measured: Measured) -> str:
    saved = measured.saved_once("threads")
    if saved is None:
        return ""
    base, fitted = measured.facts["baseline"][0]["threads"], measured.facts["threads"][0]["threads"]
    text = f"With {fitted} instead of {base} threads a rank"
    if saved.is_certain:
        return f"{text} a step would be {saved.ratio:.0%} shorter."
    return f"{text}: no gain for sure ({-saved.ratio:+.0%} of a step's time)."


def _debugging_text(measured: Measured) -> str:
    saved = measured.saved_once("no_debugging")
    if saved is None:
        return ""
    text = f"Without {' and '.join(measured.facts['baseline'][0]['debugging'])}"
    if saved.is_certain:
        return f"{text} a step would be {saved.ratio:.0%} shorter."
    return f"{text}: no gain for sure ({-saved.ratio:+.0%} of a step's time)."


def _input_text(measured: Measured) -> str:
    saved = saved_by_cached_input(measured)
    if saved is None:
        if "cached_input" in measured.steps_s:
            return "With cached input: not measured, because its steps or batches became others."
        return _missing(measured, "With cached input", "cached_input")
    if not saved.is_certain:
        return f"With cached input: {_no_gain(saved)}."
    text = f"With cached input a step would be {saved.text} shorter"
    made = batch_making(measured)
    if made is None:
        return f"{text}."
    workers = measured.facts["no_exchange"][0].get("loader_workers", 0)
    queued = f" and {made.queues_ratio:.0%} waiting for one" if made.is_queued else ""
    return (
        f"{text}; making a batch takes {_ms(made.seconds)}, {made.computes_ratio:.0%} of it on the processor"
        f"{queued}, with {workers} loader workers a rank."
    )


def _other_steps_text(measured: Measured) -> str:
    least, ratio, what = other_steps(measured)
    if measured.spread_ratio is None or least <= max(measured.spread_ratio, 0.02):
        return ""
    return (
        f"Steps of another kind ({what}) add {ratio:.0%} to the mean step; the other lines are about steps "
        "without it."
    )


def _long_steps_text(measured: Measured) -> str:
    """Where in every unchanged run they add more than the spread and 5%; a median step does not show them."""
    least, usual, in_input = measured.long_steps_found()
    if least <= max(measured.spread_ratio or 0.0, 0.05):
        return ""
    where = f", {in_input:.0%} of it in their input" if in_input > MOSTLY_INPUT else ""
    return (
        f"Long steps: {usual.count} of {usual.of} take over twice the usual time. They add "
        f"{usual.more_ratio:.0%} to the mean step{where}."
    )


def _efficiency_text(measured: Measured) -> str:
    if "one_worker" not in measured.steps_s:
        return _missing(measured, "Efficiency against one worker", "one_worker")
    if measured.variation["one_worker"] > MOST_VARIATION:
        return f"Efficiency against one worker: {UNEVEN_STEPS}."
    world_size = len(measured.facts["baseline"])
    alone, usual = (measured.signatures[arm][0] for arm in ("one_worker", "baseline"))
    single, several = (measured.mean_elements(arm)[0] for arm in ("one_worker", "baseline"))
    is_seen = bool(single and several)
    work = max(alone, 1) / max(usual, 1) * (single / several if is_seen else 1.0)
    step_s = measured.step_s("clock" if "clock" in measured.steps_s else "baseline")
    ratio = measured.step_s("one_worker") / (work * step_s)
    if not is_seen and alone == usual and ratio > 1 + max(measured.spread_ratio or 0.0, LEAST):
        return (
            f"Efficiency: not measured, because with one worker a step takes {ratio:.2g} times as long; its "
            "batch, which was not seen, may be larger."
        )
    if abs(work / world_size - 1) < SAME_WORK:
        counted = f"{alone} backward passes of one worker, {usual} of each of {world_size}"
        return (
            f"Efficiency against one worker: {ratio:.0%}, strong scaling of one global batch ({counted}); "
            f"{ratio * world_size:.3g} times as fast (seen once, no verdict)."
        )
    if abs(work - 1) > SAME_WORK:
        same = f"by samples, though one worker's step has {work:.2g} times those of a rank"
    else:
        same = "for the same batch on each" if is_seen else "if its batch, not seen, is the same"
    return f"Efficiency against one worker: {ratio:.0%} {same} (seen once, no verdict)."


def _trace_text(measured: Measured, traced: Traced | None) -> str:
    if traced is None:
        is_missed = "trace" in measured.reasons and measured.device == "cuda"
        return _missing(measured, "Trace", "trace") if is_missed else ""
    late = f"; rank {traced.late_rank} comes last to most collectives" if traced.late_rank is not None else ""
    slowed_ratio = traced.step_s / measured.step_s("baseline") - 1
    slowed = (
        f" The profiler makes these steps {slowed_ratio:.0%} longer, which adds waiting."
        if slowed_ratio > 0.05
        else ""
    )
    waiting_s = traced.nccl_s - traced.moving_s
    return (
        f"Trace of {traced.num_steps} steps, seen once: NCCL {_ms(traced.nccl_s)} a step, of which "
        f"{_ms(waiting_s)} waiting for the last rank and {_ms(traced.exposed_s)} with no other kernel; "
        f"the GPU is idle for {idle_ratio(measured, traced):.0%} of a step{late}.{slowed}"
    )


def _left_out_text(measured: Measured) -> str:
    some = [f"a run of {arm} ({why})" for arm, why in measured.reasons.items() if arm in measured.steps_s]
    return f"Left out: {'; '.join(some)}." if some else ""
