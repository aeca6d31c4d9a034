"""A plain script: DDP, a DataLoader, a checkpoint every step; a rank may be slow in its forward pass.

plain.py [RANK [FILE]]: that rank is slow; with a file, in its fifth step it waits for the others' tenth.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
slow_rank = int(sys.argv[1]) if len(sys.argv) > 1 else None
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(64, 64), torch.randn(64, 1))
tenth, number = sys.argv[2] if len(sys.argv) > 2 else None, 0
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        number += 1
        if dist.get_rank() == slow_rank:
            time.sleep(0.03)
            while tenth and number == 5 and not os.path.exists(tenth):
                time.sleep(0.01)
        elif tenth and number == 10:
            open(tenth, "w").close()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        torch.save(model.state_dict(), os.path.join(os.getcwd(), "checkpoint.pt"))
