"""A step that brings gradients together layer by layer under its backward pass, made to be captured.

Each parameter of at least `bucket_mb` MiB is a bucket, the last layer's first; the others, by dtype, share
buckets that are as large. One of NUM_STREAMS side streams takes a bucket on: aggregation, then the update,
unless the whole mean is to be clipped or searched for infinities.

Where each rank owns a shard of a bucket it steps that alone. A bucket of one parameter is taken as autograd
made it; the gradients of several are copied side by side first.

Outside of a captured step exchange and update of each bucket become a CUDA graph after the first steps, where
they can: one launch instead of some thirty. Graphs run one after the other, on one stream.

Reference: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv
2006.15704 (buckets in the order in which gradients come).
"""

from __future__ import annotations

import math
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.state import AggregatorState, load_buckets, save_buckets
from scaling.bucket import BucketLayout, Span
from scaling.measure.clock import graphs_can_be_marked
from scaling.measure.phases import UNMARKED, GraphMarks, Marks, PhaseRecorder, uncollected
from scaling.process_group import Group, TorchGroup
from scaling.training.bucket_graphs import can_capture
from scaling.training.exchanges import aggregate, start_exchanges
from scaling.training.gradients import AS_THEY_ARE, GradientSettings, GradientTreatment
from scaling.training.optimizers import OptimizerSettings
from scaling.training.replica import FlatBucket, FlatReplica, require_dtypes, take_passes
from scaling.training.step import TrainingStep, by_bucket, factors_of, of_buckets, sum_over_owners
from scaling.training.update import SpansUpdate

NUM_STREAMS = 2  # one bucket is encoded while another one's messages are under way
PLAIN_STEPS = 2  # before any capture: in them optimizers and libraries make what they keep


@dataclass
class _Bucket:
    """Of one dtype. `owned`: the elements that this rank steps; `flat`: where the gradients of several are
    copied to, unless they are released; `mean`: of the owned elements, where its update has to wait."""

    parameters: list[torch.nn.Parameter]
    number: int
    state: AggregatorState
    owned: Span | None
    update: SpansUpdate
    values: list[Tensor]
    flat: Tensor | None
    missing: int = 0
    mean: Tensor | None = None

    @property
    def size_mb(self) -> float:
        return sum(parameter.nbytes for parameter in self.parameters) / 2**20


@dataclass(frozen=True)
class _Graph:
    """`gradients`: where it reads those of its bucket, in memory that all graphs share."""

    graph: torch.cuda.CUDAGraph
    gradients: list[Tensor]
    metered: tuple[int, int]
    marks: GraphMarks | None


class LayeredStep(TrainingStep):
    """On every replica or on owners. `bucket_mb` is the lower size of a bucket, in MiB; `capturable`: to be
    part of a captured step; `captures`: whether others make graphs of their own."""

    captures = True
    replica: FlatReplica
    _parts: list[_Bucket]

    def __init__(
        self,
        replica: FlatReplica,
        aggregator: Aggregator[Any],
        settings: OptimizerSettings,
        group: Group,
        gradients: GradientSettings = AS_THEY_ARE,
        *,
        bucket_mb: float,
        capturable: bool = False,
    ) -> None:
        require_dtypes(replica.module, aggregator)
        self.replica, self._aggregator, self._wire = replica, aggregator, gradients.wire
        self._marks: Marks = UNMARKED
        self._exchanging = True
        device, self._group = replica.trainable[0].device, group
        self.treatment = GradientTreatment(gradients, replica.compute, device)
        can = self.captures and isinstance(group, TorchGroup) and can_capture(aggregator, group, device)
        self._captures_later = can and not (capturable or self.treatment.waits_for_all)
        self._num_steps = 0
        self._graphs: list[_Graph] = []
        self._uncaptured: list[str] = []
        self._recorder: PhaseRecorder | None = None
        capturable = capturable or self._captures_later
        self._parts = [
            self._started(number, flat, tensors, settings, group, capturable)
            for number, flat in enumerate(replica.buckets)
            for tensors in bucket_tensors(flat.layout, bucket_mb * 2**20 / flat.parameters.itemsize)
        ]
        for flat in replica.buckets:
            flat.release_gradient()
        self._add_up = sum_over_owners(group, aggregator.update_site)
        # No stream without a bucket: a capture cannot wait for one that it has not entered.
        count = min(NUM_STREAMS, len(self._parts)) if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
        ready = weakref.WeakMethod(self._ready)  # a parameter outlives the step
        for number, bucket in enumerate(self._parts):
            for parameter in bucket.parameters:
                register: Any = parameter.register_post_accumulate_grad_hook
                register(lambda _, number=number: (call := ready()) and call(number))

    def _started(
        self,
        number: int,
        flat: FlatBucket,
        tensors: list[int],
        settings: OptimizerSettings,
        group: Group,
        capturable: bool,
    ) -> _Bucket:
        parameters = [flat.trainable[place] for place in tensors]
        layout = BucketLayout.of([(flat.layout.names[place], flat.layout.shapes[place]) for place in tensors])
        starts = [flat.layout.offsets[place] for place in tensors]
        spans = [(start, start + p.numel()) for start, p in zip(starts, parameters, strict=True)]
        values, found_inf = flat.parameters, self.treatment.found_inf
        state = start_exchanges(self._aggregator, layout, group, values, self._wire)
        owned = next(iter(self._aggregator.owned(state)), None)
        how = {"capturable": capturable, "skippable": found_inf is not None}
        update = SpansUpdate(values, _within(spans, owned), settings, **how)
        if found_inf is not None:
            update.skip_where(found_inf)
        keeps = not (self._aggregator.releases_gradients or self._captures_later)
        joined = len(tensors) > 1 and keeps
        buffer = values.new_empty(layout.num_elements) if joined else None
        views = [values[slice(*span)] for span in spans]
        return _Bucket(parameters, number, state, owned, update, views, buffer)

    @property
    def notes(self) -> list[str]:
        sizes = [bucket.size_mb for bucket in self._parts]
        shown = f"layer by layer: {len(sizes)} buckets of {min(sizes):.3g} to {max(sizes):.3g} MiB"
        count = len(self.replica.notes)
        return [*super().notes[:count], shown, *super().notes[count:], *self._uncaptured]

    def state_dict(self) -> dict[str, Any]:
        states = save_buckets([bucket.state for bucket in self._parts])
        updates: list[dict[str, Tensor]] = [{} for _ in self.replica.buckets]
        for bucket in self._parts:
            updates[bucket.number] |= bucket.update.state_dict()
        return self._saved(states, by_bucket(updates))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        updates = of_buckets(state["update"], len(self.replica.buckets))
        self.replica.module.load_state_dict(state["module"])
        load_buckets([bucket.state for bucket in self._parts], state["aggregator"])
        for bucket in self._parts:
            bucket.update.load_state_dict(updates[bucket.number])
        self.treatment.load_state_dict(state.get("scale", {}))

    def factors(self) -> dict[str, Tensor] | None:
        return factors_of((self.replica.buckets[bucket.number], bucket.update) for bucket in self._parts)

    def prepare_profiled(self, recorder: PhaseRecorder) -> bool:
        """Graphs are captured again, with marks between their phases."""
        if self._graphs and not graphs_can_be_marked():
            return False
        self._recorder = recorder
        if self._graphs:
            self._capture()
        return True

    @property
    def settle_profiled(self) -> bool:  # type: ignore[override]
        return bool(self._graphs)

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        if self._captures_later and self._num_steps == PLAIN_STEPS:
            self._capture()
        self._num_steps += 1
        self._marks = marks
        for bucket in self._parts:
            bucket.missing = len(bucket.parameters)
        for parameter in self.replica.trainable:
            parameter.grad = None  # no longer read: the last step has waited for the streams that did
        # Gradients are whole behind the last micro-batch's backward pass.
        last_only = partial(setattr, self, "_exchanging")
        loss = take_passes(self.replica, inputs, targets, marks, self.treatment.scaled, around=last_only)
        for number, bucket in enumerate(self._parts):
            if bucket.missing:  # of parameters that this loss does not depend on
                self._take_on(number, in_backward=False)
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)
        if self.treatment.waits_for_all:
            self._update_all(marks)
        return loss

    @torch.no_grad()
    def _update_all(self, marks: Marks) -> None:
        means = [bucket.mean for bucket in self._parts if bucket.mean is not None]
        self.treatment.before_update(means, marks.phase, self._add_up)
        for bucket in self._parts:
            self._update(bucket, bucket.mean, marks.phase)
            bucket.mean = None

    def _ready(self, number: int) -> None:
        if not self._exchanging:
            return
        bucket = self._parts[number]
        bucket.missing -= 1
        if bucket.missing == 0:
            self._take_on(number)

    def _take_on(self, number: int, *, in_backward: bool = True) -> None:
        if not self._streams:  # the backward pass stands still meanwhile
            with self._marks.paused() if in_backward else nullcontext():
                self._bring_together(self._parts[number])
            return
        graph = self._graphs[number] if self._graphs and self.record is None else None
        if graph is not None and graph.marks is None and self._marks is not UNMARKED:
            graph = None
        stream = self._streams[number % len(self._streams) if graph is None else 0]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if graph is None:
                self._bring_together(self._parts[number])
            else:
                self._replay(self._parts[number], graph)

    @torch.no_grad()
    def _replay(self, bucket: _Bucket, graph: _Graph) -> None:
        torch._foreach_copy_(graph.gradients, _gradients(bucket))
        graph.graph.replay()
        self._group.meter.count(*graph.metered)
        if graph.marks is not None and self._recorder is not None and self._marks is not UNMARKED:
            graph.marks.place(self._recorder)
        if self._aggregator.releases_gradients:
            _release(bucket.parameters)

    @torch.no_grad()
    def _capture(self) -> None:
        """Exchange and update of each bucket; nothing is computed. Collective."""
        memory: dict[torch.dtype, Tensor] = {}
        for bucket in self._parts:
            dtype, size = bucket.values[0].dtype, bucket.state.layout.num_elements
            if dtype not in memory or memory[dtype].numel() < size:
                memory[dtype] = bucket.values[0].new_empty(size)
        meter, problem, graphs = self._group.meter, "", []
        record, self.record = self.record, None  # what is captured is not recorded
        torch.cuda.synchronize()
        with meter.standing_still(), torch.cuda.stream(self._streams[0]), uncollected():
            pool = torch.cuda.graph_pool_handle()
            try:
                for bucket in self._parts:
                    flat = memory[bucket.values[0].dtype][: bucket.state.layout.num_elements]
                    graphs.append(self._captured(bucket, flat, pool))
            except RuntimeError as error:
                problem = str(error).partition("\n")[0]
        self.record = record
        failed = self._group.largest(float(bool(problem))) > 0
        self._graphs = [] if failed else graphs
        self._uncaptured = ["exchanges are no CUDA graphs: " + (problem or "see another rank")] * failed

    def _captured(self, bucket: _Bucket, flat: Tensor, pool: Any) -> _Graph:
        meter, marks = self._group.meter, GraphMarks() if self._recorder is not None else None
        meter.reset()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool, "thread_local")
        try:
            self._exchange(bucket, flat, marks.on_lane("comm") if marks else unmarked)
        finally:
            graph.capture_end()
        metered = meter.bytes_sent, meter.messages_sent
        return _Graph(graph, bucket.state.layout.views(flat), metered, marks)

    @torch.no_grad()
    def _bring_together(self, bucket: _Bucket) -> None:
        phase = self._marks.on_lane("comm") if self._streams else self._marks.phase
        self._exchange(bucket, self._flat_gradient(bucket), phase)
        if self._aggregator.releases_gradients:
            _release(bucket.parameters)

    def _exchange(self, bucket: _Bucket, gradient: Tensor, phase: PhaseMarker) -> None:
        mean = aggregate(self._aggregator, bucket.state, gradient, phase, self.record, self._wire)
        owned_mean = None
        if bucket.owned is not None:
            assert mean is not None, "a rank that owns elements gets their mean"
            owned_mean = mean[slice(*bucket.owned)]
        releases = self._aggregator.releases_gradients
        if self.treatment.waits_for_all:
            bucket.mean = owned_mean.clone() if releases and owned_mean is not None else owned_mean
        else:
            self._update(bucket, owned_mean, phase)

    def _update(self, bucket: _Bucket, mean: Tensor | None, phase: PhaseMarker) -> None:
        if mean is not None:
            with phase("update"):
                bucket.update.step(mean)
        if self._aggregator.update_site == "owner":
            flat = bucket.values[0] if len(bucket.values) == 1 else torch.cat(bucket.values)
            self._aggregator.distribute(bucket.state, flat, phase)
            if len(bucket.values) > 1:
                torch._foreach_copy_(
                    bucket.values, list(torch.split(flat, [values.numel() for values in bucket.values]))
                )

    def _flat_gradient(self, bucket: _Bucket) -> Tensor:
        gradients = _gradients(bucket)
        if len(gradients) == 1:
            return gradients[0].contiguous().view(-1)
        if bucket.flat is None:
            return torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch._foreach_copy_(bucket.state.layout.views(bucket.flat), gradients)
        return bucket.flat


def _gradients(bucket: _Bucket) -> list[Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in bucket.parameters
    ]


def _release(parameters: list[torch.nn.Parameter]) -> None:
    """Forgets their gradients, whose memory is free once the current stream has come so far."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.is_cuda:
            parameter.grad.record_stream(torch.cuda.current_stream())
        parameter.grad = None


def _within(spans: list[Span], owned: Span | None) -> list[Span]:
    """The parts of the spans that are owned, counted over the spans one behind the other."""
    parts, at = [], 0
    for start, stop in spans:
        first, last = (max(0, min(bound - at, stop - start)) for bound in owned or (0, 0))
        at += stop - start
        if last > first:
            parts.append((start + first, start + last))
    return parts


def bucket_tensors(layout: BucketLayout, min_elements: float) -> list[list[int]]:
    """The numbers of the tensors in each bucket, ascending; a tensor of `min_elements` is a bucket of its
    own, smaller ones, the last first, share one. Buckets are in the order in which they are complete."""
    buckets: list[list[int]] = []
    shared: list[int] = []
    total = 0
    for number in reversed(range(len(layout.shapes))):
        size = math.prod(layout.shapes[number])
        if size >= min_elements:
            buckets.append([number])
            continue
        shared, total = [number, *shared], total + size
        if total >= min_elements:
            buckets.append(shared)
            shared, total = [], 0
    return [*buckets, shared] if shared else buckets
