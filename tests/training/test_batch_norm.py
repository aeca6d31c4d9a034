"""With statistics of the global batch, several workers train as one does."""

import copy
from functools import cache

import pytest
import torch
from torch import nn

from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.batch_norm import has_batch_norm, synchronized
from scaling.workloads.digits import Digits
from scaling.workloads.sampling import epoch_batches, shard
from tests.training.small import SGD, eager, relative_difference

NUM_STEPS = 100


def network(normalised: bool = True) -> nn.Module:
    """Smooth: at the bend of a ReLU one rounding makes another gradient, and a gap that grows from there."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 16),
              nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10)]  # fmt: skip
    return nn.Sequential(*(one for one in layers if normalised or not has_batch_norm(one)))


@cache
def trained(world_size: int, batch_norm: str, aggregator: str = "all_reduce") -> list[list[float]]:
    """[rank] losses of 100 steps, over the global batch, and the last sum of the running variances."""
    split = Digits().load(Digits().shape(None), 0, 0).train
    batches = torch.cat([epoch_batches(len(split), 64, 0, epoch) for epoch in range(5)])[:NUM_STEPS]

    def work(group: InProcessGroup) -> list[float]:
        module = network(batch_norm != "without")
        if batch_norm == "sync":
            module = synchronized(module, group)
        step = eager(module, aggregator, SGD, group)
        own = shard(batches, group.rank, group.world_size)
        losses = torch.stack([step(split.inputs[samples], split.targets[samples]) for samples in own])
        group.all_reduce(losses)
        statistics = sum(float(value.sum()) for name, value in module.named_buffers() if "var" in name)
        return [*(losses / group.world_size).tolist(), statistics]

    return run_in_process(world_size, work)


@pytest.mark.parametrize("world_size", [2, 4])
class TestAgreement:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("aggregator", ["all_reduce", "ring", "tree", "host_parallel"])
    @pytest.mark.parametrize("batch_norm", ["sync", "without"])
    def test_exact_aggregators_have_the_losses_of_one_worker(self, world_size, batch_norm, aggregator):
        (alone,) = trained(1, batch_norm)
        for losses in trained(world_size, batch_norm, aggregator):
            # With the running statistics, at the end.
            assert relative_difference(losses[:NUM_STEPS], alone[:NUM_STEPS]) < 1e-5
            assert losses[-1] == pytest.approx(alone[-1], rel=1e-5)

    def test_statistics_of_each_replica_make_another_training(self, world_size):
        (alone,) = trained(1, "replica")
        assert relative_difference(trained(world_size, "replica")[0][:NUM_STEPS], alone[:NUM_STEPS]) > 1e-3


def test_one_worker_trains_the_same_bits_either_way():
    assert trained(1, "sync") == trained(1, "replica")


class TestOneLayer:
    """Against torch's own layer on the whole batch, in double precision; shares of 3 and 5 samples."""

    def own_and_torchs(self, layer: nn.Module, inputs: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        weights = torch.randn(inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

        def passed(module: nn.Module, share: slice) -> tuple[torch.Tensor, ...]:
            own = inputs[share].clone().requires_grad_()
            output = module(own)
            (output * weights[share]).sum().backward()
            gradients = [parameter.grad for parameter in module.parameters()]
            return (output.detach(), own.grad, *gradients, *module.buffers())

        def work(group: InProcessGroup) -> tuple[torch.Tensor, ...]:
            module = synchronized(copy.deepcopy(layer), group)
            return passed(module, slice(0, 3) if group.rank == 0 else slice(3, 8))

        first, second = run_in_process(2, work)
        num_gradients = len(list(layer.parameters()))
        joined = [torch.cat(pair) for pair in zip(first[:2], second[:2], strict=True)]
        summed = [a + b for a, b in zip(first[2:], second[2:], strict=True)][:num_gradients]
        return [(*joined, *summed, *first[2 + num_gradients :]), passed(layer, slice(0, 8))]

    @pytest.mark.parametrize("affine", [True, False])
    @pytest.mark.parametrize("momentum", [0.1, None])
    @pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (8, 3)), (nn.BatchNorm2d, (8, 3, 2, 5))])
    def test_it_gives_what_the_whole_batch_does(self, kind, shape, momentum, affine):
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(shape, dtype=torch.float64, generator=generator) * 3 + 7
        layer = kind(3, affine=affine, momentum=momentum).double()
        own, torchs = self.own_and_torchs(layer, inputs)
        for ours, theirs in zip(own, torchs, strict=True):
            torch.testing.assert_close(ours, theirs)

    def test_evaluation_uses_the_kept_statistics_and_exchanges_nothing(self):
        def work(group: InProcessGroup) -> bool:
            module = synchronized(nn.BatchNorm1d(3), group).eval()
            inputs = torch.full((2, 3), float(group.rank + 1))
            return torch.allclose(module(inputs), inputs / (1 + 1e-5) ** 0.5) and not group.meter.bytes_sent

        assert all(run_in_process(2, work))


def test_parameters_are_the_same_objects_and_names():
    def work(group: InProcessGroup) -> bool:
        module = network()
        before = dict(module.named_parameters())
        after = dict(synchronized(module, group).named_parameters())
        return list(before) == list(after) and all(after[name] is before[name] for name in before)

    assert all(run_in_process(2, work))
