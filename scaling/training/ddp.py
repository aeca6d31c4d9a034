"""A model wrapped in torch's DistributedDataParallel, with the bucket sizes that are asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scaling.errors import LaunchError

_OWN_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}  # its name in older torch
)

TAKES_SIZES = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters
"""Whether DDP takes the sizes of all buckets; older torch takes the first's and the others' alone."""


@dataclass(frozen=True)
class DdpSettings:
    """Arguments of DistributedDataParallel. `bucket_sizes_mb`: of all buckets one by one, in MiB; the last is
    of all further ones too; `find_unused_parameters`: None: where the loss does not depend on some parameter;
    `compiled`: torch.compile is given the wrapped model, and splits the graph at the buckets' ends."""

    first_bucket_mb: float | None = None
    bucket_sizes_mb: tuple[float, ...] | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    compiled: bool = False


USUAL_DDP = DdpSettings()


def wrapped(
    module: nn.Module, process_group: Any, bucket_mb: float, settings: DdpSettings, *, finds_unused: bool
) -> tuple[DistributedDataParallel, Callable[[Tensor], Tensor]]:
    """Collective. LaunchError: sizes are given one by one where buckets do not follow them."""
    first_mb = settings.first_bucket_mb
    one_by_one: dict[str, Any] = {}
    if settings.bucket_sizes_mb is not None:
        if finds_unused:  # buckets stay in the order of the parameters, and sizes are of the gradients'
            raise LaunchError(
                "bucket_mb with sizes one by one needs a loss that depends on every parameter, and no "
                "find_unused_parameters; give one size"
            )
        first_mb, bucket_mb = settings.bucket_sizes_mb[0], settings.bucket_sizes_mb[-1]
        if TAKES_SIZES:
            first_mb, one_by_one = None, {"bucket_cap_mb_list": list(settings.bucket_sizes_mb)}
    with _first_bucket_of(first_mb):
        cls = DistributedDataParallel if first_mb is None else _FirstBucketDdp
        ddp = cls(
            module,
            process_group=process_group,
            bucket_cap_mb=bucket_mb,
            find_unused_parameters=finds_unused,
            static_graph=settings.static_graph,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            **one_by_one,
            **_OWN_BUFFERS,
        )
    # Compiling, torch takes the first bucket to have its own constant's size, whatever DDP was told.
    return ddp, _compiled(ddp, min(first_mb or bucket_mb, bucket_mb)) if settings.compiled else ddp


def _compiled(ddp: DistributedDataParallel, first_mb: float) -> Callable[[Tensor], Tensor]:
    compiled = torch.compile(ddp)

    def forward(inputs: Tensor) -> Tensor:
        with _first_bucket_of(first_mb):
            return compiled(inputs)

    return forward


class _FirstBucketDdp(DistributedDataParallel):
    """With a first bucket of torch's constant also where the size of the others is given."""

    def _ddp_init_helper(self, *args: Any, **keywords: Any) -> None:
        self.bucket_bytes_cap_default = True
        if hasattr(self, "_bucket_config"):  # newer torch keeps both sizes here
            first: Any = {"first_bucket_bytes_cap": torch.distributed._DEFAULT_FIRST_BUCKET_BYTES}  # type: ignore[attr-defined]
            self._bucket_config = replace(self._bucket_config, **first)
        super()._ddp_init_helper(*args, **keywords)  # type: ignore[no-untyped-call]


@contextmanager
def _first_bucket_of(size_mb: float | None) -> Iterator[None]:
    """DDP takes the size of its first bucket from a constant of torch's."""
    usual = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
    try:
        if size_mb is not None:
            torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = int(size_mb * 2**20)  # type: ignore[attr-defined]
        yield
    finally:
        torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = usual  # type: ignore[attr-defined]
