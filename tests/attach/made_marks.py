"""Runs of a script with marks that are made up."""

from typing import Any

from scaling.attach.launch import Run
from scaling.attach.measured import Measured

ONE_STEP = (1, 1, 0, 1)


def made_rank(rank: int, steps_s: list[float], counts: list[tuple[int, ...]] | None = None) -> dict[str, Any]:
    """A record whose steps after the first mark take so long, half of each in input."""
    marks, total, phases = [0.0], [1, 1, 0, 1], []
    cumulative = [list(total)]
    for at, step_s in enumerate(steps_s):
        start_s = marks[-1]
        marks.append(start_s + step_s)
        total = [a + b for a, b in zip(total, (counts or [ONE_STEP] * len(steps_s))[at], strict=True)]
        cumulative.append(total)
        phases.append(("input", start_s, start_s + step_s / 2))
        phases.append(("backward", start_s + step_s * 0.6, start_s + step_s * 0.7))
        phases.append(("update", start_s + step_s * 0.7, marks[-1]))
    return {
        "rank": rank, "world_size": 2, "warmup": 1, "step_s": [marks], "counts": [cumulative],
        "phases": phases, "device": "cpu", "batches": [(8, 64)] * 7, "cached_batches": [(8, 64)] * 7,
        "is_last": True, "has_cached_input": True, "bucket_bytes": [4096, 2**22],
        "threads": 1, "cores": 2,
    }  # fmt: skip


def pair(
    steps_s: list[float], counts: list[tuple[int, ...]] | None = None, **facts: Any
) -> list[dict[str, Any]]:
    """The records of two ranks whose steps take as long."""
    return [{**made_rank(at, steps_s, counts), **facts} for at in range(2)]


def made_switched(arms_s: dict[str, float], rounds: int = 4, block: int = 3) -> list[dict[str, Any]]:
    """The records of two ranks of a launch that switches these arms, whose steps take so long."""
    labels: list[tuple[str, int, int]] = [("baseline", -1, 0)]
    labels += [(arm, at, within) for at in range(rounds) for arm in arms_s for within in range(block)]
    return pair([arms_s[arm] for arm, _, _ in labels[1:]], labels=labels, arms=list(arms_s))


def made_runs(steps_s: dict[str, tuple[float, float]], drift: float = 0.001) -> Measured:
    """Arm -> the two ranks' steps; A/A pairs differ by `drift`."""
    measured = Measured()
    for launch in range(3):
        for arm, ranks in steps_s.items():
            factor = 1 + (drift if arm == "aa" else 0.0)
            records = [made_rank(at, [step_s * factor] * 6) for at, step_s in enumerate(ranks)]
            measured.add(launch, Run(arm, records))
    return measured


def made_launches(count: int, ranks: dict[str, list[dict[str, Any]]]) -> Measured:
    """So many launches of which each has the same records of each arm."""
    measured = Measured()
    for launch in range(count):
        for arm, records in ranks.items():
            measured.add(launch, Run(arm, records))
    return measured


EVEN = {"baseline": (0.1, 0.1), "aa": (0.1, 0.1)}


def with_facts(measured: Measured, arm: str, **facts: Any) -> Measured:
    """The same runs with other facts in the records of an arm."""
    measured.facts[arm] = [{**rank, **facts} for rank in measured.facts[arm]]
    return measured


def with_run(measured: Measured, run: Run, launch: int = 0) -> Measured:
    """The same runs and one more."""
    measured.add(launch, run)
    return measured
