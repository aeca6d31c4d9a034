"""What the findings that a device study declares say of its results, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from scaling.analysis.columns import by_key
from scaling.analysis.decisions import Difference
from scaling.device_studies.declaration import (
    DEVICES,
    BreakEven,
    Enough,
    Fastest,
    Finding,
    Noted,
    Times,
    Variant,
    Where,
)
from scaling.report.device.comparisons import (
    Crossing,
    Reached,
    crossing,
    crossing_text,
    finding,
    least,
    least_text,
    over_samples,
    reached,
    rounded,
    spread,
    times_of,
)
from scaling.report.device.results import STEP, DeviceResult, Results, fastest
from scaling.report.formats import listed, number


def ratios(
    results: Results,
    cells: Iterable[DeviceResult],
    over: Where,
    of: Where,
    at: Sequence[str],
    phase: str = STEP,
) -> dict[Any, Difference | None]:
    """Values of `at` -> the least time of `of` over that of `over`; None where one of both has none."""
    found = {}
    for key, same in results.grouped(cells, *at).items():
        first, second = (fastest(results.where(side, same), phase) for side in (over, of))
        found[key] = first.difference(second, phase) if first and second else None
    return found


def crossings(declared: BreakEven, results: Results, first: Variant) -> dict[Any, Crossing | None]:
    """Value of `by` -> from where on the first takes less time; without `by` of all cells, under None."""
    cells = results.where(declared.where)
    groups = results.grouped(cells, declared.by) if declared.by else {None: cells}
    than = declared.than
    if declared.threads:
        than = {"device": "cpu", "threads": min(cell.threads for cell in results.where({"device": "cpu"}))}
    return {
        value: crossing(ratios(results, same, first.where, than, [declared.x]))
        for value, same in groups.items()
    }


def firsts(declared: BreakEven, results: Results) -> list[Variant]:
    """What is compared with the others: arms of the GPU, or all threads."""
    if declared.threads:
        counts = {cell.threads for cell in results.where({"device": "cpu"})}
        if len(counts) < 2 or results.gpu_arms:
            return []
        return [Variant("", {"device": "cpu", "threads": max(counts)})]
    return [arm for arm in declared.first or results.gpu_arms if results.where(arm.where)]


def _break_even(declared: BreakEven, results: Results) -> Iterator[str]:
    cells = results.where(declared.where)
    if len(results.grouped(cells, declared.x)) < 2:
        return
    clauses = []
    for first in firsts(declared, results):
        found = crossings(declared, results, first)
        groups = by_key(found, lambda value, of=found: crossing_text(of[value], declared.unit))  # type: ignore[misc]
        name = f"{first.name}, " if first.name and declared.by else f"{first.name} ".lstrip()
        at = {
            text: f"at {declared.by} {listed([*map(results.label, values)])} " if declared.by else ""
            for text, values in groups.items()
        }
        clauses.append(name + "; ".join(f"{where}{text}" for text, where in at.items()))
    threads = sorted({cell.threads for cell in results.where(declared.than)})
    more = {"fewest": threads[0], "most": threads[-1]} if threads else {}
    cell = next(iter(results.where(declared.than, cells)), None)
    yield from finding(results, results.text(declared.text, cell, **more), clauses)


def _short_break_even(declared: BreakEven, results: Results) -> str:
    """From where on the first take less at every value of `by`; "" where that is nowhere, or not known."""
    clauses = []
    for first in firsts(declared, results):
        every = [*crossings(declared, results, first).values()]
        if any(found is None or found.wins == "nowhere" or not found.is_decided for found in every):
            return ""
        points = [found.at for found in every if found and found.at is not None]
        start = f"from {declared.unit} {rounded(max(points))} on" if points else ""
        clauses.append(f"{first.name} {start or f'at every measured {declared.unit}'}")
    return f"At every measured {declared.by}, {' and '.join(clauses)}." if clauses and declared.by else ""


def enough(declared: Enough, cells: Sequence[DeviceResult]) -> Reached | None:
    """The least `x` that is enough, if points not measured yet cannot change it. These are the points of
    smaller values, below one that is not enough: times are taken to fall until there."""
    need = reached(cells, declared.x, declared.ratio)
    if need is None or (not declared.is_bound and sum(cell.estimate() is not None for cell in cells) < 2):
        return None
    least_x = need.possible.value(declared.x)
    below = max((x for cell in cells if (x := cell.value(declared.x)) < least_x), default=least_x)
    return need if all(cell.is_over for cell in cells if cell.value(declared.x) >= below) else None


def _arms(declared: Enough, results: Results) -> list[Variant]:
    devices = [device for device in DEVICES if results.where(device.where)]
    return devices if declared.x == "threads" else results.arms


def needs(declared: Enough, results: Results, arm: Variant) -> dict[Any, Reached]:
    """Value of `by` -> what is enough there, where it is known."""
    found = {}
    for value, cells in results.grouped(results.where(arm.where), declared.by).items():
        need = enough(declared, cells)
        if need and ("{times}" not in declared.bracket or _gain(declared, results, need)):
            found[value] = need
    return found


def _gain(declared: Enough, results: Results, need: Reached) -> Difference | None:
    return need.shown.difference(results.first_along(need.shown, declared.x))


def _is_largest(declared: Enough, results: Results, need: Reached) -> bool:
    """Whether no larger value was measured: then a larger one may be needed."""
    others = {**need.shown.point, "device": need.shown.device}
    others.pop(declared.x, None)
    larger = [cell.value(declared.x) for cell in results.where(others) if cell.estimate()]
    return declared.is_bound and bool(need.shown.value(declared.x) == max(larger))


def _enough(declared: Enough, results: Results) -> Iterator[str]:
    clauses, missing = [], []
    every_value = [*results.grouped(results.cells, declared.by)]
    counts = _counts(declared, results)
    for arm in _arms(declared, results):
        known, each = needs(declared, results, arm), []
        for value, need in known.items():
            gain = _gain(declared, results, need) if "{times}" in declared.bracket else None
            bracket = declared.bracket.format(
                per_s=number(need.best.samples_per_s), times=times_of([gain]) if gain else "", **counts
            )
            text = need.text(declared.x, is_bound=_is_largest(declared, results, need))
            each.append(f"{value} {text} ({bracket})")
        clauses += [f"on the {arm.name}: {', '.join(each)}"] if each else []
        if without := [value for value in every_value if value not in known]:
            every = f"every {results.label(declared.by)}" if not known else ""
            missing.append(f"on the {arm.name} for {every or listed(without)}")
    yield from finding(results, results.text(declared.text, **counts), clauses)
    if missing:
        yield f"Not answered, as points are missing, {'; '.join(missing)}."
    if declared.ahead:
        each = [f"{value} {times_of([ratio])}" for value, ratio in ahead(declared, results).items()]
        yield from finding(results, declared.ahead, each)


def _counts(declared: Enough, results: Results) -> dict[str, Any]:
    every = [cell.value(declared.x) for cell in results.cells]
    return {"least": min(every), "most": max(every)}


def ahead(declared: Enough, results: Results) -> dict[Any, Difference]:
    """Value of `by` -> the least time of a sample on the CPU over the GPU's, where all arms are known."""
    known = {arm: needs(declared, results, arm) for arm in results.arms}
    found = {}
    for value in results.grouped(results.cells, declared.by):
        sides = [
            [known[arm][value].best for arm in known if arm.where["device"] == device and value in known[arm]]
            for device in ("cpu", "cuda")
        ]
        if all(sides) and len(sides[0]) + len(sides[1]) == len(known):
            cpu, gpu = (min(side, key=lambda cell: cell.sample_s) for side in sides)
            if difference := over_samples(gpu, cpu):
                found[value] = difference
    return found


def _short_enough(declared: Enough, results: Results) -> str:
    """What is enough on each device, from the least to the most of all; how much longer the CPU takes."""
    clauses, num_values = [], 0
    for device in DEVICES:
        arms = [arm for arm in _arms(declared, results) if arm.where["device"] == device.where["device"]]
        known = [needs(declared, results, arm) for arm in arms]
        each = [need for found in known for need in found.values()]
        if not each:
            continue
        num_values = max(num_values, *map(len, known))
        more = " or more" if any(_is_largest(declared, results, need) for need in each) else ""
        gains = [gain.ratio for need in each if (gain := _gain(declared, results, need))]
        enough_of = spread([need.shown.value(declared.x) for need in each]) + more
        values = {"enough": enough_of, "times": spread(gains) if gains else "", "on": device.name}
        clauses.append(declared.short.format(**values, **_counts(declared, results)))
    if not clauses:
        return ""
    ratios_ = [ratio.ratio for ratio in ahead(declared, results).values()] if declared.ahead else []
    longer = f"; a sample then takes {spread(ratios_)} times as long on the CPU" if ratios_ else ""
    counted = f" ({num_values} {results.label(declared.by)}s)" if num_values > 1 else ""
    return f"{declared.before}{' and '.join(clauses)}{counted}{longer}."


def groups_of(declared: Fastest, results: Results, device: Variant) -> dict[Any, list[DeviceResult]]:
    return results.grouped(results.where(declared.where, results.where(device.where)), *declared.by)


def _fastest(declared: Fastest, results: Results) -> Iterator[str]:
    unmeasured = []
    for device in DEVICES:
        names: dict[str, list[str]] = {}
        for cells in groups_of(declared, results, device).values():
            at = results.text(declared.at, cells[0])
            best = least(cells)
            if not all(cell.is_over for cell in cells):
                unmeasured.append(f"on the {device.name} {at}".strip())
            elif best:
                text = least_text(best, [results.label(cell.value(declared.choice)) for cell in best])
                if other := _other(declared, results, best, cells):
                    text += f" ({other[0]} {times_of([other[1]])} as long)"
                names.setdefault(text, []).append(at)
        each = [f"{text} {listed(where)}".strip() for text, where in names.items()]
        yield from finding(results, results.text(declared.text, on=device.name), each)
    if unmeasured:
        yield f"Not answered, as choices are not measured yet, {'; '.join(unmeasured)}."


def _other(
    declared: Fastest, results: Results, best: Sequence[DeviceResult], cells: Sequence[DeviceResult]
) -> tuple[str, Difference] | None:
    choices = results.grouped(results.where(declared.where), declared.choice)
    others = [cell for cell in cells if cell.estimate() and cell not in best]
    is_clear = len(choices) == 2 and len(best) == len(others) == 1
    difference = over_samples(best[0], others[0]) if is_clear else None
    return (results.label(others[0].value(declared.choice)), difference) if difference else None


def _short_fastest(declared: Fastest, results: Results) -> str:
    """The choice that is among the best of all groups, on each device."""
    clauses = []
    for device in DEVICES:
        groups = [*groups_of(declared, results, device).values()]
        if not groups or not all(cell.is_over for cells in groups for cell in cells):
            continue
        best = [least(cells) for cells in groups]
        everywhere = set.intersection(*({cell.value(declared.choice) for cell in one} for one in best))
        choices = results.grouped(best[0], declared.choice)
        common = [results.label(value) for value in choices if value in everywhere]
        found = [_other(declared, results, *pair) for pair in zip(best, groups, strict=True)]
        times = [other[1].ratio for other in found if other]
        longer = f" (the other {spread(times)} times as long)" if times else ""
        names = {"choice": listed(common, "or"), "on": device.name}
        clauses += [declared.short.format(**names) + longer] if common and declared.short else []
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _times(declared: Times, results: Results) -> Iterator[str]:
    sides: list[tuple[str, Where]] = [
        (label.format(**more), {**of, **more})
        for label, of in declared.of.items()
        for value in (results.grouped(results.where(of), declared.vary) if declared.vary else [None])
        for more in [{declared.vary: value} if declared.vary else {}]
    ]
    is_across = any("device" in side for side in (declared.over, *declared.of.values()))
    for device in [None] if is_across else DEVICES:
        cells = results.where(device.where) if device else results.cells
        compared = results.where(declared.over, cells)
        clauses = []
        for phase, word in declared.phases.items():
            items = [item for pair in sides if (item := _item(declared, results, cells, *pair, phase))]
            clauses += [f"{word} {listed(items)}".strip()] if items else []
        if clauses:
            text = results.text(declared.text, compared[0], error=_largest(declared, compared))
            yield from finding(results, text, clauses, declared.after)


def _item(
    declared: Times, results: Results, cells: list[DeviceResult], label: str, of: Where, phase: str
) -> str:
    """`2.0 to 4.0 times by a loop over LSTMCell`; "" where nothing was measured."""
    wanted = [cell for cell in cells if not results.where(of, [cell]) or declared.only(cell)]
    sides = (of, declared.over) if declared.turned else (declared.over, of)
    found = ratios(results, wanted, *sides, declared.at, phase)
    known = {key: difference for key, difference in found.items() if difference}
    if not known:
        return ""
    if declared.each:
        each = []
        for key, difference in known.items():
            values = map(results.label, key if isinstance(key, tuple) else (key,))
            names = dict(zip(declared.at, values, strict=True))
            each.append(declared.each.format(times=times_of([difference]), **names))
        text = listed(each)
    else:
        both = [*results.where(declared.over, cells), *results.where(of, cells)]
        text = times_of([*known.values()])
        if len(known) < len(results.grouped(both, *declared.at)) and len(declared.at) == 1:
            text += f" at {declared.at[0]} {listed([*map(results.label, known)])}"
    if declared.error:
        label += f" (relative error up to {_largest(declared, results.where(of, wanted))})"
    return f"{text} {label}".strip()


def _largest(declared: Times, cells: Iterable[DeviceResult]) -> str:
    errors = [error for cell in cells if (error := cell.fact(declared.error)) is not None]
    return f"{max(errors):.1e}" if errors else "unknown"


def _noted(declared: Noted, results: Results) -> Iterator[str]:
    return (results.text(declared.text, cell) for cell in results.cells if declared.only(cell))


SAID: dict[type, tuple[Callable[[Any, Results], Iterator[str]], Callable[[Any, Results], str]]] = {
    BreakEven: (_break_even, _short_break_even),
    Enough: (_enough, _short_enough),
    Fastest: (_fastest, _short_fastest),
    Times: (_times, lambda *_: ""),
    Noted: (_noted, lambda *_: ""),
}
"""Kind of a finding -> its sentences, and the short answer."""


def sentences(declared: Sequence[Finding], results: Results) -> Iterator[str]:
    for one in declared:
        yield from SAID[type(one)][0](one, results)


def short_answer(declared: Sequence[Finding], results: Results) -> str:
    return " ".join(filter(None, (SAID[type(one)][1](one, results) for one in declared)))
