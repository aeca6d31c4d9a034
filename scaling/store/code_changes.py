"""Changes of this program after which some cells take another time: what was measured before is not today's.

A run records how many of CODE_CHANGES its program had (`code_changes` of its launch); older runs are before a
change if they ended before it was made. Whoever makes an aggregator, a step or an update site faster or
slower adds one at the end; reports call what it concerns "older code" until it is measured again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaling.store.records import RunRecord


@dataclass(frozen=True)
class CodeChange:
    made_at: str  # UTC, ISO 8601 to the second
    what: str  # today's code has, as a clause: "one-bit gradients have kernels of their own"
    aggregators: tuple[str, ...]  # names of those whose cells it concerns
    devices: tuple[str, ...] = ("cpu", "cuda")  # on which
    steps: tuple[str, ...] = ()  # in which kinds of steps; (): in all


_CUDA = ("cuda",)
_BY_CHUNKS = ("one_bit_flat", "one_bit_momentum", "two_bit", "sign", "ef_sign", "qsgd")
_IN_HOOKS = ("one_bit", "cntk", *_BY_CHUNKS, "top_k", "power_sgd", "fp16", "bf16")
_BY_COLUMNS = "1-bit gradients by columns have faster, fused kernels"
CODE_CHANGES = (
    CodeChange(
        "2026-11-21T06:46:00+00:00", "sums in host memory are pipelined", ("host_serial", "host_parallel")
    ),
    CodeChange("2026-11-21T06:46:00+00:00", "rings and trees run over peer memory", ("ring", "tree"), _CUDA),
    CodeChange("2026-11-22T00:30:00+00:00", _BY_COLUMNS, ("one_bit", "cntk", "mpi_one_bit"), _CUDA),
    CodeChange("2026-11-22T03:40:00+00:00", "power_sgd launches half as many operations", ("power_sgd",)),
    CodeChange("2026-11-22T03:44:00+00:00", "codecs by chunks have faster, fused kernels", _BY_CHUNKS, _CUDA),
    CodeChange(
        "2026-11-27T20:00:00+00:00",
        "exchanges in DDP's hook are CUDA graphs",
        _IN_HOOKS,
        _CUDA,
        ("overlapped",),
    ),
    CodeChange(
        "2026-11-29T19:45:00+00:00",
        "sharded updates in overlapped steps are CUDA graphs",
        ("zero1", "zero2"),
        _CUDA,
        ("overlapped",),
    ),
)


def changes_since(record: RunRecord) -> Iterator[CodeChange]:
    """Those that concern a run's cell, and that the program did not have that measured it."""
    known, ended = record.launch.get("code_changes"), record.launch.get("finished_at")
    for number, change in enumerate(CODE_CHANGES, 1):
        if isinstance(known, int):
            is_older = known < number
        else:
            is_older = isinstance(ended, str) and ended < change.made_at
        concerns = record.cell.get("aggregator") in change.aggregators
        is_step = not change.steps or record.cell.get("step") in change.steps
        if is_older and concerns and is_step and record.cell.get("device") in change.devices:
            yield change
