"""Makes a sheet: runs the aggregator over recorded gradients, and times it over larger ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.aggregators.host import threads
from scaling.aggregators.prediction import all_reduce_bytes
from scaling.aggregators.registry import create
from scaling.conformance.fidelity.gradients import (
    LARGE,
    LEARNING_RATE,
    NUM_STEPS,
    WORLD_SIZE,
    recorded_gradients,
)
from scaling.conformance.fidelity.sheet import Sheet
from scaling.measure.clock import clock_for
from scaling.process_group import Group, run_in_process
from topologies.detect import cpu_model

NUM_TIMED = 3


def has_sheet(aggregator: Aggregator[Any]) -> bool:
    """Whether it is lossy from the first step, and runs on ranks that are threads."""
    in_threads = aggregator.library is None and aggregator.update_site == "replica"
    return aggregator.lossy and in_threads and not aggregator.settling_steps()


def sheet_of(name: str) -> Sheet | None:
    """That of an aggregator, by its name or as module:attribute; None for those that have none.

    Raises:
        StudyError: there is no such aggregator.
    """
    aggregator = create(name)
    if not has_sheet(aggregator):
        return None
    with threads(1):  # ranks are threads already
        return make_sheet(aggregator)


def make_sheet(aggregator: Aggregator[Any]) -> Sheet:
    """Runs all of it; takes some seconds."""
    first, total, parameters = _through_training(aggregator)
    _, gradients = recorded_gradients()
    expected_first, expected_total = _expected(gradients, aggregator.own_momentum())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    metered, (encode_s, decode_s), host_s = _timed(aggregator, device)
    ranks, itemsize = range(WORLD_SIZE), torch.float32.itemsize
    stated = [aggregator.wire_bytes(LARGE, WORLD_SIZE, rank, itemsize) for rank in ranks]
    size = itemsize * LARGE.num_elements
    off = [float((replica - parameters[0]).abs().max()) for replica in parameters]
    return Sheet(
        first_error_ratio=_ratio(first, expected_first),
        first_cosine=_cosine(first, expected_first),
        sum_error_ratio=_ratio(total, expected_total),
        replicas_agree=all(torch.equal(replica, parameters[0]) for replica in parameters),
        replicas_off_by=max(off),
        formula_bytes=max((num_bytes for num_bytes in stated if num_bytes is not None), default=None),
        metered_bytes=max(metered),
        exact_bytes=all_reduce_bytes([size], WORLD_SIZE),
        encode_s=encode_s,
        decode_s=decode_s,
        host_us_per_bucket=1e6 * host_s,
        gradient_bytes=size,
        measured_on=_name_of(device),
    )


def _through_training(aggregator: Aggregator[Any]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Rank 0's first result and the sum of all, in float64; every rank's parameters, which start at zero."""
    layout, gradients = recorded_gradients()

    def work(group: Group) -> tuple[Tensor, Tensor, Tensor]:
        state = aggregator.start(layout, group, torch.float32, torch.device("cpu"))
        parameters = torch.zeros(layout.num_elements)
        total, first = torch.zeros(layout.num_elements, dtype=torch.float64), None
        for step in range(NUM_STEPS):
            result = aggregator.aggregate(state, gradients[step, group.rank].clone())
            assert result is not None, "every replica takes the step"
            first = result.double() if first is None else first
            total += result.double()
            parameters.sub_(result, alpha=LEARNING_RATE)
            group.barrier()
        assert first is not None
        return first, total, parameters

    ranks = run_in_process(WORLD_SIZE, work)
    return ranks[0][0], ranks[0][1], [parameters for _, _, parameters in ranks]


def _expected(gradients: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    """The exact first result, and the sum of all, in float64."""
    velocity = torch.zeros(gradients.shape[2], dtype=torch.float64)
    total, first = torch.zeros_like(velocity), velocity
    for step, of_ranks in enumerate(gradients):
        velocity = momentum * velocity + of_ranks.double().mean(0)
        first = velocity if step == 0 else first
        total += velocity
    return first, total


def _ratio(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def _cosine(result: Tensor, expected: Tensor) -> float | None:
    norms = float(result.norm() * expected.norm())
    return float(result @ expected) / norms if norms else None


def _timed(aggregator: Aggregator[Any], device: torch.device) -> tuple[list[int], tuple[float, float], float]:
    """Each rank's metered bytes of a step over `LARGE`; rank 0's seconds of encoding, of decoding, and of the
    host in both."""

    def work(group: Group) -> tuple[int, list[_PhaseSeconds]]:
        generator = torch.Generator().manual_seed(group.rank)
        gradient = torch.randn(LARGE.num_elements, generator=generator).to(device)
        state = aggregator.start(LARGE, group, torch.float32, device)
        steps = []
        for _ in range(1 + NUM_TIMED):
            group.meter.reset()
            phases = _PhaseSeconds(device)
            aggregator.aggregate(state, gradient.clone(), phases)
            group.barrier()
            steps.append(phases)
        return group.meter.bytes_sent, steps[1:]  # without the first, in which libraries set themselves up

    ranks = run_in_process(WORLD_SIZE, work)
    steps = ranks[0][1]
    encode_s, decode_s = (
        statistics.median(step.seconds.get(name, 0.0) for step in steps) for name in ("encode", "decode")
    )
    return [sent for sent, _ in ranks], (encode_s, decode_s), statistics.median(step.host_s for step in steps)


class _PhaseSeconds:
    """A phase marker that adds up the seconds of each phase; waits for the device at its ends.

    Attributes:
        host_s: how long encoding and decoding kept the host, which does not wait for the device in them.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = clock_for(device)
        self.seconds: dict[str, float] = {}
        self.host_s = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._clock.settle()
        start, host_start = self._clock.mark(), time.perf_counter()
        yield
        self.host_s += time.perf_counter() - host_start if name in ("encode", "decode") else 0.0
        stop = self._clock.mark()
        self._clock.settle()
        self.seconds[name] = self.seconds.get(name, 0.0) + self._clock.seconds(start, stop)


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"one thread of {cpu_model()}"
