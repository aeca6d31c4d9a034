"""A DDP script with a planted fault, or without one: what `attach_quality.py` attaches to.

    torchrun --nproc-per-node=2 attach_plants.py '{"fault": "forward", "rank": 1, "ms": 15}'

It knows nothing of this project.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PLANT = json.loads(sys.argv[1])
FAULT, MS, RANK = PLANT.get("fault"), PLANT.get("ms", 0.0), PLANT.get("rank")
WIDTH, DEPTH, BATCH = PLANT.get("width", 256), PLANT.get("depth", 6), PLANT.get("batch", 512)


def is_here(fault: str) -> bool:
    """Whether this rank has the fault."""
    return fault == FAULT and (RANK is None or dist.get_rank() == RANK)


def compute(seconds: float) -> None:
    """Keeps a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class SlowBackward(torch.autograd.Function):
    """Passes on what it is given, and its gradient late."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The same."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The same, late."""
        time.sleep(MS / 1e3)
        return gradients[0]


class Data(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A sample is a whole batch, so that one call is what is slow."""

    def __init__(self) -> None:
        self._draw = random.Random(dist.get_rank())
        self._x = torch.randn(2 * BATCH, WIDTH)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        if is_here("input"):
            compute(MS / 1e3)
        if is_here("storage") or is_here("input_rank"):
            time.sleep(MS / 1e3)
        size = BATCH
        if FAULT == "uneven":
            size = int(BATCH * self._draw.choice([0.25, PLANT["factor"]]))
        x = self._x[:size]
        return x, x.sum(1, keepdim=True)


class SlowSGD(torch.optim.SGD):
    """With its state on the host, an element after the other."""

    def step(self, closure: Any = None) -> Any:
        """A step, late."""
        compute(MS / 1e3)
        return super().step(closure)


def main() -> None:
    """Trains until it is ended."""
    torch.set_num_threads(PLANT.get("threads", 1))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(DEPTH):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(network, bucket_cap_mb=PLANT.get("bucket_mb"))
    kind = SlowSGD if FAULT == "optimizer" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-5, momentum=PLANT.get("momentum", 0.0))
    loader = DataLoader(Data(), batch_size=None, num_workers=PLANT.get("workers", 0))
    every, metric = PLANT.get("accumulate", 1), torch.zeros(PLANT.get("metric", 1))
    for at, (x, y) in enumerate(loader):
        is_last = at % every == every - 1
        model.require_backward_grad_sync = is_last  # as no_sync() does
        out = model(x)
        if is_here("forward"):
            time.sleep(MS / 1e3)
        if is_here("backward"):
            out = SlowBackward.apply(out)  # type: ignore[no-untyped-call]
        loss = (out - y).square().mean()
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        if FAULT == "item":
            metric += loss.item()
            dist.all_reduce(metric)
        if at % PLANT.get("evaluate", 10**9) == PLANT.get("evaluate", 0) - 1:
            model.eval()
            with torch.no_grad():
                for _ in range(PLANT["batches"]):
                    model(x)
            model.train()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
