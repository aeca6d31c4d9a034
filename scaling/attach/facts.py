"""What the processes of an attached script know of it, and how much of it was seen."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.attach.marks import RARE
from scaling.attach.measured import Measured, Saved

LEAST_SAME = 3  # samples that are the same on all ranks: fewer may be by chance, as of constants


@dataclass(frozen=True)
class Rare:
    kind: str
    ranks: tuple[int, ...]  # that do it; none where all do
    count: int
    every: float
    seconds: float
    ratio: float
    is_waited_for: bool  # fewer ranks than all do it, and the steps of the others are as much longer
    is_most: bool  # of what steps of another kind add


def rare(measured: Measured) -> list[Rare]:
    ranks, found = measured.ranks, []
    for kind in RARE:
        took = [_steps_with(rank, kind) for rank in ranks]
        doing = tuple(at for at, steps in enumerate(took) if steps)
        if not doing:
            continue
        most = max(doing, key=lambda at: sum(took[at].values()))
        marks, steps, total_s = _marks(ranks[most]), sorted(took[most]), sum(took[most].values())
        ratio = total_s / max(marks[-1] - marks[0], 1e-9)
        least, of_step = measured.left_out[-1] if measured.left_out else 0.0, ratio / max(1 - ratio, 1e-9)
        waits = len(doing) < len(ranks) and least > 0.5 * of_step
        every = float(np.median(np.diff(steps))) if len(steps) > 1 else len(marks) - 1.0
        doing = doing if len(doing) < len(ranks) else ()
        how = len(steps), every, total_s / len(steps), ratio, waits, of_step > 0.5 * least
        found.append(Rare(kind, doing, *how))
    return sorted(found, key=lambda one: -one.ratio)


def _marks(rank: dict[str, Any]) -> list[float]:
    return list(min(rank.get("host_s", rank["step_s"]), key=len)[rank["warmup"] - 1 :])


def _steps_with(rank: dict[str, Any], kind: str, *, in_warmup: bool = False) -> dict[int, float]:
    """The steps after the warm-up, or in it, in which a rank does it -> its seconds in them."""
    marks, steps_s = min(rank.get("host_s", rank["step_s"]), key=len), dict[int, float]()
    for name, start_s, end_s in rank["phases"]:
        number = bisect(marks, start_s) - rank["warmup"] + 1
        if name == kind and (number < 1) == in_warmup:
            steps_s[number] = steps_s.get(number, 0.0) + end_s - start_s
    return steps_s


def _seen(ranks: Sequence[dict[str, Any]], kind: str, *, in_warmup: bool = False) -> int:
    return max(len(_steps_with(rank, kind, in_warmup=in_warmup)) for rank in ranks)


def mean_step(measured: Measured) -> dict[str, Any]:
    means_s = [*measured.means_s.get("clock", {}).values()]
    number = sum(len(_marks(measured.facts["clock"][0])) - 1 for _ in means_s)
    return {"mean_s": float(np.mean(means_s)) if means_s else None, "mean_steps": number}


def horizon(measured: Measured) -> dict[str, Any]:
    ranks = measured.ranks
    trackers = sorted({name for rank in ranks for name in rank.get("trackers", ())})
    return {
        "steps": len(_marks(ranks[0])) - 1, "evaluations": _seen(ranks, "evaluation"),
        "saves": _seen(ranks, "save") + max(int(rank.get("saves_in_thread", 0)) for rank in ranks),
        "first_evaluations": _seen(ranks, "evaluation", in_warmup=True),
        "first_saves": _seen(ranks, "save", in_warmup=True),
        "epochs": max(int(rank.get("exhausted", 0)) for rank in ranks),
        "trackers": {name: sum(rank["trackers"].get(name, 0) for rank in ranks) for name in trackers},
        "kept": len({path for rank in ranks for path in rank.get("kept", ())}),
        "uploads": sum(int(rank.get("uploads", 0)) for rank in ranks),
    }  # fmt: skip


def same_samples(measured: Measured) -> bool:
    """Whether ranks draw as many of the same first samples as from one set; of an unknown one, the same."""
    kinds = [set(rank.get("digests", ())) for rank in measured.ranks]
    least: float = min(map(len, kinds))
    if length := unshared(measured):
        least = max(LEAST_SAME, 0.5 * least**2 / length)
    return len(kinds) > 1 and least >= LEAST_SAME and all(len(own & kinds[0]) >= least for own in kinds)


def unshared(measured: Measured) -> int | None:
    lengths = {rank.get("unshared_samples") for rank in measured.ranks}
    return lengths.pop() if len(lengths) == 1 else None


def exchanges_nothing(measured: Measured) -> bool:
    """Whether several ranks have no DDP model, and pass fewer numbers by own collectives than it has."""
    ranks = measured.ranks
    are_few = [rank.get("passed", 0) < rank.get("num_parameters", 1) for rank in ranks]
    return len(ranks) > 1 and all(are_few) and all(rank.get("without_ddp") for rank in ranks)


def without_no_sync(measured: Measured) -> bool:
    """Whether each of a step's backward passes exchanges all gradients, though one would do."""
    first, (backward, _, _, updates, *_) = measured.ranks[0], measured.signatures["baseline"]
    # A closure that is evaluated several times needs each exchange; several models have one each.
    has_closure = measured.facts.get("no_exchange", [{}])[0].get("has_closure")
    needs_each = has_closure or first.get("num_models", 1) > 1 or first.get("without_ddp")
    return updates == 1 < backward and not needs_each and not first.get("skips_exchange")


def hosts(ranks: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]], int]]:
    for host in sorted({rank.get("host", "") for rank in ranks}):
        here = [rank for rank in ranks if rank.get("host", "") == host]
        yield host, here, len(set().union(*(rank.get("affinity", []) for rank in here)))


def crowded(ranks: Sequence[dict[str, Any]]) -> tuple[int, int] | None:
    known = [(sum(rank["threads"] for rank in here), cores) for _, here, cores in hosts(ranks)]
    return next((one for one in known if 0 < one[1] < one[0]), None)


def reduces_a_step(rank: dict[str, Any]) -> float:
    made = max(len(min(rank["step_s"], key=len)), 1)
    return rank.get("collectives", {}).get("all_reduce", 0) / made if rank.get("without_ddp") else 0.0


def settings(measured: Measured) -> dict[str, Any]:
    first, on_gpu = measured.ranks[0], measured.device == "cuda"
    is_slow_input = on_gpu and first.get("batches") and not first.get("draws_in_thread")
    return {
        "same_samples": same_samples(measured),
        "unshared": None if same_samples(measured) else unshared(measured),
        "all_used": first.get("find_unused") and first.get("all_used"),
        "calls": reduces_a_step(first),
        "passes": measured.signatures["baseline"][0] if without_no_sync(measured) else None,
        "crowded": crowded(measured.ranks),
        "steps_are": first.get("steps_are"),
        "float32_products": on_gpu and first.get("float32_products"),
        "not_pinned": is_slow_input and not first.get("pin_memory"),
        "no_workers": is_slow_input and not first.get("loader_workers"),
        "not_finite": first.get("not_finite"),
    }


SAME_SIZE = 0.05  # if the mean sizes of batches differ by more, they are other work
BLOCKED = 0.5  # making a batch that computes for less of its time waits: for storage, a network, a sleep


def batch_making(measured: Measured) -> dict[str, Any]:
    """Median seconds, parts on a processor and waiting for one, what it waits for; empty if not seen."""
    fetches = np.array([fetch for rank in measured.alone for fetch in rank.get("fetches", [])])
    if not fetches.size:
        return {}
    wall_s, cpu_s, queued_s = fetches.sum(axis=0)
    computes, queues = min(cpu_s / max(wall_s, 1e-9), 1.0), queued_s / max(wall_s, 1e-9)
    return {
        "seconds": float(np.median(fetches[:, 0])), "computes_ratio": float(computes),
        "queues_ratio": float(queues), "waits": bool(computes + queues < BLOCKED),
        "is_queued": bool(queues >= BLOCKED),
    }  # fmt: skip


def saved_by_cached_input(measured: Measured) -> Saved | None:
    """By the arm with cached input, where its batches are as large as the script's."""
    if measured.changed("cached_input"):
        return None
    usual, cached = (measured.mean_elements(arm) for arm in ("baseline", "cached_input"))
    if usual and any(abs(b / a - 1) > SAME_SIZE for a, b in zip(usual, cached, strict=True) if a):
        return None
    return measured.saved("cached_input")


def loader_starts(measured: Measured) -> dict[str, Any]:
    """How often a loader of the training began anew in a run's steps, on the rank with the fewest."""
    none: dict[str, Any] = {"step_s": [()]}
    rank = min(measured.alone, key=lambda rank: int(rank.get("iterators", 0)), default=none)
    count = rank.get("iterators", 0)
    has_workers = rank.get("loader_workers", 0) > 0 and not rank.get("persistent_workers", False)
    return {
        "starts": count, "abandoned": count - rank.get("exhausted", 0),
        "steps": min(map(len, rank["step_s"])), "starts_workers": count > 1 and has_workers,
    }  # fmt: skip
