"""A script that trains without DistributedDataParallel."""

import torch

weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=1e-3)
while True:
    weight.sum().backward()
    optimizer.step()
