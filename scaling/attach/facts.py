"""What the processes of an attached script know of it, and how much of it was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.attach.measured import Measured
from scaling.attach.ranks import named

LEAST_SAME = 3
"""First batches that are the same on all ranks: fewer may be by chance, as of constants."""


@dataclass(frozen=True)
class Rare:
    """What a script does in some steps only.

    Attributes:
        kind: "evaluation" or "save".
        ranks: that do it; none where all do.
        count: how often, on the rank with the most.
        every: so many steps.
        seconds: each takes.
        ratio: of the time.
        is_waited_for: fewer ranks than all do it, and the steps of the others are as much longer.
    """

    kind: str
    ranks: tuple[int, ...]
    count: int
    every: float
    seconds: float
    ratio: float
    is_waited_for: bool

    @property
    def text(self) -> str:
        """As a sentence."""
        verb = {"evaluation": "evaluate", "save": "save"}[self.kind]
        wait = ", while the others wait" if self.is_waited_for else ""
        subject = named(self.ranks) if self.ranks else "ranks"
        plural = "s" * (len(self.ranks) == 1)
        return (
            f"{subject} {verb}{plural} every {self.every:.0f} steps, {self.seconds:.2g} s{wait}: "
            f"{self.ratio:.0%} of the time"
        )


def rare(measured: Measured) -> list[Rare]:
    """Evaluations and saves of the last launch that switched arms."""
    ranks = measured.facts["baseline"]
    found = []
    for kind in ("evaluation", "save"):
        took = [_spans(rank, kind) for rank in ranks]
        if not any(took):
            continue
        most = max(range(len(took)), key=lambda at: sum(took[at]))
        marks = _marks(ranks[most])
        wall_s, doing = marks[-1] - marks[0], tuple(at for at, spans in enumerate(took) if spans)
        ratio = sum(took[most]) / max(wall_s, 1e-9)
        least = measured.left_out[-1][0] if measured.left_out else 0.0
        waits = len(doing) < len(ranks) and least > 0.5 * ratio / max(1 - ratio, 1e-9)
        count = len(took[most])
        each_s = float(np.mean(took[most]))
        doing = doing if len(doing) < len(ranks) else ()
        found.append(Rare(kind, doing, count, (len(marks) - 1) / count, each_s, ratio, waits))
    return found


def _marks(rank: dict[str, Any]) -> list[float]:
    """The ends of the steps after the warm-up, by the host's clock."""
    every = rank.get("host_s", rank["step_s"])
    return list(min(every, key=len)[rank["warmup"] - 1 :])


def _spans(rank: dict[str, Any], kind: str) -> list[float]:
    first_s = _marks(rank)[0]
    return [end_s - start_s for name, start_s, end_s in rank["phases"] if name == kind and start_s >= first_s]


def rare_text(measured: Measured) -> str:
    """What a script does in some steps only, in a line."""
    texts = [one.text for one in rare(measured) if one.ratio >= 0.005]
    return f"In some steps {'; '.join(texts)}." if texts else ""


def horizon_text(measured: Measured) -> str:
    """How much was seen, and the mean step with all of it."""
    ranks = measured.facts["baseline"]
    evaluations = max(len(_spans(rank, "evaluation")) for rank in ranks)
    saves = max(len(_spans(rank, "save")) for rank in ranks)
    epochs = max(int(rank.get("exhausted", 0)) for rank in ranks)
    counted = [(evaluations, "evaluation"), (saves, "save"), (epochs, "end of an epoch")]
    seen = [f"{count} {word}{'s' * (count > 1)}" for count, word in counted if count]
    seen = [text.replace("end of an epochs", "ends of epochs") for text in seen]
    steps = len(_marks(ranks[0])) - 1
    means_s = [*measured.means_s.get("clock", {}).values()]
    mean = (
        f"; as it is, with all of this, the mean step is {np.mean(means_s) * 1e3:.3g} ms" if means_s else ""
    )
    off = sorted({name for rank in ranks for name in rank.get("trackers", [])})
    uploads = sum(int(rank.get("uploads", 0)) for rank in ranks)
    left_out = [f"{' and '.join(off)} off"] * bool(off) + [f"{uploads} uploads left out"] * bool(uploads)
    others = f"; {', '.join(left_out)}" if left_out else ""
    return (
        f"Seen in a launch: {', '.join([f'{steps} steps of each rank', *seen])}; nothing rarer{mean}{others}."
    )


def same_samples(measured: Measured) -> bool:
    """Whether every rank draws the same batches, by digests of the first ones."""
    digests = [rank.get("digests", []) for rank in measured.facts["baseline"]]
    first = digests[0]
    return len(digests) > 1 and len(set(first)) >= LEAST_SAME and all(own == first for own in digests)


def exchanges_nothing(measured: Measured) -> bool:
    """Whether several ranks have no DDP model and call no collective."""
    ranks = measured.facts["baseline"]
    return len(ranks) > 1 and all(
        rank.get("without_ddp") and not any(rank.get("collectives", {}).values()) for rank in ranks
    )


def reduces_a_step(ranks: Sequence[dict[str, Any]]) -> float:
    """How often a script without DDP calls all_reduce in a step."""
    first = ranks[0]
    made = max(len(min(first["step_s"], key=len)), 1)
    return (
        float(first.get("collectives", {}).get("all_reduce", 0)) / made if first.get("without_ddp") else 0.0
    )


def facts_text(measured: Measured) -> str:
    """Settings that cost time, as they are in the processes."""
    first = measured.facts["baseline"][0]
    often, all_used = reduces_a_step([first]), first.get("find_unused") and first.get("all_used")
    on_gpu = measured.device == "cuda"
    is_slow_input = on_gpu and first.get("batches") and not first.get("draws_in_thread")
    facts = [
        (same_samples(measured), "every rank draws the same samples (no DistributedSampler)"),
        (exchanges_nothing(measured), "ranks exchange nothing: each trains a model of its own"),
        (all_used, "find_unused_parameters is on, though all were used"),
        (often >= 3, f"it calls all_reduce {often:.0f} times a step"),
        (first.get("steps_are_backward"), "no torch optimizer steps: a step is a backward pass"),
        (on_gpu and first.get("float32_products"), "float32 matrix products without TF32"),
        (is_slow_input and not first.get("pin_memory"), "loaders without pinned memory"),
        (is_slow_input and not first.get("loader_workers"), "loaders without workers"),
        (first.get("not_finite"), "parameters became infinite without exchange"),
    ]  # fmt: skip
    said = [text for is_so, text in facts if is_so]
    return f"Facts: {'; '.join(said)}." if said else ""
