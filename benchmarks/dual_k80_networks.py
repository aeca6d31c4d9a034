"""Every preset on the three networks of arXiv 1608.07249 at 1, 2 and 4 GPUs of its machine, simulated:

    python benchmarks/dual_k80_networks.py

A step is the computation, divided by the GPUs, and after it the aggregation and update of
benchmarks/dual_k80_presets.py; nothing overlaps. The computation of FCN-R is the 100 ms that the paper states
for a batch; that of the others is not stated, and is taken to run as many multiplications a second as FCN-R's
does at the batch of the shipped study: an assumption, and a generous one for small convolutions.
Prints Markdown, which docs/background/dual-k80.md has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from dual_k80_presets import COMPUTE_S, CORES, PRESETS
from torch import nn

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Update, simulate_plan
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from topologies.schema import load

WORLD_SIZES = (1, 2, 4)
NETWORKS = {
    "FCN-R": ("fcn-r", "mnist", 4096),
    "AlexNet-R": ("alexnet-r", "cifar10", 1024),
    "ResNet-56": ("resnet-56", "cifar10", 128),
}


@dataclass(frozen=True)
class Network:
    """A network at its global batch.

    Attributes:
        layout: of its gradient.
        multiplications: of one batch, forward.
    """

    layout: BucketLayout
    multiplications: float


def network(model: str, dataset: str, batch: int) -> Network:
    """Its gradient's layout, and its products, counted on shapes alone."""
    made = create_model(model, {})
    shape = resolve_shape(made, create_dataset(dataset, {}))
    with torch.device("meta"):
        module = build_module(made, shape)
        counts: list[float] = []

        def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
            weight = layer.weight
            assert isinstance(weight, torch.Tensor)
            positions = output[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
            counts.append(float(weight.numel() * positions))

        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        module.eval()
        module(torch.empty(1, *shape.input_shape))
    layout = BucketLayout.of([(name, tuple(p.shape)) for name, p in module.named_parameters()])
    return Network(layout, batch * sum(counts))


def step_s(preset: str, network: Network, compute_s: float, world_size: int) -> float:
    """A step of the preset; one GPU exchanges nothing, and updates."""
    topology = load("dual-k80")
    stages = create(preset, PRESETS[preset]).stages(network.layout, world_size)
    if world_size == 1:
        stages = [Update("replica", network.layout.num_elements)]
    return (
        compute_s / world_size
        + simulate_plan(stages, topology, world_size, threads=CORES // world_size).seconds
    )


def rows() -> Iterator[str]:
    """Markdown: milliseconds, and in brackets the speed over one GPU."""
    networks = {name: network(*which) for name, which in NETWORKS.items()}
    rate = networks["FCN-R"].multiplications / COMPUTE_S
    yield "| network, computation | strategy | 1 GPU, ms | 2 GPUs, ms (speed) | 4 GPUs, ms (speed) |"
    yield "|---|---|---|---|---|"
    for name, measured in networks.items():
        compute_s = measured.multiplications / rate
        steps = {p: [step_s(p, measured, compute_s, n) for n in WORLD_SIZES] for p in PRESETS}
        for preset, (alone, *others) in sorted(steps.items(), key=lambda item: item[1][1]):
            cells = " | ".join(f"{s * 1e3:.1f} ({alone / s:.2f})" for s in others)
            yield f"| {name}, {compute_s * 1e3:.0f} ms | `{preset}` | {alone * 1e3:.1f} | {cells} |"


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print("\n".join(rows()))


if __name__ == "__main__":
    main()
