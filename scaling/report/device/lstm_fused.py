"""How should an LSTM be written, and in which precision? Speeds, and whether the accuracy changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.formats import listed, percent
from scaling.measure.statistics import Estimate
from scaling.report.device.common import DEVICES, one_launch, range_of, times_of
from scaling.report.device.lstm_data import (
    DIFFERING,
    PHASES,
    Accuracy,
    Comparison,
    comparisons,
    timed,
)
from scaling.report.device.lstm_figures import figures
from scaling.report.device.lstm_tables import score_text, tables
from scaling.report.device.remarks import missing_remark
from scaling.report.device.results import Results, fastest

__all__ = ["figures", "sentences", "tables"]

MOST_NAMED = 3
"""Combinations without an accuracy, in a sentence."""


def sentences(results: Results) -> Iterator[str]:
    """Speeds by implementation, precision and device; last, whether the accuracy changes."""
    if chosen := timed(results):
        for device in DEVICES:
            yield from _implementations(results, chosen, device)
            yield from _precisions(results, chosen, device)
        yield from _devices(results, chosen)
    yield from missing_remark(results)
    compared = comparisons(results)
    if compared:
        told = " ".join(_answer(one) for one in compared)
        after = f"After {results.parameters['steps']} steps: {told}"
        yield (
            f"Does the accuracy change with the implementation or the precision? {_verdict(compared)}{after}"
        )


def _implementations(results: Results, chosen: dict[str, Any], device: str) -> Iterator[str]:
    names = {"cell": "a loop over LSTMCell", "elementary": "elementary operations"}
    found = {
        (phase, way): pairs
        for phase in PHASES
        for way in names
        if (pairs := _pairs(results, chosen, device, phase, {"implementation": way}, precision="float32"))
    }
    where, each = _at(results, chosen, found)
    told = []
    for phase, title in PHASES.items():
        clauses = [
            f"{range_of([*pairs.values()])} as fast as {names[way]}{each[own, way]}"
            for (own, way), pairs in found.items()
            if own == phase
        ]
        if clauses:
            told.append(f"in {title} {listed(clauses)}")
    if told:
        yield (
            f"{_where(chosen, device)}, float32{where}: the fused LSTM is "
            f"{'; '.join(told)}{one_launch(results)}."
        )


def _precisions(results: Results, chosen: dict[str, Any], device: str) -> Iterator[str]:
    found = {
        precision: pairs
        for precision in ("float64", "float16")
        if (
            pairs := _pairs(results, chosen, device, "step", {"precision": precision}, implementation="fused")
        )
    }
    where, each = _at(results, chosen, found)
    told = []
    for precision, pairs in found.items():
        ratio = range_of([(own, other) for other, own in pairs.values()])
        told.append(f"{ratio} as fast in {precision} as in float32{each[precision]}")
    if told:
        yield f"{_where(chosen, device)}{where}: the fused LSTM trains {listed(told)}{one_launch(results)}."


def _where(chosen: dict[str, Any], device: str) -> str:
    return f"{chosen['task']}, width {chosen['width']}, on the {DEVICES[device]}"


def _at(
    results: Results, chosen: dict[str, Any], found: Mapping[Any, dict[int, Any]]
) -> tuple[str, dict[Any, str]]:
    """`, at batch 1,024`, if all comparisons are of these batches, and what each needs to be told.

    Nothing is told where these are all batches of the study.
    """
    every = {cell.point["batch"] for cell in results.all(**chosen)}
    each = {
        key: "" if pairs.keys() == every else f" at batch {listed([f'{batch:,}' for batch in pairs])}"
        for key, pairs in found.items()
    }
    if len(set(each.values())) == 1 and any(each.values()):
        return f",{next(iter(each.values()))}", dict.fromkeys(each, "")
    return "", each


def _pairs(
    results: Results,
    chosen: dict[str, Any],
    device: str,
    phase: str,
    other: dict[str, str],
    **kept: str,
) -> dict[int, tuple[Estimate, Estimate]]:
    """Batch -> a phase's time of the other way and of the reference, where both were measured; ascending."""
    reference: dict[str, Any] = {**chosen, "implementation": "fused", "precision": "float32", **kept}
    found = {}
    for cell in results.all(device, **reference):
        batch = cell.point["batch"]
        against = results.find(device, **{**reference, **other, "batch": batch})
        own, others = cell.estimate(phase), against.estimate(phase) if against else None
        if own and others:
            found[batch] = (others, own)
    return dict(sorted(found.items()))


def _devices(results: Results, chosen: dict[str, Any]) -> Iterator[str]:
    """The GPU over the CPU, each with its fastest implementation in float32."""
    told, is_whole = [], True
    for batch in sorted({cell.point["batch"] for cell in results.all(**chosen)}):
        own = results.all(**chosen, batch=batch, precision="float32")
        cpu, gpu = (fastest([cell for cell in own if cell.device == device]) for device in ("cpu", "cuda"))
        if cpu and gpu:
            told.append(f"{times_of(cpu[1], gpu[1])} at batch {batch:,}")
            is_whole = is_whole and all(cell.is_over for cell in own)
    if told:
        which = "" if is_whole else " of those measured so far"
        yield (
            f"{chosen['task']}, width {chosen['width']}, float32, the fastest implementation{which} on each: "
            f"training on the GPU over the CPU, in samples a second, {listed(told)}{one_launch(results)}."
        )


def _verdict(compared: Sequence[Comparison]) -> str:
    """The answer in a few words, where all tasks and devices give one; "" otherwise."""
    if not all(one.reference and one.noise is not None and len(one.accuracies) > 1 for one in compared):
        return ""
    if any(_beyond(one) for one in compared):
        return "Yes, in part. "
    return "Not beyond chance. "


def _beyond(compared: Comparison) -> list[Accuracy]:
    """Those that differ from the reference by more than chance; [] where that is not known."""
    reference, noise = compared.reference, compared.noise
    if reference is None or noise is None:
        return []
    return [
        one
        for one in compared.accuracies
        if one is not reference and abs(one.difference(reference) or 0.0) > noise
    ]


def _answer(compared: Comparison) -> str:
    """`mnist-rows on the GPU: No. ...`."""
    reference, noise = compared.reference, compared.noise
    where = f"{compared.task} on the {DEVICES[compared.device]}"
    if reference is None:
        return (
            f"{where}: unknown, as the fused implementation in float32 has no accuracy{_spread(compared)}"
            f"{_missing(compared)}."
        )
    known = {kind: compared.differences(kind) for kind in DIFFERING}
    told = [_largest(kind, found) for kind, found in known.items() if found]
    if not told:
        return f"{where}: unknown, as nothing else was trained{_missing(compared)}."
    if noise is None:
        return f"{where}: with one seed it cannot be told from chance; {'; '.join(told)}."
    beyond = _beyond(compared)
    verdict = f"yes, for {listed([one.name for one in beyond])}" if beyond else "no change beyond chance"
    unseen = "" if beyond else ", so that a smaller change would not be seen"
    return (
        f"{where}: {verdict}; fused in float32 reaches {score_text(reference)} over {len(reference.by_seed)} "
        f"seeds, {'; '.join(told)}; two means of that many seeds differ by up to {100 * noise:.2f} points "
        f"by chance{unseen}{_missing(compared)}."
    )


def _spread(compared: Comparison) -> str:
    """What those that were trained reach, where there are several."""
    means = sorted(one.mean for one in compared.accuracies)
    if len(means) < 2:
        return ""
    low, high = percent(means[0], 2), percent(means[-1], 2)
    return f"; the {len(means)} others that were trained reach {low} to {high}"


def _largest(kind: str, found: Sequence[tuple[Accuracy, float]]) -> str:
    one, difference = max(found, key=lambda pair: abs(pair[1]))
    which = "both together" if kind == "combination" else f"another {kind}"
    if difference == 0.0:
        which = "both together" if kind == "combination" else f"other {kind}s"
        return f"{which} reach the same number"
    verb = "change" if kind == "combination" else "changes"
    points = f"{100 * difference:+.2f}" if abs(difference) >= 0.00005 else "less than 0.01"
    return f"{which} {verb} that by {points} points at most ({one.name})"


def _missing(compared: Comparison) -> str:
    told = []
    for why, cells in (
        ("not trained, as it would take too long", compared.left_out),
        ("not measured yet", compared.unmeasured),
    ):
        names = [f"{cell.point['implementation']}, {cell.point['precision']}" for cell in cells]
        short = "; ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} other combinations"
        told += [f"{why}: {short}"] if names else []
    return f" ({'. '.join(told)})" if told else ""
