"""accelerate: `prepare`, `accumulate`, `clip_grad_norm_`, `save_state`."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(1280, 32), torch.randn(1280, 1)), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(100):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(f"state-{epoch}")
