"""The buckets that DDP hands to a communication hook, and their exchanges during the computation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker
from scaling.aggregators.state import AggregatorState, load_buckets, save_buckets
from scaling.bucket import BucketLayout
from scaling.collectives.execute import side_stream
from scaling.errors import LaunchError
from scaling.measure.clock import graphs_can_be_marked
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.training.bucket_graphs import BucketGraphs, can_capture
from scaling.training.exchanges import BucketExchange, Record, aggregate, start_exchanges

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class HookedBuckets:
    """`wire` is the dtype of the messages. On GPUs exchanges are CUDA graphs where they can be, unless
    `captures` is False."""

    captures = True

    def __init__(
        self,
        aggregator: Aggregator[Any],
        group: TorchGroup,
        device: torch.device,
        layout: BucketLayout,
        parameters: list[torch.nn.Parameter],
        wire: torch.dtype | None = None,
    ) -> None:
        self._aggregator, self._group, self._device, self._wire = aggregator, group, device, wire
        named = zip(layout.names, layout.shapes, strict=True)
        self._named = dict(zip(map(id, parameters), named, strict=True))
        self._layouts: dict[int, BucketLayout] = {}
        self._dtypes: dict[int, torch.dtype] = {}
        self._states: list[AggregatorState] = []
        self._memory: dict[int, Tensor] = {}  # DDP's, of each bucket
        self._are_views = False  # the parameters' gradients are, of that memory
        self._graphs: BucketGraphs | None = None
        self._uncaptured: list[str] = []
        self._unseen: set[int] = set()  # buckets that no step has had yet
        self.started = False
        self.record: Record | None = None
        self._side = _SideStream(device)

    @property
    def num_bytes(self) -> list[int]:
        layouts = sorted(self._layouts.items())
        return [layout.num_elements * self._dtypes[index].itemsize for index, layout in layouts]

    @property
    def notes(self) -> list[str]:
        """How many buckets there are and of which sizes, as a run records it; [] before the first step."""
        if not self._layouts:
            return []
        sizes = [size / 2**20 for size in self.num_bytes]
        of = f"{len(sizes)} buckets of {min(sizes):.3g} to" if len(sizes) > 1 else "1 bucket of"
        notes = dict.fromkeys(note for state in self._states for note in state.notes)
        return [f"{of} {max(sizes):.3g} MiB", *notes, *self._uncaptured]

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return save_buckets(self._states)

    def load_state_dict(self, states: dict[str, dict[str, Tensor]]) -> None:
        load_buckets(self._states, states)

    def note_and_return(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Remembers what the bucket holds; exchanges nothing, for passes that no update follows."""
        if bucket.index() == 0:
            self._layouts, self._dtypes, self._memory = {}, {}, {}
        names_and_shapes = [self._named[id(parameter)] for parameter in bucket.parameters()]
        self._layouts[bucket.index()] = BucketLayout.of(names_and_shapes)
        self._dtypes[bucket.index()] = bucket.buffer().dtype
        self._memory[bucket.index()] = bucket.buffer()
        first = bucket.parameters()[0].grad
        self._are_views = first is not None and first.data_ptr() == bucket.gradients()[0].data_ptr()
        return _done(bucket.buffer())

    def start(self) -> None:
        self._states = [
            start_exchanges(
                self._aggregator,
                self._layouts[index],
                self._group,
                torch.empty(0, dtype=self._dtypes[index], device=self._device),
                self._wire,
            )
            for index in sorted(self._layouts)
        ]
        self._unseen = set(self._layouts)
        if self.captures and can_capture(self._aggregator, self._group, self._device):
            self._capture()
        self.started = True

    def _capture(self, recorder: PhaseRecorder | None = None) -> None:
        memory = [self._memory[index] for index in sorted(self._memory)]
        problem, graphs = "", None
        try:
            graphs = BucketGraphs(
                *(self._aggregator, self._mean, self._states, memory),
                in_place=self._are_views,
                recorder=recorder,
            )
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
        failed = self._group.largest(float(bool(problem))) > 0
        self._graphs = None if failed else graphs
        self._uncaptured = ["exchanges are no CUDA graphs: " + (problem or "see another rank")] * failed

    @property
    def has_graphs(self) -> bool:
        return self._graphs is not None

    def drop_graphs(self) -> None:
        if self._graphs is not None:
            torch.cuda.synchronize(self._device)
            self._graphs = None

    def mark_graphs(self, recorder: PhaseRecorder) -> bool:
        """Collective. False where this torch cannot record events inside a graph."""
        if self._graphs is not None:
            if not graphs_can_be_marked():
                return False
            self._capture(recorder)
        return True

    def launch(self, bucket: GradBucket, marks: Marks) -> torch.futures.Future[Tensor]:
        state, buffer = self._states[bucket.index()], bucket.buffer()
        if not self._aggregator.exchanges:
            return _done(buffer)
        self._require_same(bucket)
        if self._graphs is not None and (self.record is None or self._wire is None):
            return self._graphs.launch(bucket.index(), buffer, self.record, is_profiled=marks is not UNMARKED)
        # A record is not of a graph that casts: what is on the wire is inside.
        return self._side.run(lambda: self._mean(state, buffer, marks.on_lane("comm")), buffer)

    def _require_same(self, bucket: GradBucket) -> None:
        """Once for each bucket: it holds what its state was made for."""
        if bucket.index() in self._unseen:
            names = tuple(self._named[id(parameter)][0] for parameter in bucket.parameters())
            same = names == self._layouts[bucket.index()].names
            assert same, "DDP has rebuilt its buckets again: residuals are of others"
            self._unseen.discard(bucket.index())

    @torch.no_grad()
    def _mean(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker) -> Tensor:
        mean = aggregate(self._aggregator, state, gradient, phase, self.record, self._wire)
        assert mean is not None, "every replica takes the step"
        return mean

    def check(self) -> None:
        for state in self._states:
            state.check()

    def raise_failure(self) -> None:
        self._side.raise_failure()


class _SideStream:
    """Runs work in order, on a stream or in a thread of its own. DDP passes on no error of a future: a
    failure is kept, and nothing is run after it, since other ranks still wait for the work that failed."""

    def __init__(self, device: torch.device) -> None:
        self._failure: BaseException | None = None
        self._stream = side_stream(device)
        self._thread = ThreadPoolExecutor(1, "exchange") if self._stream is None else None

    def run(self, work: Callable[[], Tensor], instead: Tensor) -> torch.futures.Future[Tensor]:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                return _done(self._tried(work, instead))
        assert self._thread is not None
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._thread.submit(lambda: future.set_result(self._tried(work, instead)))
        return future

    def _tried(self, work: Callable[[], Tensor], instead: Tensor) -> Tensor:
        if self._failure is None:
            try:
                return work()
            except BaseException as failure:  # noqa: BLE001 (raised by raise_failure)
                self._failure = failure
        return instead

    def raise_failure(self) -> None:
        try:
            if self._failure is not None:
                raise self._failure
        finally:
            self._failure = None  # its traceback leads back here


def _done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    devices: list[int | str | torch.device] | None = [tensor.device] if tensor.is_cuda else None
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    future.set_result(tensor)
    return future


class LibraryHookBuckets(HookedBuckets):
    """On a CPU buckets take their turn in a thread: torch's hook answers Gloo's threads by further exchanges,
    so that several under way would meet other ranks' in another order."""

    _hook: Any

    def start(self) -> None:
        name = self._aggregator.name
        if self._group.through_host:
            raise LaunchError(f"{name} needs a GPU for each worker; use power_sgd, or fewer workers")
        self._hook = self._aggregator.library_hook(self._group.data, self._layouts, self._device)
        self._unseen = set(self._layouts)
        self.started = True

    def launch(self, bucket: GradBucket, marks: Marks) -> torch.futures.Future[Tensor]:
        self._require_same(bucket)
        phase, index = marks.on_lane("comm"), bucket.index()
        if self._group.world_size > 1:
            self._group.meter.count(self._hook.next_bytes(index), 0)
        if self._device.type == "cuda" and self.record is None:
            with phase("communicate"):
                return self._hook(bucket)

        def waited() -> Tensor:
            with phase("communicate"):
                return self._recorded(bucket)

        return self._side.run(waited, bucket.buffer())

    @torch.no_grad()
    def _recorded(self, bucket: GradBucket) -> Tensor:
        if self.record is None:
            return self._hook(bucket).wait()
        index, layout = bucket.index(), self._layouts[bucket.index()]
        contribution = bucket.buffer().clone()
        old = self._hook.residual(index, contribution)
        mean: Tensor = self._hook(bucket).wait()
        owned = [(0, layout.num_elements)] if layout.num_elements else []
        new = self._hook.residual(index, contribution)
        self.record.append(BucketExchange(layout, contribution, mean.clone(), owned, old, new))
        return mean

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return self._hook.state_dict()

    def load_state_dict(self, states: dict[str, dict[str, Tensor]]) -> None:
        self._hook.load_state_dict(states)
