"""The whole training step as one CUDA graph: the same kernels, launched at once.

It runs on static buffers into which each batch is copied; the learning rate is a tensor on the device, since
a number would be frozen into the graph. What the warm-up changes is put back.

Reference: the CUDA graphs section of torch's documentation (notes/cuda.html).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scaling.errors import LaunchError
from scaling.measure.clock import graphs_can_be_marked
from scaling.measure.phases import UNMARKED, GraphMarks, Marks, PhaseRecorder, uncollected
from scaling.process_group import Group
from scaling.training.layered import LayeredStep
from scaling.training.step import EagerStep, TrainingStep

WARMUP_STEPS = 3


class CapturedStep(TrainingStep):
    """Of an aggregator that can be captured. `uncaptured` works on the same tensors; it alone records
    exchanges."""

    settle_profiled = True

    def __init__(self, step: EagerStep | LayeredStep, inputs: Tensor, targets: Tensor, group: Group) -> None:
        if not inputs.is_cuda:
            raise LaunchError(f"step: captured needs CUDA, the ranks compute on {inputs.device.type}")
        self.uncaptured, self._group = step, group
        self.replica, self.treatment, self._parts = step.replica, step.treatment, step._parts
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
        self._graph, self._loss = self._capture(UNMARKED)
        self._marked: GraphMarks | None = None
        step.load_state_dict(state)
        torch.cuda.set_rng_state(random_state)
        meter.reset()

    def _capture(self, marks: Marks) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The step as a graph, and where it leaves its loss; nothing is computed. Collective."""
        torch.cuda.synchronize()
        self._group.barrier()
        graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = self.uncaptured(self._inputs, self._targets, marks)
        torch.cuda.synchronize()
        self._group.barrier()
        return graph, loss

    @property
    def notes(self) -> list[str]:
        return self.uncaptured.notes

    def state_dict(self) -> dict[str, Any]:
        return self.uncaptured.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.uncaptured.load_state_dict(state)

    def prepare_profiled(self, recorder: PhaseRecorder) -> bool:
        """Captures the step a second time, with events between its phases; the first graph is given up."""
        if not graphs_can_be_marked():
            return False
        random_state = torch.cuda.get_rng_state()
        self._marked, self._recorder = GraphMarks(), recorder
        self._graph, self._loss = self._capture(self._marked)
        torch.cuda.set_rng_state(random_state)
        self._group.meter.reset()
        return True

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        """One replay; see `Step`. Before `prepare_profiled` no phase in the graph can be distinguished."""
        with marks.phase("input"):
            self._inputs.copy_(inputs)
            self._targets.copy_(targets)
        self._graph.replay()
        if marks is not UNMARKED and self._marked is not None:
            self._marked.place(self._recorder)
        self._group.meter.count(*self._metered)
        return self._loss.clone()
