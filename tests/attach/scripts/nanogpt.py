"""In the style of nanoGPT: no loader, accumulation divided by the world size."""

import os

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
gradient_accumulation_steps = 4
block_size, batch_size, vocab = 32, 4, 64
dist.init_process_group(backend="gloo")
assert gradient_accumulation_steps % dist.get_world_size() == 0
gradient_accumulation_steps //= dist.get_world_size()
torch.manual_seed(1337 + int(os.environ["RANK"]))
data = torch.randint(vocab, (10_000,))


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    return x, torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.mlp(functional.scaled_dot_product_attention(q, k, v, is_causal=True))


model = torch.nn.Sequential(
    torch.nn.Embedding(vocab, 64), *[Block(64) for _ in range(4)], torch.nn.Linear(64, vocab)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
model = DistributedDataParallel(model)
X, Y = get_batch()
for step in range(2000):
    if step % 25 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(get_batch()[0])
        model.train()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "ckpt.pt")
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        logits = model(X)
        loss = functional.cross_entropy(logits.view(-1, vocab), Y.view(-1)) / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
