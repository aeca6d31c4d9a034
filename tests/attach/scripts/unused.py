"""find_unused_parameters: a head a step; scaled gradients, skipped steps, no_sync."""

import contextlib
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")


class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(32, 128)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(128, 1) for _ in range(3))

    def forward(self, x, head):
        return self.heads[head](torch.relu(self.trunk(x)))


model = DistributedDataParallel(Heads(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=7)
loader = DataLoader(TensorDataset(torch.randn(640, 32), torch.randn(640, 1)), batch_size=16)
draw = random.Random(0)
for _ in range(200):
    for i, (x, y) in enumerate(loader):
        is_last = i % 2 == 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            scaler.scale(torch.nn.functional.mse_loss(model(x, draw.randrange(3)), y)).backward()
        if is_last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
