"""The whole training step as one CUDA graph: the same kernels, launched at once.

Small networks are bound by the time that Python takes to launch kernels; a graph is launched in microseconds.
Forward, backward, exchange and update run on static buffers into which each batch is copied.

Capturing needs a few steps of warm-up, in which libraries and the optimizer set themselves up. They change
the model: parameters, momentum, statistics of batch normalisation, the aggregator's residuals and the random
state are put back afterwards, so that training begins where an eager one would. The learning rate is a tensor
on the device, since a number would be frozen into the graph.

Reference: the CUDA graphs section of torch's documentation (notes/cuda.html).
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, unmarked
from scaling.errors import LaunchError
from scaling.process_group import Group
from scaling.training.replica import Replica
from scaling.training.step import EagerStep

WARMUP_STEPS = 3


class CapturedStep:
    """A step on one rank. Collective to make and to call.

    Args:
        step: to be captured: on CUDA, of an aggregator that can be, made with `capturable`.
        inputs: [local_batch, ...] an example of the batches, on the replica's device.
        targets: [local_batch] int64, likewise.
        group: the ranks that train together.

    Raises:
        LaunchError: the replica is not on CUDA.
    """

    def __init__(self, step: EagerStep, inputs: Tensor, targets: Tensor, group: Group) -> None:
        if not inputs.is_cuda:
            raise LaunchError(f"step: captured needs CUDA, the ranks compute on {inputs.device.type}")
        self._step, self._group = step, group
        self._inputs, self._targets = inputs.clone(), targets.clone()
        meter = group.meter
        state = step.state_dict()
        random_state = torch.cuda.get_rng_state()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_STEPS):
                meter.reset()
                step(self._inputs, self._targets)
        self._metered = (meter.bytes_sent, meter.messages_sent)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        group.barrier()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = step(self._inputs, self._targets)
        torch.cuda.synchronize()
        group.barrier()
        step.load_state_dict(state)
        torch.cuda.set_rng_state(random_state)
        meter.reset()

    @property
    def replica(self) -> Replica:
        """This rank's model."""
        return self._step.replica

    @property
    def notes(self) -> list[str]:
        """What the aggregator decided at the start."""
        return self._step.notes

    def __call__(self, inputs: Tensor, targets: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """As `EagerStep`; inside the graph no phase can be told from another."""
        with phase("input"):
            self._inputs.copy_(inputs)
            self._targets.copy_(targets)
        self._graph.replay()
        self._group.meter.count(*self._metered)
        return self._loss.clone()
