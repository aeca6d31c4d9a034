"""A recommendation in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.candidates import Candidate
from scaling.analysis.explain_doubts import LARGE_FLOOR
from scaling.analysis.formats import listed, number, percent
from scaling.analysis.repeats import FEWEST
from scaling.measure.ratios import ONE_LAUNCH

MOST_NAMED = 3
"""Rivals of a kind that are named; more are counted."""

WHY = {
    "overlap": "the intervals overlap with {}",
    "noise": "the difference to {} is below the noise floor",
    "launch": "within one launch the difference to {} may be the launch's own",
    "unknown": "there are too few samples or launches to tell it from {}",
    "efficiency": "the efficiency of {} may lie on either side",
}


def sentence_of(
    title: str,
    choice: Candidate,
    rivals: Sequence[tuple[Candidate, str]],
    more_repeats: int | None,
    if_wrong: str,
    limit: str | None,
) -> str:
    """What to use, how sure that is, what being wrong costs, and what limits it."""
    if rivals:
        told = f"{title}: undecided. The lowest is {shown(choice)}, but {_reasons(choice, rivals)}; "
        floors = [one.row["noise_floor"] or 0.0 for one, _ in ((choice, ""), *rivals)]
        told += _what_would_tell(choice, more_repeats, max(floors))
    else:
        told = f"{title}: use {shown(choice)}."
        if choice.method == ONE_LAUNCH:
            told += f" That is within one launch: repeats={FEWEST} would confirm it."
    parts = [told, if_wrong, f"What limits it: {limit}." if limit else ""]
    return " ".join(filter(None, parts))


def shown(candidate: Candidate) -> str:
    """`ring on 4 workers (2.43 ms an iteration, 2.40 to 2.46)`."""
    bounds = ""
    if candidate.low is not None and candidate.high is not None:
        digits = _digits(candidate)
        bounds = f", {number(candidate.low, digits)} to {number(candidate.high, digits)}"
    value = number(candidate.value, _digits(candidate))
    return f"{candidate.name} ({value} {candidate.unit}{bounds})"


def cost_of_error(
    choice: Candidate, runner_up: Candidate | None, rivals: Sequence[tuple[Candidate, str]]
) -> str:
    """What is lost at most if another is the best in truth; if none can be, what the runner-up costs.

    Where the noise floor is what keeps them from being told apart, no bound below it is stated: two
    measurements of the very same were as far apart, which the intervals of one launch do not show.
    """
    if rivals:
        lows = [one.low for one, _ in rivals]
        if choice.high is None or None in lows:
            return "What being wrong costs cannot be said yet: there is no interval."
        if any(low is not None and low <= 0 for low in lows):
            return "What being wrong costs cannot be said: the intervals reach down to 0."
        worst = choice.high / min(low for low in lows if low is not None) - 1
        floors = [one.row["noise_floor"] or 0.0 for one, _ in ((choice, ""), *rivals)]
        if any(why == "noise" for _, why in rivals) and worst < max(floors):
            return f"Choosing it wrongly may cost as much as the noise floor, {_more(max(floors))}."
        if choice.method == ONE_LAUNCH and worst <= 0:
            return "In this one launch no other was better; nothing tells of the next."
        if choice.method == ONE_LAUNCH:
            return f"Choosing it wrongly would cost at most {_more(max(0.0, worst))} in this one launch."
        return f"Choosing it wrongly costs at most {_more(max(0.0, worst))} (by the 95% intervals)."
    if runner_up is None:
        return "There is no other candidate."
    cost = runner_up.value / choice.value - 1
    bounds = ""
    if choice.low and choice.high and runner_up.low is not None and runner_up.high is not None:
        low, high = runner_up.low / choice.high - 1, runner_up.high / choice.low - 1
        bounds = f" ({_more(low)} to {_more(high)})"
    return f"The runner-up, {runner_up.name}, costs {_more(cost)} more{bounds}."


def _reasons(choice: Candidate, rivals: Sequence[tuple[Candidate, str]]) -> str:
    told = []
    for why, text in WHY.items():
        names = [_apart(choice, rival) for rival, reason in rivals if reason == why]
        if names:
            more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
            told.append(text.format(listed([*names[:MOST_NAMED], *more])))
    return listed(told)


def _apart(choice: Candidate, rival: Candidate) -> str:
    """The rival's name, without the further choices that both share."""
    if rival is choice:
        return "its own"
    first, *further = rival.name.split(", ")
    shared = choice.name.split(", ")
    apart = [part for part in further if part not in shared]
    return f"{first} ({', '.join(apart)})" if apart else first


def _what_would_tell(choice: Candidate, more_repeats: int | None, floor: float) -> str:
    if more_repeats is None and floor > LARGE_FLOOR:
        return (
            f"more repeats would not tell: two measurements of the same differ by up to {_more(floor)} here. "
            "Measure on a quieter machine, or longer (min_seconds)."
        )
    if more_repeats is None:
        return "more repeats would not tell: either will do."
    least = "at least " if len(choice.launches) < FEWEST else "about "
    return f"{least}{more_repeats} more repeat{'s' * (more_repeats > 1)} would tell."


def _digits(candidate: Candidate) -> int:
    """Significant ones that show the interval's width with two."""
    if candidate.low is None or candidate.high is None or candidate.high <= candidate.low:
        return 3
    relative = (candidate.high - candidate.low) / candidate.value
    return 3 if relative > 0.01 else 4


def _more(ratio: float) -> str:
    return percent(ratio, 1 if abs(ratio) < 0.1 else 0)
