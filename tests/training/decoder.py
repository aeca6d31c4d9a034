"""A small decoder of tokens and its batches, which several tests train in threads."""

import torch

from scaling.aggregators.registry import create
from scaling.aggregators.schedule import Scheduled
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

BATCH = 8
EXACT = ["all_reduce", "ring", "tree", "caffe", "mxnet_device", "host_serial", "host_parallel"]
OPTIMIZERS = {
    "sgd": SgdSettings(0.05, 0.9),
    "adam": AdamSettings(1e-3, 0.01),
    "adamw": AdamSettings(1e-3, 0.1, decoupled=True),
}


def network():
    model = create_model("gpt", {"size": "nano", "context": 16, "vocab": 64})
    torch.manual_seed(0)
    return build_module(model, resolve_shape(model, create_dataset("synthetic")))


def batches(num_steps):
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        text = torch.randint(64, (BATCH, 17), generator=generator)
        yield text[:, :-1], text[:, 1:]


def aggregator_in_threads(name, device):
    """A built-in; its exchange is not captured: meanwhile no other thread might wait for the GPU."""
    scheduled_on_gpu = device != "cpu" and isinstance(create(name), Scheduled)
    return create(name, {"captured": False} if scheduled_on_gpu else {})
