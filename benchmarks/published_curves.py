"""Published scaling curves against what is predicted from their smallest size:

    python benchmarks/published_curves.py --out benchmarks/results/published-curves.csv

Each curve of published_curves/curves.yaml has its source, its machine, and what is known of it: one GPU, or
the fewest that were published. Nothing else is fitted. Tokens are taken as samples: only ratios matter.
Prints a row a curve for docs/background/prediction.md and writes a row a published value.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from scaling.prediction.measured import MeasuredCell
from scaling.prediction.predict import Prediction
from scaling.prediction.rows import largest_terms
from scaling.prediction.sources import Sources
from scaling.prediction.what_if import what_if
from scaling.study.predicting import strategy_of
from scaling.study.throughput_table import equal_tensors
from topologies.model import Topology
from topologies.schema import load, shipped

HERE = Path(__file__).parent / "published_curves"
VALUE_SD = 0.01
"""Of a published throughput. An assumption."""

COLUMNS = (
    "curve",
    "machine",
    "gpus",
    "known_gpus",
    "published",
    "predicted",
    "low",
    "high",
    "error_ratio",
    "inside",
)


def cell_of(curve: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """The curve's step on so many GPUs, as a cell."""
    name = curve.get("aggregator", "all_reduce") if world_size > 1 else "none"
    sharded = name == "fsdp2"
    return {
        "kind": "iteration", "model_label": curve["name"], "dataset_label": "published", "aggregator": name,
        "aggregator_label": name, "aggregator_parameters": {}, "exchanges": world_size > 1,
        "step": "overlapped",
        "device": "cuda", "scaling": "weak", "world_size": world_size, "local_batch": curve["batch"],
        "global_batch": curve["batch"] * world_size, "threads": 1, "peer_access": None,
        "input_placement": "device",
        "bucket_mb": None if sharded else 25.0, "first_bucket_mb": None if sharded else 1.0,
    }  # fmt: skip


def machine_of(curve: Mapping[str, Any], largest: int) -> Topology:
    """Its cluster, with nodes for so many GPUs."""
    name = curve["machine"]
    topology = what_if(load(name if name in shipped() else HERE / f"{name}.yaml"), curve.get("what_if", []))
    nodes = -(-largest // len(topology.machine.of_kind("gpu")))
    return what_if(topology, [f"nodes={nodes}"])


def predictions_of(curve: Mapping[str, Any], sizes: list[int]) -> Iterator[Prediction]:
    """Of each size, from what is known of the curve."""
    topology, shapes = (
        machine_of(curve, max(sizes)),
        f"{curve.get('dtype', 'float32')}: {equal_tensors(curve['parameters'])}",
    )
    known = [
        MeasuredCell(
            cell_of(curve, gpus),
            curve["batch"] * gpus / (rate * (gpus if curve["of"] == "gpu" else 1)),
            VALUE_SD,
            tensor_shapes=shapes,
        )
        for gpus, rate in curve["known"].items()
    ]
    predictor, _ = Sources(known, [], topology).predictor(topology, strategy_of)
    for size in sizes:
        yield predictor.predict(strategy_of(cell_of(curve, size), shapes))


def compared(curve: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row a published size."""
    sizes = sorted(curve["published"])
    for size, prediction in zip(sizes, predictions_of(curve, sizes), strict=True):
        assert prediction.iteration is not None
        low_s, high_s = prediction.iteration.interval
        samples = curve["batch"] * (1 if curve["of"] == "gpu" else size)
        published, predicted = curve["published"][size], samples / prediction.iteration.value
        low, high = samples / high_s, samples / low_s
        yield {
            "curve": curve["name"], "machine": curve["machine"], "gpus": size,
            "known_gpus": min(curve["known"]), "published": published, "predicted": f"{predicted:.5g}",
            "low": f"{low:.5g}", "high": f"{high:.5g}", "error_ratio": f"{predicted / published - 1:.4f}",
            "inside": low <= published <= high, "terms": largest_terms(prediction),
            "step_s": prediction.iteration.value,
        }  # fmt: skip


def main() -> None:
    """Compares all curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    document = yaml.safe_load((HERE / "curves.yaml").read_text())
    rows = []
    for curve in document["curves"]:
        of_curve = list(compared(curve))
        rows += of_curve
        last = of_curve[-1]
        errors = ", ".join(f"{float(row['error_ratio']):+.1%}" for row in of_curve)
        parts = ", ".join(f"{name} {seconds / last['step_s']:.0%}" for name, seconds in last["terms"])
        sizes = ", ".join(str(row["gpus"]) for row in of_curve)
        inside = f"{sum(row['inside'] for row in of_curve)} of {len(of_curve)}"
        name, machine, known = curve["name"], curve["machine"], last["known_gpus"]
        print(f"| {name} | {machine} | {known} | {sizes} | {errors} | {inside} | {parts} |")
    off = [abs(float(row["error_ratio"])) for row in rows]
    inside = sum(row["inside"] for row in rows)
    print(f"{len(rows)} values: median error {median(off):.1%}, largest {max(off):.1%}, {inside} inside")
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
