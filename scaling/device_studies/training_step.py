"""A training step as most programs have it, eager or captured: what the experiments on networks time.

Forward and backward pass, loss and SGD with momentum, again and again on one batch on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from scaling.device_studies.base import SLOW_CALLS, Budget, LeftOutError, Samples, facts, steps
from scaling.workloads.base import DataShape, Loss, Model, cross_entropy
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

LEARNING_RATE = 1e-3
MOMENTUM = 0.9
WARMUP_STEPS = 3  # before a step is captured, on another stream: libraries set themselves up on first use
PILOT_FACTOR = 4  # before a large batch is tried on a CPU, batches that are smaller by this factor are
StepFunction = Callable[[], object]


def training_step(
    module: nn.Module, inputs: Tensor, targets: Tensor, *, loss: Loss = cross_entropy, captured: bool = False
) -> StepFunction:
    """One optimizer update of `module`, ready to be called; errors as of `capture`."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=LEARNING_RATE, momentum=MOMENTUM)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return capture(step) if captured else step


def capture(step: StepFunction) -> StepFunction:
    """The step, which holds static tensors, as a CUDA graph: the same kernels, launched at once. Raises
    LeftOutError: it cannot be captured; torch.OutOfMemoryError: it does not fit."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a graph has memory of its own, and nothing can be given back under capture
    graph = torch.cuda.CUDAGraph()
    try:
        # Only this thread is kept from other CUDA calls: NCCL's own asks its events at any time.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    except RuntimeError as error:
        if "out of memory" in f"{error} {error.__context__}":
            raise
        first_line = str(error).partition("\n")[0]
        raise LeftOutError(f"the step cannot be captured in a CUDA graph: {first_line}") from error

    def replay(_: StepFunction = step) -> None:
        """Keeps what the graph works on, too: it holds addresses, not tensors."""
        graph.replay()

    return replay


def batch_of(shape: DataShape, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random samples, made on the device: inputs [batch, ...] and targets."""
    size = (batch, *shape.input_shape)
    if shape.tokens:
        inputs = torch.randint(shape.num_classes, size, device=device)
        return inputs, torch.randint(shape.num_classes, size, device=device)
    return torch.randn(size, device=device), torch.randint(shape.num_classes, (batch,), device=device)


def model_and_shape(name: str) -> tuple[Model, DataShape]:
    """A network, and its data set's shape; StudyError: the name is unknown."""
    model = create_model(name)
    return model, resolve_shape(model, create_dataset(model.dataset))


def network_steps(
    name: str, device: torch.device, *, captured: bool = False
) -> Callable[[int], StepFunction]:
    """Training steps of one network by their batch size, on random samples; its weights are drawn once."""
    model, shape = model_and_shape(name)
    with device:
        module = build_module(model, shape)

    def make(batch: int) -> StepFunction:
        return training_step(module, *batch_of(shape, batch, device), loss=model.loss, captured=captured)

    return make


def timed(make: Callable[[int], StepFunction], batch: int, device: torch.device, budget: Budget) -> Samples:
    """Samples of a step on `batch` samples; on a CPU after smaller batches, as a large one could take
    hours."""
    for pilot in pilots(batch) if device.type == "cpu" else []:
        step, samples, seconds = make(pilot), f"{pilot} sample{'s' * (pilot > 1)}", list[float]()
        for _ in range(SLOW_CALLS):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
            budget.refuse_slow(
                seconds, f"a step on {samples} takes {{:.2g}} s, one on {batch:,} takes longer"
            )
    yield from facts(samples=batch)
    yield from steps(budget.samples(make(batch), device))


def pilots(batch: int) -> Sequence[int]:
    """Smaller batches, ascending, each a quarter of the next; the largest is a quarter of `batch`."""
    return [*pilots(batch // PILOT_FACTOR), batch // PILOT_FACTOR] if batch >= PILOT_FACTOR else []


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
