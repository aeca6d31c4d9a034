"""The fidelity sheet of an aggregator that is lossy: what it loses, what it sends, and when that pays.

Loss: the gradients of a real training, recorded once (a perceptron on the digits, 4 ranks, 50 steps of exact
SGD), go through the aggregator; the first result and the sum of all 50, in which error feedback makes good
what single steps lack, are compared with the float64 mean. Agreement: the ranks' parameters after 50 steps
with their own results, bit for bit. Bytes and seconds of encoding and decoding are those of a larger
gradient, on the GPU if there is one, else on one thread: ranks are threads that compute one at a time.

Break-even bandwidth: the link speed B below which a step takes less time than with `all_reduce`. Seconds of
the exact exchange: A / B, with A = 2(n-1)/n S; of this one: W / B + E + D, with W its bytes, E and D the
seconds of encoding and decoding. So B = (A - W) / (E + D), without latency, the library's additions and
overlap."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.aggregators.host import threads
from scaling.aggregators.prediction import all_reduce_bytes
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.measure.clock import clock_for
from scaling.process_group import Group, run_in_process
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from topologies.detect import cpu_model

WORLD_SIZE = 4
NUM_STEPS = 50
HIDDEN = [128, 64]
TRAINED_ON = f"gradients of mlp(hidden={HIDDEN}) on the digits"
GLOBAL_BATCH, LEARNING_RATE = 128, 0.3

LARGE = BucketLayout.of(
    [
        *(("wide.weight", (2048, 1024)), ("wide.bias", (2048,)), ("convolution.weight", (256, 256, 3, 3))),
        *(("convolution.bias", (256,)), ("last.weight", (1000, 1024)), ("last.bias", (1000,))),
    ]
)
"""What rates are measured on: 15 MB, of which all but the convolution is matrices."""


@cache
def recorded_gradients() -> tuple[BucketLayout, Tensor]:
    """The layout, and [step, rank, num_elements] float32: each rank's gradient along the exact training."""
    dataset = create_dataset("digits")
    model = create_model("mlp", {"hidden": HIDDEN})
    shape = resolve_shape(model, dataset)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        module = build_module(model, shape)
        order = torch.randperm(len(dataset.load(shape, 0, 0).train))
    train = dataset.load(shape, 0, 0).train
    named = list(module.named_parameters())
    parameters = [parameter for _, parameter in named]
    layout = BucketLayout.of([(name, tuple(parameter.shape)) for name, parameter in named])
    gradients = torch.empty(NUM_STEPS, WORLD_SIZE, layout.num_elements)
    for step in range(NUM_STEPS):
        for rank in range(WORLD_SIZE):
            at = (step * GLOBAL_BATCH + rank * GLOBAL_BATCH // WORLD_SIZE) % len(order)
            rows = order.roll(-at)[: GLOBAL_BATCH // WORLD_SIZE]
            loss = model.loss(module(train.inputs[rows]), train.targets[rows])
            computed = torch.autograd.grad(loss, parameters)
            torch.cat([gradient.flatten() for gradient in computed], out=gradients[step, rank])
        with torch.no_grad():
            for parameter, mean in zip(parameters, layout.views(gradients[step].mean(0)), strict=True):
                parameter.sub_(mean, alpha=LEARNING_RATE)
    return layout, gradients


@dataclass(frozen=True)
class Sheet:
    """Errors are |result - mean| / |mean| in the 2-norm; the mean in float64, with own momentum."""

    first_error_ratio: float  # of the first result
    first_cosine: float | None  # of the angle between the two; None where the result is zero
    sum_error_ratio: float  # of the sums over all steps
    replicas_agree: bool  # all ranks' parameters have the same bits after the steps
    replicas_off_by: float  # the largest difference of a parameter
    # formula_bytes, metered_bytes: of the rank that sends most, in a step over the larger gradient
    formula_bytes: int | None
    metered_bytes: int
    exact_bytes: int  # what `all_reduce` sends
    encode_s: float  # encode_s, decode_s: of rank 0
    decode_s: float
    gradient_bytes: int  # S, of the larger gradient
    measured_on: str  # the processor or GPU
    # how long both keep the host of rank 0, the gradient being one bucket; a hook that is no CUDA graph holds
    # the backward pass back so long
    host_us_per_bucket: float

    @property
    def encode_bytes_per_s(self) -> float | None:
        """Bytes of gradient; None where nothing is encoded."""
        return self.gradient_bytes / self.encode_s if self.encode_s else None

    @property
    def decode_bytes_per_s(self) -> float | None:
        return self.gradient_bytes / self.decode_s if self.decode_s else None

    @property
    def break_even_bytes_per_s(self) -> float:
        """B; 0 where more is sent than by `all_reduce`: it never pays."""
        saved = max(0, self.exact_bytes - self.metered_bytes)
        codec_s = self.encode_s + self.decode_s
        return saved / codec_s if codec_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        rates = ("encode_bytes_per_s", "decode_bytes_per_s", "break_even_bytes_per_s")
        setting = {"world_size": WORLD_SIZE, "num_steps": NUM_STEPS, "trained_on": TRAINED_ON}
        formula = "(2(n-1)/n S - W) / (E + D)"
        values = dataclasses.asdict(self)
        return {**setting, **values, **{name: getattr(self, name) for name in rates}, "break_even": formula}

    def lines(self) -> list[str]:
        cosine = "" if self.first_cosine is None else f", cosine {self.first_cosine:.3f}"
        agreement = "the same bits" if self.replicas_agree else f"off by up to {self.replicas_off_by:.3g}"
        formula = "no formula" if self.formula_bytes is None else f"{self.formula_bytes} by formula"
        below = f"faster than all_reduce on links below {_rate(self.break_even_bytes_per_s)}"
        paying = below if self.break_even_bytes_per_s else "never: it sends no less than all_reduce"
        ratio = self.exact_bytes / self.metered_bytes if self.metered_bytes else float("inf")
        return [
            f"error      {self.first_error_ratio:.3g} of the float64 mean in the first step{cosine}; "
            f"{self.sum_error_ratio:.3g} over {NUM_STEPS} steps ({TRAINED_ON}, {WORLD_SIZE} ranks)",
            f"replicas   after {NUM_STEPS} steps {agreement} on {WORLD_SIZE} ranks",
            f"bytes      {formula}, {self.metered_bytes} metered, by the rank that sends most; all_reduce "
            f"sends {self.exact_bytes}, {ratio:.3g} times as much",
            f"rates      encode {_rate(self.encode_bytes_per_s)}, decode {_rate(self.decode_bytes_per_s)} "
            f"of a gradient of {self.gradient_bytes / 1e6:.3g} MB on {self.measured_on}; both keep the host "
            f"for {self.host_us_per_bucket:,.0f} us",
            f"break-even {paying}, by (2(n-1)/n S - W) / (E + D) with n = "
            f"{WORLD_SIZE}, S = {self.gradient_bytes / 1e6:.3g} MB, W = {self.metered_bytes / 1e6:.3g} MB, "
            f"E + D = {(self.encode_s + self.decode_s) * 1e3:.3g} ms; without latency and overlap",
        ]


def _rate(bytes_per_s: float | None) -> str:
    return "nothing" if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g} GB/s"


def has_sheet(aggregator: Aggregator[Any]) -> bool:
    """Whether it is lossy from the first step, and runs on ranks that are threads."""
    in_threads = aggregator.library is None and aggregator.update_site == "replica"
    return aggregator.lossy and in_threads and not aggregator.settling_steps()


def sheet_of(name: str) -> Sheet | None:
    aggregator = create(name)
    if not has_sheet(aggregator):
        return None
    with threads(1):  # ranks are threads already
        return make_sheet(aggregator)


def make_sheet(aggregator: Aggregator[Any]) -> Sheet:
    first, total, parameters = _through_training(aggregator)
    _, gradients = recorded_gradients()
    expected_first, expected_total = _expected(gradients, aggregator.own_momentum())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    metered, (encode_s, decode_s), host_s = _timed(aggregator, device)
    ranks, itemsize = range(WORLD_SIZE), torch.float32.itemsize
    stated = [aggregator.wire_bytes(LARGE, WORLD_SIZE, rank, itemsize) for rank in ranks]
    size = itemsize * LARGE.num_elements
    norms = float(first.norm() * expected_first.norm())
    off = [float((replica - parameters[0]).abs().max()) for replica in parameters]
    return Sheet(
        first_error_ratio=float((first - expected_first).norm() / expected_first.norm()),
        first_cosine=float(first @ expected_first) / norms if norms else None,
        sum_error_ratio=float((total - expected_total).norm() / expected_total.norm()),
        replicas_agree=all(torch.equal(replica, parameters[0]) for replica in parameters),
        replicas_off_by=max(off),
        formula_bytes=max((num_bytes for num_bytes in stated if num_bytes is not None), default=None),
        metered_bytes=max(metered),
        exact_bytes=all_reduce_bytes([size], WORLD_SIZE),
        encode_s=encode_s,
        decode_s=decode_s,
        host_us_per_bucket=1e6 * host_s,
        gradient_bytes=size,
        measured_on=on_gpu or f"one thread of {cpu_model()}",
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
    velocity = torch.zeros(gradients.shape[2], dtype=torch.float64)
    total, first = torch.zeros_like(velocity), velocity
    for step, of_ranks in enumerate(gradients):
        velocity = momentum * velocity + of_ranks.double().mean(0)
        first = velocity if step == 0 else first
        total += velocity
    return first, total


def _timed(aggregator: Aggregator[Any], device: torch.device) -> tuple[list[int], tuple[float, float], float]:
    """Metered bytes by rank, of a step over `LARGE`; rank 0's seconds to encode and decode; the host's."""

    def work(group: Group) -> tuple[int, list[_PhaseSeconds]]:
        generator = torch.Generator().manual_seed(group.rank)
        gradient = torch.randn(LARGE.num_elements, generator=generator).to(device)
        state = aggregator.start(LARGE, group, torch.float32, device)
        steps = []
        for _ in range(4):
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
    """A phase marker; `host_s`: how long encoding and decoding kept the host, which does not wait in them."""

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
