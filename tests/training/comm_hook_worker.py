"""One rank of test_comm_hook.py: an aggregator as the hook of a plain DDP loop; writes JSON."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import destroy_process_group
from torch.nn.parallel import DistributedDataParallel

import scaling
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.errors import StudyError
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from tests.ranks import as_rank

AGGREGATORS: dict[str, dict[str, Any]] = {
    "one_bit": {},
    "power_sgd": {"approximation_size": 2, "minimum_compression": 1.0},
    "top_k": {},
    "bf16": {},
}
EXACT, STEPS, SAVED_AFTER = 2, 8, 5
BUCKET_MB = 0.004


def network(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 6)]
    return nn.Sequential(*layers).to(device)


def batch(rank: int, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    inputs, targets = torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)
    return inputs.to(device), targets.to(device)


def train(model: nn.Module, rank: int, numbers: range, device: torch.device) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in numbers:
        inputs, targets = batch(rank, number, device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def wrapped(group: TorchGroup, device: torch.device, **settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(
        network(device), process_group=group.data, **{"bucket_cap_mb": BUCKET_MB, **settings}
    )


def by_hand(name: str, group: TorchGroup, buckets: list[list[str]], device: torch.device) -> nn.Module:
    """The same training with the aggregator called on each bucket's gradients, without DDP."""
    model = network(device)
    named = dict(model.named_parameters())
    aggregator = create(name, AGGREGATORS[name])
    layouts = [BucketLayout.of([(each, tuple(named[each].shape)) for each in names]) for names in buckets]
    states = [aggregator.start(layout, group, torch.float32, device) for layout in layouts]
    for number in range(STEPS):
        inputs, targets = batch(group.rank, number, device)
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        for names, state in zip(buckets, states, strict=True):
            flat = torch.cat([named[each].grad.flatten() for each in names])  # type: ignore[union-attr]
            if number < EXACT:
                flat /= group.world_size
                group.all_reduce(flat)
            else:
                mean = aggregator.aggregate(state, flat)
                assert mean is not None, "replicas'"
                flat = mean
            sizes = [named[each].numel() for each in names]
            for each, part in zip(names, flat.split(sizes), strict=True):
                named[each].data.add_(part.view_as(named[each]), alpha=-0.05)
    return model


def flat_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def seen_of(name: str, group: TorchGroup, device: torch.device) -> dict[str, Any]:
    """How far from the aggregator's own training; notes; and what a resumed one gives."""
    model = wrapped(group, device)
    state, hook = scaling.comm_hook(name, model, **AGGREGATORS[name])
    model.register_comm_hook(state, hook)
    train(model, group.rank, range(SAVED_AFTER), device)
    saved = {key: value.clone() for key, value in model.module.state_dict().items()}
    residuals = state.state_dict()
    train(model, group.rank, range(SAVED_AFTER, STEPS), device)
    state.check()
    buckets = [list(layout.names) for _, layout in sorted(state._buckets._layouts.items())]
    apart = (flat_of(model) - flat_of(by_hand(name, group, buckets, device))).abs().max().item()
    ends = []
    for loaded in (residuals, None):
        resumed = wrapped(group, device, gradient_as_bucket_view=True, bucket_cap_mb=25)
        resumed.module.load_state_dict(saved)
        other, hook = scaling.comm_hook(name, resumed, **AGGREGATORS[name])
        if loaded:
            other.load_state_dict(loaded)
        resumed.register_comm_hook(other, hook)
        train(resumed, group.rank, range(EXACT + 1), device)
        ends.append(flat_of(resumed))
    return {
        "apart": apart,
        "buckets": len(buckets),
        "notes": state.notes,
        "resumes": not torch.equal(*ends),
        "graphs": state._buckets.has_graphs,
        "kept": sorted({key.split("/")[0] for tensors in residuals.values() for key in tensors}),
    }


def broken(group: TorchGroup, device: torch.device) -> dict[str, Any]:
    """One rank's codec loses its residual: the check finds it."""
    model = wrapped(group, device)
    decode = one_bit.decode
    if group.rank == 1:
        one_bit.decode = lambda *given: 1.5 * decode(*given)
    state, hook = scaling.comm_hook("one_bit", model, kernels="torch")
    model.register_comm_hook(state, hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, group.rank, range(STEPS), device)
    one_bit.decode = decode
    ours = [str(each.message) for each in caught if "scaling.comm_hook" in str(each.message)]
    total = flat_of(model).clone()
    group.all_reduce(total)
    return {
        "fallback": state.fallback,
        "warnings": ours,
        "apart": (flat_of(model) - total / group.world_size).abs().max().item(),
    }


def closed(group: TorchGroup, device: torch.device) -> bool:
    """Whether a hook has dropped its graphs when its process group ends, while the model stays."""
    own = dist.new_group(backend=dist.get_backend(group.data))
    model = DistributedDataParallel(network(device), process_group=own)
    state, hook = scaling.comm_hook("one_bit", model)
    model.register_comm_hook(state, hook)
    train(model, group.rank, range(STEPS), device)
    had = state._buckets.has_graphs
    destroy_process_group(own)
    return had == (device.type == "cuda") and not state._buckets.has_graphs and state.is_closed


def refused(name: str, model: Any) -> str:
    try:
        scaling.comm_hook(name, model)
    except StudyError as error:
        return str(error)
    return ""


def seen_by(workers: Workers) -> dict[str, Any]:
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= workers.info.world_size
    device = torch.device("cuda", workers.info.rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    group = workers.group(device)
    seen: dict[str, Any] = {name: seen_of(name, group, device) for name in AGGREGATORS}
    seen["broken"] = broken(group, device)
    seen["closed"] = closed(group, device)
    names = ("power_sgd_hook", "host_serial", "one_bit_adam")
    seen["refused"] = {name: refused(name, wrapped(group, device)) for name in names}
    seen["no ddp"] = refused("one_bit", network(device))
    return seen


if __name__ == "__main__":
    as_rank(seen_by)
