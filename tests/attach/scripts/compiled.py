"""torch.compile around a DDP model, autocast to bfloat16, an LR warm-up."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
model = torch.compile(DistributedDataParallel(model), backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.randint(8, (512,))), batch_size=32)
for _ in range(100):
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
