r"""A DDP script as one writes it, for a network that studies have too: what `scaling attach` says of it can
be compared with what `scaling run` measures.

    scaling attach -- torchrun --nproc-per-node 2 \
        benchmarks/attach_network.py gpt --batch 8 --bf16 --accumulate 2
    scaling attach -- python benchmarks/attach_network.py resnet-50 --batch 64 --spawn 2

The first accumulates gradients and exchanges them in the last backward pass of a step alone; the second
starts its ranks by `mp.spawn`. Without a GPU it trains on the CPU, over Gloo. Every 50 steps it writes a
checkpoint.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

NUM_BATCHES = 8


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--batch", type=int, required=True, help="samples on each rank")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--bucket-mb", type=float, help="default: DDP's")
    parser.add_argument("--workers", type=int, default=2, help="of the loader")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes of a step")
    parser.add_argument("--spawn", type=int, help="ranks that the script starts itself")
    parser.add_argument("--port", default="29477", help="at which those meet")
    return parser.parse_args()


def spawned(rank: int, args: argparse.Namespace) -> None:
    """A rank that was started by `mp.spawn`."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(args.spawn)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": args.port}
    train(args)


def train(args: argparse.Namespace) -> None:
    """Trains on random data."""
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if has_gpu else "cpu", int(os.environ["LOCAL_RANK"]) if has_gpu else 0)
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    torch.manual_seed(0)
    network, synthetic = create_model(args.network), create_dataset("synthetic")
    shape = resolve_shape(network, synthetic)
    data = synthetic.load(shape, NUM_BATCHES * args.batch, dist.get_rank()).train
    loader = DataLoader(
        TensorDataset(data.inputs, data.targets), args.batch, shuffle=True, num_workers=args.workers,
        pin_memory=has_gpu, persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = DistributedDataParallel(
        build_module(network, shape).to(device), broadcast_buffers=False, bucket_cap_mb=args.bucket_mb
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    while step < args.steps:
        for at, batch in enumerate(loader):
            is_last = at % args.accumulate == args.accumulate - 1
            model.require_backward_grad_sync = is_last  # as no_sync() does
            x, y = (tensor.to(device, non_blocking=True) for tensor in batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
            (loss / args.accumulate).backward()
            if not is_last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
                torch.save(model.state_dict(), "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    chosen = arguments()
    if chosen.spawn:
        multiprocessing.spawn(spawned, (chosen,), chosen.spawn)  # type: ignore[attr-defined,no-untyped-call]
    else:
        train(chosen)
