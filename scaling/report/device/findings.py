"""What the findings that a device study declares say of its results, in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
    reached,
    rounded,
    spread,
    times_of,
)
from scaling.report.device.results import STEP, DeviceResult, DeviceResults, fastest
from scaling.report.formats import listed, number


def ratios(
    results: DeviceResults,
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


def crossings(declared: BreakEven, results: DeviceResults) -> dict[str, dict[Any, Crossing | None]]:
    """Arm of the GPU, or "" for all threads -> value of `by`, or () -> from where on it takes less time."""
    firsts, than = [*(declared.first or results.gpu_arms)], declared.than
    if declared.threads:
        counts = sorted({cell.threads for cell in results.where(than)})
        than = {**than, "threads": counts[:1]}
        is_said = len(counts) > 1 and not results.gpu_arms
        firsts = [Variant("", {**declared.than, "threads": counts[-1]})] if is_said else []
    cells = results.where(declared.where)
    groups = results.grouped(cells, *([declared.by] if declared.by else []))
    return {
        first.name: {
            value: crossing(ratios(results, same, first.where, than, [declared.x]))
            for value, same in groups.items()
        }
        for first in firsts
        if results.where(first.where)
    }


def _break_even(declared: BreakEven, results: DeviceResults) -> Iterator[str]:
    cells = results.where(declared.where)
    if len(results.grouped(cells, declared.x)) < 2:
        return
    clauses = []
    for name, found in crossings(declared, results).items():
        groups = by_key(found, lambda value, of=found: crossing_text(of[value], declared.unit))  # type: ignore[misc]
        at = {
            text: f"at {declared.by} {listed([*map(results.label, values)])} " if declared.by else ""
            for text, values in groups.items()
        }
        before = f"{name}, " if name and declared.by else f"{name} ".lstrip()
        clauses.append(before + "; ".join(f"{where}{text}" for text, where in at.items()))
    cell = next(iter(results.where(declared.than, cells)), None)
    ends = results.ends("threads", results.where(declared.than))
    yield from finding(results, results.text(declared.text, cell, **ends), clauses)


def _short_break_even(declared: BreakEven, results: DeviceResults) -> str:
    clauses = []
    for name, each in crossings(declared, results).items():
        every = [found for found in each.values() if found and found.at < math.inf and found.is_decided]
        if len(every) < len(each):
            return ""
        points = [found.at for found in every if found.at]
        start = f"from {declared.unit} {rounded(max(points))} on" if points else ""
        clauses.append(f"{name} {start or f'at every measured {declared.unit}'}")
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


def needs(declared: Enough, results: DeviceResults) -> dict[Variant, dict[Any, Reached]]:
    """Arm, or device where `x` are its threads -> value of `by` -> what is enough there."""
    devices = [device for device in DEVICES if results.where(device.where)]
    found: dict[Variant, dict[Any, Reached]] = {}
    for arm in devices if declared.x == "threads" else results.arms:
        found[arm] = {}
        for value, cells in results.grouped(results.where(arm.where), declared.by).items():
            if need := enough(declared, cells):
                along = results.along(need.shown, declared.x)
                gain = need.shown.difference(along[0])
                largest = [cell for cell in along if cell.estimate()][-1]
                is_bound = declared.is_bound and largest is need.shown
                if gain or "{times}" not in declared.bracket:
                    found[arm][value] = replace(need, gain=gain, is_bound=is_bound)
    return found


def _enough(declared: Enough, results: DeviceResults) -> Iterator[str]:
    clauses, missing = [], []
    every_value = [*results.grouped(results.cells, declared.by)]
    ends = results.ends(declared.x)
    for arm, known in needs(declared, results).items():
        each = []
        for value, need in known.items():
            times = times_of([need.gain]) if need.gain else ""
            bracket = declared.bracket.format(per_s=number(need.best.per_s()), times=times, **ends)
            each.append(f"{value} {need.text(declared.x)} ({bracket})")
        clauses += [f"on the {arm.name}: {', '.join(each)}"] if each else []
        if without := [value for value in every_value if value not in known]:
            every = f"every {results.label(declared.by)}" if not known else ""
            missing.append(f"on the {arm.name} for {every or listed(without)}")
    yield from finding(results, results.text(declared.text, **ends), clauses)
    if missing:
        yield f"Not answered, as points are missing, {'; '.join(missing)}."
    each = [f"{value} {times_of([ratio])}" for value, ratio in ahead(declared, results).items()]
    yield from finding(results, declared.ahead, each)


def ahead(declared: Enough, results: DeviceResults) -> dict[Any, Difference]:
    """Value of `by` -> the least time of a sample on the CPU over the GPU's, where all arms are known."""
    known = needs(declared, results) if declared.ahead else {}
    found = {}
    for value in results.grouped(results.cells, declared.by):
        best = [(arm.where["device"], each[value].best) for arm, each in known.items() if value in each]
        sides = [[cell for on, cell in best if on == device] for device in ("cpu", "cuda")]
        if all(sides) and len(best) == len(known):
            cpu, gpu = (min(side, key=lambda cell: cell.sample_s) for side in sides)
            if difference := gpu.over_samples(cpu):
                found[value] = difference
    return found


def _short_enough(declared: Enough, results: DeviceResults) -> str:
    clauses, num_values, every = [], 0, needs(declared, results).items()
    for device in DEVICES:
        known = [found for arm, found in every if arm.where["device"] == device.where["device"]]
        each = [need for found in known for need in found.values()]
        if not each:
            continue
        num_values = max(num_values, *map(len, known))
        more = " or more" if any(need.is_bound for need in each) else ""
        enough_of = spread([need.shown.value(declared.x) for need in each]) + more
        times = spread([need.gain.ratio for need in each if need.gain])
        values = {"enough": enough_of, "times": times, "on": device.name, **results.ends(declared.x)}
        clauses.append(declared.short.format(**values))
    if not clauses:
        return ""
    ratios_ = spread([ratio.ratio for ratio in ahead(declared, results).values()])
    longer = f"; a sample then takes {ratios_} times as long on the CPU" if ratios_ else ""
    counted = f" ({num_values} {results.label(declared.by)}s)" if num_values > 1 else ""
    return f"{declared.before}{' and '.join(clauses)}{counted}{longer}."


def groups_of(declared: Fastest, results: DeviceResults, device: Variant) -> dict[Any, list[DeviceResult]]:
    return results.grouped(results.where(declared.where, results.where(device.where)), *declared.by)


def _fastest(declared: Fastest, results: DeviceResults) -> Iterator[str]:
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
    declared: Fastest, results: DeviceResults, best: Sequence[DeviceResult], cells: Sequence[DeviceResult]
) -> tuple[str, Difference] | None:
    choices = results.grouped(results.where(declared.where), declared.choice)
    others = [cell for cell in cells if cell.estimate() and cell not in best]
    is_clear = len(choices) == 2 and len(best) == len(others) == 1
    difference = best[0].over_samples(others[0]) if is_clear else None
    return (results.label(others[0].value(declared.choice)), difference) if difference else None


def _short_fastest(declared: Fastest, results: DeviceResults) -> str:
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
        times = spread([other[1].ratio for other in found if other])
        longer = f" (the other {times} times as long)" if times else ""
        names = {"choice": listed(common, "or"), "on": device.name}
        clauses += [declared.short.format(**names) + longer] if common and declared.short else []
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _times(declared: Times, results: DeviceResults) -> Iterator[str]:
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
    declared: Times, results: DeviceResults, cells: list[DeviceResult], label: str, of: Where, phase: str
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
        if len(declared.at) == 1 and len(known) < len(results.grouped(both, *declared.at)):
            text += f" at {declared.at[0]} {listed([*map(results.label, known)])}"
    if declared.error:
        label += f" (relative error up to {_largest(declared, results.where(of, wanted))})"
    return f"{text} {label}".strip()


def _largest(declared: Times, cells: Iterable[DeviceResult]) -> str:
    errors = [error for cell in cells if (error := cell.fact(declared.error)) is not None]
    return f"{max(errors):.1e}" if errors else "unknown"


SAID: dict[type, Callable[[Any, DeviceResults], Iterator[str]]] = {
    BreakEven: _break_even,
    Enough: _enough,
    Fastest: _fastest,
    Times: _times,
    Noted: lambda noted, results: map(partial(results.text, noted.text), filter(noted.only, results.cells)),
}
SHORT: dict[type, Callable[[Any, DeviceResults], str]] = {
    BreakEven: _short_break_even,
    Enough: _short_enough,
    Fastest: _short_fastest,
}


def sentences(declared: Sequence[Finding], results: DeviceResults) -> Iterator[str]:
    for one in declared:
        yield from SAID[type(one)](one, results)


def short_answer(declared: Sequence[Finding], results: DeviceResults) -> str:
    return " ".join(filter(None, (SHORT[type(one)](one, results) for one in declared if type(one) in SHORT)))
