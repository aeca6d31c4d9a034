"""Every preset on the three networks of arXiv 1608.07249 at 1, 2 and 4 GPUs of its machine, simulated:

    python benchmarks/dual_k80_networks.py

A step is the computation, divided by the GPUs, then aggregation and update, as `scaling claims` prices
them; nothing overlaps. The computation of FCN-R is the 100 ms that the paper states for a batch; that of the
others is not stated, and is taken to run as many multiplications a second: an assumption, and a generous one
for small convolutions. Prints Markdown, which docs/background/dual-k80.md has.
"""

from __future__ import annotations

import argparse

from dual_k80_presets import PRESETS

from scaling.study.claims import Simulated, simulated_s

NETWORKS = (("fcn-r", "mnist", 0.1), ("alexnet-r", "cifar10", 0.018896), ("resnet-56", "cifar10", 0.0276181))
"""With the seconds of a batch's computation on one GPU."""


def step_s(preset: str, network: tuple[str, str, float], workers: int) -> float:
    """A step of the preset; one GPU exchanges nothing, and updates."""
    model, dataset, computation_s = network
    aggregator = {"name": preset, **PRESETS[preset]} if workers > 1 else "none"
    keys = {"machine": "dual-k80", "model": model, "dataset": dataset, "computation_s": computation_s}
    return simulated_s(Simulated.model_validate({**keys, "aggregator": aggregator, "workers": workers}))


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    for network in NETWORKS:
        alone = step_s("cntk", network, 1)
        print(f"\n{network[0]}: {alone * 1e3:.1f} ms on one GPU; on 2 and 4, milliseconds (speed)")
        steps = {preset: [step_s(preset, network, n) for n in (2, 4)] for preset in PRESETS}
        for preset, both in sorted(steps.items(), key=lambda item: item[1]):
            print(f"| `{preset}` | {' | '.join(f'{s * 1e3:.1f} ({alone / s:.2f})' for s in both)} |")


if __name__ == "__main__":
    main()
