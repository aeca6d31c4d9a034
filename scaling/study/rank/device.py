"""Measures a point of an experiment on this rank's device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from scaling.device_studies.base import Budget, LeftOutError, Point, create

LEFT_OUT = "left_out"  # the fact that says why a point was not measured
LOAD = "load_average"  # the fact with the host's processes that ran or waited to, in the minute before
WRITE_EVERY = 500  # rows that are kept in memory
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # in RuntimeErrors


def measure_point(
    experiment: str,
    parameters: Mapping[str, Any],
    point: Point,
    budget: Budget,
    device: torch.device,
    write: Callable[[Iterable[Mapping[str, Any]]], None],
) -> None:
    """Measures a point; out of memory is a result with the fact `left_out`. RuntimeError: it failed."""
    created = create(experiment, parameters)
    torch.manual_seed(0)
    rows: list[Mapping[str, Any]] = [{"fact": LOAD, "value": os.getloadavg()[0]}]
    try:
        for row in created.measure(point, device, budget):
            rows.append(row)
            if len(rows) >= WRITE_EVERY:
                write(rows)
                rows = []
    except LeftOutError as error:
        rows.append({"fact": LEFT_OUT, "value": str(error)})
    except (MemoryError, RuntimeError) as error:
        reason = _memory_error(error)
        if reason is None:
            raise
        rows.append({"fact": LEFT_OUT, "value": f"out of memory: {reason}"})
    write(rows)


def _memory_error(error: BaseException) -> str | None:
    """What it says where it, or what led to it, is memory that ran out: capturing a graph hides the cause."""
    cause: BaseException | None = error
    while cause is not None:
        text = (str(cause).splitlines() or [""])[0]
        is_known = isinstance(cause, torch.OutOfMemoryError | MemoryError)
        if is_known or any(word in text for word in OUT_OF_MEMORY):
            return text.partition(". GPU 0 has")[0].rstrip(".")
        cause = cause.__cause__ or cause.__context__
    return None
