"""The gradients that a sheet is made with: of a short exact training, and larger ones to time."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

WORLD_SIZE = 4
NUM_STEPS = 50
HIDDEN = [128, 64]
TRAINED_ON = f"gradients of mlp(hidden={HIDDEN}) on the digits"
GLOBAL_BATCH, LEARNING_RATE = 128, 0.3

LARGE = BucketLayout.of(
    [
        ("wide.weight", (2048, 1024)),
        ("wide.bias", (2048,)),
        ("convolution.weight", (256, 256, 3, 3)),
        ("convolution.bias", (256,)),
        ("last.weight", (1000, 1024)),
        ("last.bias", (1000,)),
    ]
)
"""What rates are measured on: 15 MB, of which all but the convolution is matrices."""


@cache
def recorded_gradients() -> tuple[BucketLayout, Tensor]:
    """The layout, and [step, rank, num_elements] float32: each rank's gradient along the exact training."""
    dataset = create_dataset("digits")
    model = create_model("mlp", {"hidden": HIDDEN})
    shape = resolve_shape(model, dataset)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        module = build_module(model, shape)
        order = torch.randperm(len(dataset.load(shape, 0, 0).train))
    train = dataset.load(shape, 0, 0).train
    named = list(module.named_parameters())
    parameters = [parameter for _, parameter in named]
    layout = BucketLayout.of([(name, tuple(parameter.shape)) for name, parameter in named])
    gradients = torch.empty(NUM_STEPS, WORLD_SIZE, layout.num_elements)
    for step in range(NUM_STEPS):
        for rank in range(WORLD_SIZE):
            at = (step * GLOBAL_BATCH + rank * GLOBAL_BATCH // WORLD_SIZE) % len(order)
            rows = order.roll(-at)[: GLOBAL_BATCH // WORLD_SIZE]
            loss = model.loss(module(train.inputs[rows]), train.targets[rows])
            computed = torch.autograd.grad(loss, parameters)
            torch.cat([gradient.flatten() for gradient in computed], out=gradients[step, rank])
        with torch.no_grad():
            for parameter, mean in zip(parameters, layout.views(gradients[step].mean(0)), strict=True):
                parameter.sub_(mean, alpha=LEARNING_RATE)
    return layout, gradients
