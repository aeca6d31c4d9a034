"""An aggregator as the communication hook of a DDP model in anybody's script (docs/how-to/comm-hook.md).

The first backward passes exchange exact means, until DDP's buckets stay. The next two exchanges of each
bucket are checked as a study's are; if one breaks its law, the ranks go back to exact means with a warning.
On GPUs exchanges are CUDA graphs where the aggregator can be captured.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scaling.aggregators.base import Aggregator
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import CheckpointError, StudyError
from scaling.measure.phases import UNMARKED
from scaling.process_group.over_torch import close_before, future_mean, group_of
from scaling.training.exchange_check import deviation, law_of, place
from scaling.training.hooked_buckets import HookedBuckets
from scaling.training.overlapped import PASSES_UNTIL_BUCKETS_STAY

if TYPE_CHECKING:  # torch.distributed has it too, hidden from type checkers
    from torch._C._distributed_c10d import GradBucket

CHECKED_PASSES = 2


class CommHook:
    """Collective to make. `fallback`: why exchanges are exact means; "" while the aggregator runs;
    `is_closed`: its process group has ended; it keeps no CUDA graphs."""

    def __init__(self, aggregator: Aggregator[Any], model: DistributedDataParallel) -> None:
        named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        self._aggregator, self._process_group = aggregator, model.process_group
        _require_fit(aggregator, model.process_group.size(), [parameter for _, parameter in named])
        self._group = group_of(model.process_group, named[0][1].device)
        layout = BucketLayout.of([(name, tuple(p.shape)) for name, p in named])
        parameters = [parameter for _, parameter in named]
        self._buckets = HookedBuckets(aggregator, self._group, parameters[0].device, layout, parameters)
        self._exact_passes = PASSES_UNTIL_BUCKETS_STAY + int(model.static_graph)
        self._passes_to_check = CHECKED_PASSES
        self._loaded: dict[str, dict[str, Tensor]] = {}
        self.fallback, self.is_closed = "", False
        model.register_forward_pre_hook(self._before_forward)
        close_before(model.process_group, self)

    @property
    def notes(self) -> list[str]:
        """How many buckets there are and of which sizes, and which codec runs; [] before the first pass."""
        return [*self._buckets.notes, *([f"exact means: {self.fallback}"] if self.fallback else [])]

    def check(self) -> None:
        """Raises what went wrong in an exchange, such as NotFiniteError; waits for the device."""
        self._buckets.raise_failure()
        if self._buckets.started:
            self._buckets.check()

    def close(self) -> None:
        """Drops the CUDA graphs; `destroy_process_group` does that first, since NCCL waits for their end."""
        self._buckets.drop_graphs()
        self.is_closed = True

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """This rank's residuals, which differ from rank to rank: each saves its own. {} before they are."""
        return self._buckets.state_dict() if self._buckets.started else self._loaded

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Takes them over, of other buckets of the same model too, when the exchanges start or now.
        CheckpointError: a parameter has none (from here, or from the backward pass that starts)."""
        if not isinstance(state, dict):
            raise CheckpointError("the state of a communication hook is what its `state_dict` gave")
        self._loaded = state
        if self._buckets.started:
            self._buckets.load_state_dict(state)

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.index() == 0 and self._exact_passes:
            self._exact_passes -= 1
        if self._buckets.started and not self.fallback:
            return self._buckets.launch(bucket, UNMARKED)
        if not self._buckets.started:
            self._buckets.note_and_return(bucket)
        return future_mean(self._process_group, bucket.buffer())

    def _before_forward(self, model: torch.nn.Module, _: Any) -> None:
        """What all ranks do together between two steps: not in evaluations, which one rank may make alone."""
        if not (torch.is_grad_enabled() and model.training and model.require_backward_grad_sync):
            return
        self._buckets.raise_failure()
        if self._buckets.record:
            self._check_exchanges()
        if self.fallback or self._exact_passes:
            return
        if not self._buckets.started:
            self._buckets.start()
            if self._loaded:
                self._buckets.load_state_dict(self._loaded)
        if self._passes_to_check and self._buckets.record is None:
            self._passes_to_check -= 1
            self._buckets.record = []

    def _check_exchanges(self) -> None:
        record, self._buckets.record = self._buckets.record or [], None
        for exchange in record:
            law = law_of(self._aggregator, exchange, self._group.world_size)
            worst = deviation(self._aggregator, exchange, law, self._group) if law else None
            ratio = self._group.largest(worst.ratio if worst else 0.0)
            if ratio > 1:
                where = place(exchange.layout, worst.element) if worst and worst.ratio > 1 else "another rank"
                self.fallback = f"an exchange was {ratio:.3g} times as far off as its law allows ({where})"
                warnings.warn(f"scaling.comm_hook: {self.fallback}: exact means from here on", stacklevel=2)
                return


def comm_hook(name: str, model: DistributedDataParallel, **parameters: Any) -> tuple[CommHook, Any]:
    """The state and the hook for `model.register_comm_hook(*scaling.comm_hook("power_sgd", model))`.
    Collective. StudyError: the aggregator is no hook, or does not fit the model. LaunchError: the model's
    process group lacks ranks, or is not of NCCL on GPUs."""
    if not isinstance(model, DistributedDataParallel):
        raise StudyError(f"scaling.comm_hook: model is a {type(model).__name__}; give the DDP model itself")
    return CommHook(create(name, parameters), model), _hook


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP does not understand postponed annotations
    return state.exchange(bucket)


def _require_fit(aggregator: Aggregator[Any], world_size: int, parameters: list[torch.nn.Parameter]) -> None:
    where = f"scaling.comm_hook: aggregator {aggregator.name!r}"
    if not aggregator.overlaps or aggregator.ddp_path() != "hook" or aggregator.own_momentum():
        raise StudyError(
            f"{where} is no exchange of a bucket's mean under the backward pass; use one_bit, power_sgd, "
            "top_k, qsgd, fp16 or bf16 (`scaling list aggregators`)"
        )
    if aggregator.library or aggregator.min_world_size > world_size:
        raise StudyError(f"{where} does not run in a process group of {world_size}")
    wrong = {str(p.dtype) for p in parameters if p.dtype not in aggregator.dtypes}
    if wrong:
        raise StudyError(f"{where} takes no gradients of {', '.join(sorted(wrong))}")
