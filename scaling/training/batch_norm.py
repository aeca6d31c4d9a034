"""Batch normalisation with the mean and variance of the global batch, so that it learns as one worker would.

Each channel's count, sum and sum of squares are added up in float64, so that the variance does not cancel
out. The gradients of weight and bias stay local sums, which the aggregator brings together with all others.
On CUDA it is torch's SyncBatchNorm (torch/nn/modules/_functions.py) but for workers that share a GPU.

Reference: S. Ioffe, C. Szegedy, "Batch normalization", arXiv 1502.03167.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from scaling.process_group import Group, TorchGroup


def synchronized(module: nn.Module, group: Group) -> nn.Module:
    """Changes the network, on its device: every batch normalisation is over the ranks of `group`."""
    on_cuda = any(parameter.is_cuda for parameter in module.parameters())
    if on_cuda and isinstance(group, TorchGroup) and not group.through_host:
        return nn.SyncBatchNorm.convert_sync_batchnorm(module, group.data)  # type: ignore[no-untyped-call]
    if isinstance(module, _BatchNorm):
        return _SynchronizedBatchNorm(module, group)
    for name, child in module.named_children():
        setattr(module, name, synchronized(child, group))
    return module


def has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def synchronized_statistics(module: nn.Module) -> set[str]:
    """Names of the buffers that every rank has from the global batch."""
    return {
        f"{name}.{buffer}" if name else buffer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.SyncBatchNorm | _SynchronizedBatchNorm)
        for buffer, _ in layer.named_buffers(recurse=False)
    }


class _SynchronizedBatchNorm(_BatchNorm):
    def __init__(self, layer: _BatchNorm, group: Group) -> None:
        super().__init__(
            layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
        )
        self._parameters = layer._parameters
        self._buffers = layer._buffers
        self._group = group
        self.train(layer.training)

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """[n, C, ...] -> the same shape; n may differ between ranks."""
        if not self.training or self._group.world_size == 1:
            return super().forward(input)
        result, mean, variance, count = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, self._group
        )
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return result
        unbiased = variance * (count / (count - 1).clamp(min=1))
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                running.mul_(1 - share).add_(new.to(running.dtype), alpha=share)
        return result


class _Normalize(torch.autograd.Function):
    """Input, weight, bias -> normalised; and mean, biased variance [C] and count of the global batch."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Group
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [axis for axis in range(input.dim()) if axis != 1]
        own_count = input.numel() // input.shape[1]
        own_mean = input.mean(axes).double()
        own_variance = input.var(axes, unbiased=False).double()
        squares = (own_variance + own_mean.square()) * own_count
        sums = torch.cat([own_mean * own_count, squares, own_mean.new_tensor([own_count])])
        _sum_over_ranks(sums, group)
        count = sums[-1]
        mean, squares = (sums[:-1] / count).chunk(2)
        variance = (squares - mean.square()).clamp(min=0)
        deviation = (variance + eps).rsqrt()
        normalised = (input - _along(mean, input)) * _along(deviation, input)
        ctx.save_for_backward(normalised, weight, deviation, count)
        ctx.group, ctx.axes = group, axes
        output = normalised
        if weight is not None and bias is not None:
            output = normalised * _along(weight, input) + _along(bias, input)
        ctx.mark_non_differentiable(mean, variance, count)
        return output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        normalised, weight, deviation, count = ctx.saved_tensors
        of_bias = gradient.sum(ctx.axes)
        of_weight = (gradient * normalised).sum(ctx.axes)
        sums = torch.cat([of_bias, of_weight]).double()
        _sum_over_ranks(sums, ctx.group)
        mean, mean_product = (sums / count).chunk(2)
        scale = deviation if weight is None else deviation * weight.double()
        of_input = gradient - _along(mean, gradient) - normalised * _along(mean_product, gradient)
        of_input = of_input * _along(scale, gradient)
        return of_input, *((None, None) if weight is None else (of_weight, of_bias)), None, None


def _sum_over_ranks(values: Tensor, group: Group) -> None:
    """In place; in host memory apart from the gradients', which another thread may send meanwhile."""
    (group.all_reduce if values.is_cuda else group.all_reduce_host)(values)


def _along(channels: Tensor, like: Tensor) -> Tensor:
    """[C] as [1, C, 1, ...], of the type of `like`."""
    return channels.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))
