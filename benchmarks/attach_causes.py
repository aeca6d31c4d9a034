"""A script with one of ten causes of slow training that people have reported, each as they wrote it.

    scaling attach -- torchrun --nproc-per-node=2 benchmarks/attach_causes.py uneven_lengths

`attach_quality.py --causes` attaches to all of them. It knows nothing of this project; a GPU is used if there
is one, and `item` and `unpinned` are seen on one alone.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

COMPUTES_S, WIDTH = 0.1, 64


class Samples(Dataset[torch.Tensor]):
    """Of one length, or of lengths that differ much."""

    def __init__(self, is_uneven: bool) -> None:
        draw = random.Random(0)
        self.lengths = [
            int(min(400, max(8, draw.lognormvariate(4, 1)))) if is_uneven else 8 for _ in range(4000)
        ]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.randn(self.lengths[at], WIDTH, generator=torch.Generator().manual_seed(at))


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch as long as its longest sample."""
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def now_and_then(cause: str, step: int, model: Any) -> None:
    """What rank 0 does in every tenth step while the others wait."""
    if cause not in ("save", "evaluation") or step % 10:
        return
    if dist.get_rank() == 0 and cause == "save":
        torch.save(_Slow(), "checkpoint.pt")
    elif dist.get_rank() == 0:
        model.eval()
        time.sleep(1.5)
        model.train()
    dist.barrier()


class _Slow:
    def __reduce__(self) -> Any:
        time.sleep(1.5)  # as a slow disk does
        return dict, ()


def after_step(cause: str, loss: torch.Tensor) -> None:
    """What some scripts do after each step."""
    if cause == "gather":
        features = torch.randn(64, 60_000)
        dist.all_gather([torch.empty_like(features) for _ in range(dist.get_world_size())], features)
    if cause == "item":
        for _ in range(20):
            loss.item()


def main(cause: str) -> None:
    """Trains until it is ended."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else None
    if device is not None:
        torch.cuda.set_device(device)
    torch.set_num_threads(8 if cause == "threads" else 1)
    dist.init_process_group("gloo" if device is None else "nccl")
    torch.manual_seed(0)
    width = {"no_sync": 1500, "threads": 1500}.get(cause, WIDTH)
    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.Linear(width, 1),
    ).to(device)
    model: Any = network if cause == "no_optimizer" else DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    data, step = Samples(cause == "uneven_lengths"), 0
    sampler: Any = None if cause == "no_sampler" else DistributedSampler(data)
    size = 512 if cause == "threads" else 4
    loader = DataLoader(
        data, size, shuffle=sampler is None, sampler=sampler, collate_fn=padded, drop_last=True
    )
    while True:
        for x in loader:
            if cause not in ("threads", "no_sync", "no_optimizer"):
                time.sleep(COMPUTES_S * x.shape[1] / 60 if cause == "uneven_lengths" else COMPUTES_S)
            loss = model(x.to(device)).square().mean()
            loss.backward()
            step += 1
            if cause == "no_optimizer":
                for parameter in network.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.data.sub_(1e-4 * parameter.grad)  # type: ignore[operator]
                    parameter.grad = None
            elif cause != "no_sync" or step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            after_step(cause, loss)
            now_and_then(cause, step, model)


if __name__ == "__main__":
    main(sys.argv[1])
