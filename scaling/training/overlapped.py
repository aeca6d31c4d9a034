"""The overlapped step: gradients are exchanged bucket by bucket while the backward pass still runs.

torch's DistributedDataParallel fills buckets of `bucket_mb` MiB (the first one of 1 MiB, unless all are
smaller) in the order in which gradients become ready, and hands each on at once. Every aggregator runs as its
communication hook, on a stream of its own (on a CPU: in a thread of its own), except that

- `all_reduce` is what users run: DDP's own path, without a hook;
- `no_op` takes the path of the arm that it controls, and exchanges nothing: DDP's own path in a group of this
  rank alone, or a hook that returns the bucket;
- `none` is not wrapped at all;
- `horovod_optimizer` wraps the optimizer instead of the model: Horovod packs gradients in its own way, and
  what it has not hidden under the backward pass is `communicate`.

DDP's own path shows nothing of its exchange. Its profiled iterations therefore run the same all-reduce as a
hook. So do all steps of workers that share a GPU, whose messages the group carries through host memory.

Statistics of batch normalisation stay each rank's own, as in the other steps.

Reference: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
arXiv 2006.15704; torch's documentation of DDP communication hooks.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker
from scaling.aggregators.saved_state import load_buckets, save_buckets
from scaling.bucket import BucketLayout
from scaling.collectives.side_stream import side_stream
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.training.dtypes import require_dtypes
from scaling.training.exchanges import Record, aggregate, recomputed_exchanges
from scaling.training.replica import Replica
from scaling.training.update import SgdSettings, set_learning_rate

if TYPE_CHECKING:  # torch.distributed has it too, hidden from type checkers
    from torch._C._distributed_c10d import GradBucket

SAME = 1e-4
"""Between two computations of a gradient, as a ratio to its largest element: what rounding may do."""

PASSES_UNTIL_BUCKETS_STAY = 2
"""DDP rebuilds its buckets once, after the first backward pass, in the order in which gradients came."""

_OWN_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}  # its name in older torch
)


class OverlappedStep:
    """A step on one rank. Collective to make and to call.

    Args:
        replica: this rank's model.
        aggregator: how gradients are brought together; of those that overlap, or `none`.
        settings: of the optimizer.
        group: the ranks that train together.
        bucket_mb: upper size of a bucket, in MiB.
        inputs: [local_batch, ...] an example of the batches, on the replica's device.
        targets: likewise.
    """

    settle_split = False

    def __init__(
        self,
        replica: Replica,
        aggregator: Aggregator[Any],
        settings: SgdSettings,
        group: TorchGroup,
        *,
        bucket_mb: float,
        inputs: Tensor,
        targets: Tensor,
    ) -> None:
        require_dtypes(replica.module, aggregator)
        self.replica, self._aggregator, self._group = replica, aggregator, group
        self._optimizer: Any = settings.optimizer(replica.trainable)
        self._device = replica.trainable[0].device
        self._example = (inputs, targets)
        self._marks: Marks = UNMARKED
        self._record: Record | None = None
        self._forward: torch.nn.Module = replica.module
        self._path = aggregator.ddp_path()
        if self._path == "own" and group.through_host:  # else Gloo would stage the buckets, not the group
            self._path = "hook"
        self._buckets = _Buckets(aggregator, group, self._device, replica.layout, replica.trainable)
        self._hooked = False
        self._unused: list[str] = []
        if self._path == "optimizer":
            layout, trainable = replica.layout, replica.trainable
            self._optimizer = aggregator.wrap_optimizer(self._optimizer, layout, trainable, group)
        if self._path in ("bare", "optimizer"):
            return
        self._unused = self._parameters_without_gradient()
        alone = self._path == "own" and not aggregator.exchanges
        self._ddp = self._forward = DistributedDataParallel(
            replica.module,
            process_group=group.single_rank_group() if alone else group.data,
            bucket_cap_mb=bucket_mb,
            # Without it DDP waits for their gradients, for ever; with it it walks the graph of every step.
            find_unused_parameters=group.largest(len(self._unused)) > 0,
            **_OWN_BUFFERS,
        )
        if self._path == "hook":
            self._hook_in(PASSES_UNTIL_BUCKETS_STAY)
        else:
            self._run_dry(PASSES_UNTIL_BUCKETS_STAY)

    @property
    def notes(self) -> list[str]:
        """What the aggregator decided at the start, and the buckets where they are known."""
        unused = ", ".join(self._unused)
        shown = f"DDP searches every step for parameters that the loss does not depend on: {unused:.200}"
        return [*self.replica.notes, *([shown] if unused else []), *self._buckets.notes]

    @property
    def record(self) -> Record | None:
        """See `Step`."""
        return self._record

    @record.setter
    def record(self, record: Record | None) -> None:
        self._record = self._buckets.record = record

    def set_learning_rate(self, rate: float) -> None:
        """See `Step`."""
        set_learning_rate(self._optimizer, rate)

    def state_dict(self) -> dict[str, Any]:
        """See `Step`."""
        module = {name: value.detach().clone() for name, value in self.replica.module.state_dict().items()}
        states = [self._optimizer.state.get(parameter, {}) for parameter in self.replica.trainable]
        momenta = [state.get("momentum_buffer") for state in states]
        update = {str(at): momentum.clone() for at, momentum in enumerate(momenta) if momentum is not None}
        return {"module": module, "aggregator": self._buckets.state_dict(), "update": update}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Step`."""
        self.replica.module.load_state_dict(state["module"])
        self._buckets.load_state_dict(state["aggregator"])
        for at, parameter in enumerate(self.replica.trainable):
            parameter_state = self._optimizer.state[parameter]
            parameter_state.pop(
                "momentum_buffer", None
            )  # without one torch's next step takes the gradient itself
            if str(at) in state["update"]:
                parameter_state["momentum_buffer"] = state["update"][str(at)].to(parameter.device, copy=True)

    def check(self) -> None:
        """See `Step`."""
        self._buckets.check()

    def prepare_split(self, recorder: PhaseRecorder) -> bool:
        """DDP's own path gets a hook that does the same: only a hook can mark the exchange."""
        if self._path == "own":
            self._hook_in(1)
        return True

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        """Forward, backward with the exchange under it, update; see `Step`."""
        self._marks = marks
        hidden = self._record is not None and not self._hooked and self._path in ("own", "optimizer")
        gradients = self._local_gradients(inputs, targets) if hidden else None
        with marks.phase("forward"):
            loss = self.replica.loss(self._forward(inputs), targets)
        with marks.phase("backward"):
            self.replica.backward(loss)
            self._buckets.raise_failure()
        if self._path == "optimizer":
            with marks.phase("communicate"):
                self._optimizer.synchronize()
        if self._record is not None and gradients is not None:
            means = [_filled(parameter.grad, parameter) for parameter in self.replica.trainable]
            self._record += recomputed_exchanges(self.replica.layout.names, gradients, means)
        with marks.phase("update"), self._stepping():
            self._optimizer.step()
        if not self._hooked:
            self._meter_own_path()
        return loss.detach()

    def _local_gradients(self, inputs: Tensor, targets: Tensor) -> list[Tensor] | None:
        """This rank's gradients, computed without DDP; None where a second time gives others. Collective."""
        replica, computed = self.replica, []
        for _ in range(2):
            with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                loss = replica.forward(inputs, targets)
            gradients = torch.autograd.grad(loss, replica.trainable, allow_unused=True)
            computed.append([_filled(*pair) for pair in zip(gradients, replica.trainable, strict=True)])
        largest = max(float(gradient.abs().max()) for gradient in computed[0] if gradient.numel())
        same = all(
            torch.allclose(gradient, other, rtol=0.0, atol=SAME * largest)
            for gradient, other in zip(*computed, strict=True)
        )
        return computed[0] if self._group.largest(float(not same)) == 0 else None

    def _stepping(self) -> AbstractContextManager[None]:
        """What an optimizer that has waited for its gradients wants around its step."""
        if self._path == "optimizer":
            return self._optimizer.skip_synchronize()  # type: ignore[no-any-return]
        return nullcontext()

    def _meter_own_path(self) -> None:
        """DDP's own exchanges, and an optimizer's, pass the group by."""
        if self._path in ("own", "optimizer") and self._aggregator.exchanges and self._group.world_size > 1:
            group = self._group
            for dtype in self.replica.dtypes:
                layout = self.replica.layout_of(dtype)
                sent = self._aggregator.wire_bytes(layout, group.world_size, group.rank, dtype.itemsize)
                group.meter.count(sent or 0, 0)

    def _hook_in(self, dry_passes: int) -> None:
        """From now on buckets go to `_hook`. Collective."""
        # DDP's reducer keeps the hook where no collector finds it: a reference to DDP itself would never end.
        itself = weakref.ref(self)

        def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP does not understand postponed annotations
            step = itself()
            assert step is not None, "backward runs while somebody has the step"
            return step._hook(bucket)

        self._ddp.register_comm_hook(None, hook)
        self._hooked = True
        self._run_dry(dry_passes)
        self._buckets.start()

    def _parameters_without_gradient(self) -> list[str]:
        """The names of those that the loss of the example does not depend on."""
        self._run_dry(1)
        named = zip(self.replica.layout.names, self.replica.trainable, strict=True)
        return [name for name, parameter in named if parameter.grad is None]

    def _run_dry(self, num_passes: int) -> None:
        """Forward and backward passes without an update, in which DDP settles its buckets.

        What they change (statistics of batch normalisation, the random state) is put back.
        """
        module = self.replica.module
        state = {name: value.detach().clone() for name, value in module.state_dict().items()}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            for _ in range(num_passes):
                inputs, targets = self._example
                self.replica.backward(self.replica.loss(self._forward(inputs), targets))
        module.load_state_dict(state)
        self._group.meter.reset()

    def _hook(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        marks = self._marks
        if not self._buckets.started:
            return self._buckets.note_and_return(bucket)
        # The backward pass stands still while this hook does, if it blocks.
        with marks.paused(until_beside_ends=bucket.is_last()):
            return self._buckets.launch(bucket, marks)


def _filled(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A copy; zeros where the loss does not depend on the parameter."""
    return torch.zeros_like(parameter) if gradient is None else gradient.detach().clone()


class _Buckets:
    """The buckets that a hook has seen, each with its aggregator's state.

    Args:
        aggregator, group, device: of the step.
        layout: all parameters' names and shapes.
        parameters: in the layout's order.
    """

    def __init__(
        self,
        aggregator: Aggregator[Any],
        group: TorchGroup,
        device: torch.device,
        layout: BucketLayout,
        parameters: list[torch.nn.Parameter],
    ) -> None:
        self._aggregator, self._group, self._device = aggregator, group, device
        self._named = {
            id(p): (name, shape)
            for p, name, shape in zip(parameters, layout.names, layout.shapes, strict=True)
        }
        self._layouts: dict[int, BucketLayout] = {}
        self._dtypes: dict[int, torch.dtype] = {}
        self._states: list[AggregatorState] = []
        self._unseen: set[int] = set()  # buckets that no step has had yet
        self.started = False
        self.record: Record | None = None
        self._side = _SideStream(device)

    @property
    def notes(self) -> list[str]:
        if not self._layouts:
            return []
        sizes = [
            layout.num_elements * self._dtypes[index].itemsize / 2**20
            for index, layout in self._layouts.items()
        ]
        largest = f"{max(sizes):.3g} MiB"
        shown = (
            f"{len(sizes)} buckets of {min(sizes):.3g} to {largest}"
            if len(sizes) > 1
            else f"1 bucket of {largest}"
        )
        return [shown, *dict.fromkeys(note for state in self._states for note in state.notes)]

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The aggregator's of every bucket, by its number."""
        return save_buckets(self._states)

    def load_state_dict(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Takes them over; of other buckets of the same model too. Collective."""
        load_buckets(self._states, states)

    def note_and_return(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Remembers what the bucket holds; exchanges nothing, for passes that no update follows."""
        if bucket.index() == 0:
            self._layouts, self._dtypes = {}, {}
        named = [self._named[id(parameter)] for parameter in bucket.parameters()]
        self._layouts[bucket.index()] = BucketLayout.of(named)
        self._dtypes[bucket.index()] = bucket.buffer().dtype
        return _done(bucket.buffer())

    def start(self) -> None:
        """Makes the buckets' states, in their order. Collective."""
        self._states = [
            self._aggregator.start(self._layouts[index], self._group, self._dtypes[index], self._device)
            for index in sorted(self._layouts)
        ]
        self._unseen = set(self._layouts)
        self.started = True

    def launch(self, bucket: GradBucket, marks: Marks) -> torch.futures.Future[Tensor]:
        """Sets the exchange of one bucket going; the future holds the mean."""
        state, buffer = self._states[bucket.index()], bucket.buffer()
        if not self._aggregator.exchanges:
            return _done(buffer)
        if bucket.index() in self._unseen:
            names = tuple(self._named[id(parameter)][0] for parameter in bucket.parameters())
            assert names == state.layout.names, "DDP has rebuilt its buckets again: residuals are of others"
            self._unseen.discard(bucket.index())

        return self._side.run(lambda: self._mean(state, buffer, marks.on_lane("comm")), buffer)

    @torch.no_grad()
    def _mean(self, state: AggregatorState, gradient: Tensor, phase: PhaseMarker) -> Tensor:
        """The mean of a bucket's gradients."""
        mean = aggregate(self._aggregator, state, gradient, phase, self.record)
        assert mean is not None, "every replica takes the step"
        return mean

    def check(self) -> None:
        """Raises what went wrong on the device."""
        for state in self._states:
            state.check()

    def raise_failure(self) -> None:
        """Raises what an exchange of this step raised."""
        self._side.raise_failure()


class _SideStream:
    """Runs work in order, concurrently with the computation: on a stream, or in a thread of its own.

    DDP passes on no error of a future. So a failure is kept for the caller, and nothing is run after it: the
    other ranks still wait for the work that failed.
    """

    def __init__(self, device: torch.device) -> None:
        self._failure: BaseException | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._stream = side_stream(device)
        if self._stream is None:
            self._thread = ThreadPoolExecutor(1, "exchange")

    def run(self, work: Callable[[], Tensor], instead: Tensor) -> torch.futures.Future[Tensor]:
        """The future value of `work`; `instead` where it fails."""
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
        """Raises what the first work that failed raised."""
        try:
            if self._failure is not None:
                raise self._failure
        finally:
            self._failure = None  # its traceback leads back here


def _done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    """A future whose value is there in the order of the current stream."""
    devices: list[int | str | torch.device] | None = [tensor.device] if tensor.is_cuda else None
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    future.set_result(tensor)
    return future
