"""In the style of torch's imagenet example: mp.spawn, workers of loaders, a validation each epoch."""

import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main_worker(rank, args):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{args.port}", world_size=args.world_size, rank=rank
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, 2), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10),
    )  # fmt: skip
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    images = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(10, (256,)))
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=16, sampler=sampler, num_workers=1)
    for epoch in range(60):
        sampler.set_epoch(epoch)
        model.train()
        for image, target in loader:
            loss = torch.nn.functional.cross_entropy(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(image).argmax(1) == y).sum() for image, y in DataLoader(images, 64))
        dist.all_reduce(correct)
        scheduler.step()
        if rank == 0:
            torch.save({"epoch": epoch, "state_dict": model.state_dict()}, "checkpoint.pth.tar")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    mp.spawn(main_worker, nprocs=arguments.world_size, args=(arguments,))
