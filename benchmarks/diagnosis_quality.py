"""Does `scaling explain` name first what was planted, and nothing where nothing was?

    python benchmarks/diagnosis_quality.py --seed 1 --out FOLDER            # two workers on a CPU
    python benchmarks/diagnosis_quality.py --seed 1 --out FOLDER --device cuda

Twelve causes (`diagnosis_plants`) and twelve healthy cells run in one study, in random order; rank, place and
size are drawn by the seed. `cells.csv` in FOLDER has what was planted in each cell and what was said first. A
cause counts as found if its rule is the first that is said, with the planted rank, phase, bucket and period.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from diagnosis_plants import PERIOD

from scaling.store import ResultsFolder

PLACE = Path(__file__).parent
HEALTHY = 12
NOT_AVOIDABLE = ("computation", "update")
NOT_PLANTED = "busy_host"
"""What other processes on the machine do is found, and is no plant: it is left out of the judgement."""


@dataclass(frozen=True)
class Scale:
    """Sizes of networks and losses, so that a healthy step takes 10 to 20 ms on that device.

    Attributes:
        network: width, depth and passes (`diagnosis_plants.planted`).
        batch: samples over all ranks.
        loss_ms: what a slow rank loses in a step, least and most.
        periodic_ms: what it loses in every tenth.
        bucket_mb: cuts the network into three.
        tiny, small, large: width, depth, batch of the cells with tiny buckets, of the launch-bound batch, and
            of the exposed exchange.
        plain_batch: a batch with which the small cell's network is not launch-bound.
        healthy_passes: of healthy cells: so many that an exchange takes far less than 10% of a step.
    """

    network: tuple[int, int, int]
    batch: int
    loss_ms: tuple[float, float]
    periodic_ms: tuple[float, float]
    bucket_mb: float
    tiny: tuple[int, int, int]
    small: tuple[int, int, int]
    plain_batch: int
    large: tuple[int, int, int]
    healthy_passes: int


SCALES = {
    "cpu": Scale(
        network=(128, 10, 3),
        batch=1024,
        loss_ms=(5.0, 10.0),
        periodic_ms=(50.0, 80.0),
        bucket_mb=0.25,
        tiny=(64, 40, 64),
        small=(32, 80, 2),
        plain_batch=512,
        large=(512, 6, 16),
        healthy_passes=12,
    ),
    "cuda": Scale(
        network=(2048, 10, 1),
        batch=4096,
        loss_ms=(3.0, 6.0),
        periodic_ms=(30.0, 50.0),
        bucket_mb=70.0,
        tiny=(256, 60, 512),
        small=(64, 40, 8),
        plain_batch=65536,
        large=(4096, 8, 128),
        healthy_passes=1,
    ),
}


@dataclass(frozen=True)
class Planted:
    """A part of the study, and what should be said first of its smallest batch.

    Attributes:
        parameters: of the network.
        part: further keys of the part.
        rules: any of them; () for a healthy cell.
        values: of the finding.
    """

    parameters: Mapping[str, Any]
    part: Mapping[str, Any]
    batches: Sequence[int]
    rules: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)


def planted_cells(seed: int, device: str, world_size: int) -> list[Planted]:
    """What the seed draws: twelve causes, then the healthy cells."""
    draw, scale = random.Random(seed), SCALES[device]
    network = dict(zip(("width", "depth", "passes"), scale.network, strict=True))
    overlapped = {"step": "overlapped", "bucket_mb": [scale.bucket_mb]}

    def of_rank(plant: str, **more: Any) -> dict[str, Any]:
        return {"plant": plant, "rank": draw.randrange(world_size), **network, **more}

    def slow(plant: str, part: Mapping[str, Any], rule: str, **values: Any) -> Planted:
        bounds = scale.periodic_ms if plant == "periodic" else scale.loss_ms
        parameters = of_rank(plant, milliseconds=round(draw.uniform(*bounds), 2))
        return Planted(parameters, part, [scale.batch], (rule,), {"rank": parameters["rank"], **values})

    def sized(plant: str, sizes: tuple[int, int, int]) -> tuple[dict[str, Any], list[int]]:
        width, depth, batch = sizes
        return {"plant": plant, "width": width, "depth": depth}, [batch]

    def gpu(plant: str, rule: str) -> Planted:
        parameters = of_rank(plant, clock_mhz=float(draw.randrange(600, 1400, 15)))
        return Planted(parameters, {}, [scale.batch], (rule,), {"rank": parameters["rank"]})

    tiny, small, large = sized("tiny", scale.tiny), sized("small", scale.small), sized("large", scale.large)
    # On a GPU the host's cores matter to a step that waits for launches.
    crowded = small if device == "cuda" else (network, [scale.batch])
    eager_or_not = draw.choice([{}, overlapped])
    return [
        slow("slow_forward", overlapped, "slow_rank", phase="forward"),
        slow("slow_backward_early", overlapped, "slow_rank", phase="backward", bucket=0),
        slow("slow_backward_late", overlapped, "slow_rank", phase="backward", bucket="last"),
        slow("periodic", eager_or_not, "periodic", phase="forward", period=PERIOD),
        slow("slow_input", {}, "slow_rank", phase="input"),
        _copies(device, network, scale, draw),
        Planted(tiny[0], {"step": "overlapped", "bucket_mb": [0.001]}, tiny[1], ("tiny_buckets",)),
        Planted(small[0], {}, [*small[1], scale.plain_batch], ("launches", "small_batch")),
        Planted(large[0], {}, large[1], ("exposed_communication",)),
        Planted({**crowded[0], "plant": "oversubscribed"}, {}, crowded[1], ("oversubscribed",)),
        gpu("other_process", "shared_gpu"),
        gpu("throttled", "throttled_gpu"),
        *(_healthy(number, scale, draw, overlapped) for number in range(HEALTHY)),
    ]


def _copies(device: str, network: Mapping[str, Any], scale: Scale, draw: random.Random) -> Planted:
    if device == "cuda":
        part = {"input_placement": ["pageable"]}
        return Planted({"plant": "pageable"}, part, [2 * scale.batch], ("feeding",))
    parameters = {"plant": "copies_on_cpu", "milliseconds": round(draw.uniform(*scale.loss_ms), 2), **network}
    return Planted(parameters, {}, [scale.batch], ("feeding",))


def _healthy(number: int, scale: Scale, draw: random.Random, overlapped: Mapping[str, Any]) -> Planted:
    width, depth, _ = scale.network
    parameters = {"plant": "healthy", "number": number, "width": width, "passes": scale.healthy_passes}
    parameters["depth"] = depth + draw.randrange(-2, 3)
    batch = int(scale.batch * draw.choice([1.0, 1.25, 1.5])) // 2 * 2
    return Planted(parameters, draw.choice([{}, {"aggregators": ["ring"]}, overlapped]), [batch])


def study_of(cells: Sequence[Planted], world_size: int, repeats: int) -> dict[str, Any]:
    """The study file: a part a cell."""
    parts = [
        {
            "step": "eager",
            "aggregators": ["all_reduce"],
            **one.part,
            "workloads": [
                {
                    "model": {"name": f"diagnosis_plants:{_maker(one)}", **one.parameters},
                    "dataset": "synthetic",
                    "global_batch": batch,
                }
                for batch in one.batches
            ],
        }
        for one in cells
    ]
    extent = {"warmup": 5, "iterations": 60, "precision_goal": None, "max_seconds": None, "noise_pair": False}
    return {
        "name": "diagnosis-quality",
        "scaling": "strong",
        "world_sizes": [world_size],
        "threads": 1,
        "repeats": repeats,
        **extent,
        "parts": parts,
    }


def _maker(planted: Planted) -> str:
    return "with_wide_inputs" if planted.parameters["plant"] == "pageable" else "planted"


def judged(folder: Path, cells: Sequence[Planted]) -> pd.DataFrame:
    """A row a planted cell: what was planted, what was said first, and whether that is right."""
    told = json.loads(_scaling("explain", str(folder), "--json"))
    findings = {one["cell_id"]: one["findings"] for one in told}
    recorded = {run.cell_id: run.cell for run in ResultsFolder(folder).runs()}
    rows = []
    for planted in cells:
        (cell_id,) = [
            cell_id
            for cell_id, cell in recorded.items()
            if cell["global_batch"] == min(planted.batches)
            and all(cell["model_parameters"].get(key) == value for key, value in planted.parameters.items())
        ]
        limits = [one for one in findings[cell_id] if one["is_limit"]]
        disturbed = [one for one in limits if one["rule"] == NOT_PLANTED]
        first = next((one for one in limits if one not in disturbed), None)
        rows.append(
            {
                "plant": planted.parameters["plant"],
                **{name: planted.parameters.get(name) for name in ("rank", "milliseconds", "clock_mhz")},
                "step": recorded[cell_id]["step"],
                "said_first": first["rule"] if first else "",
                "sentence": first["sentence"] if first else "",
                "is_right": _is_right(planted, first),
                "disturbed_ratio": disturbed[0]["share"] if disturbed else 0.0,
            }
        )
    return pd.DataFrame(rows)


def _is_right(planted: Planted, first: Mapping[str, Any] | None) -> bool:
    if not planted.rules:
        return first is None or first["rule"] in NOT_AVOIDABLE
    if first is None or first["rule"] not in planted.rules:
        return False
    values = first["values"]
    wanted = {**planted.values}
    if wanted.get("bucket") == "last":
        wanted["bucket"] = values["num_buckets"] - 1
    return all(values[name] == value for name, value in wanted.items())


def _scaling(*arguments: str) -> str:
    paths = os.pathsep.join([str(PLACE), str(PLACE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "scaling", *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def main() -> None:
    """Runs it and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="draws ranks, places and sizes")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--device", choices=list(SCALES), default="cpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="launches")
    arguments = parser.parse_args()
    cells = planted_cells(arguments.seed, arguments.device, arguments.world_size)
    arguments.out.mkdir(parents=True, exist_ok=True)
    study, folder = arguments.out / "study.yaml", arguments.out / "results"
    asked = study_of(cells, arguments.world_size, arguments.repeats)
    study.write_text(yaml.safe_dump(asked, sort_keys=False), encoding="utf-8")
    if not folder.exists():
        _scaling("run", str(study), "--out", str(folder))
    table = judged(folder, cells)
    table.to_csv(arguments.out / "cells.csv", index=False)
    with pd.option_context("display.width", 200, "display.max_colwidth", 110, "display.max_rows", None):
        print(table.drop(columns=["clock_mhz"]).to_string(index=False))
    healthy = table.plant == "healthy"
    print(f"{table[~healthy].is_right.sum()} of {(~healthy).sum()} causes named first")
    print(f"{(~table[healthy].is_right).sum()} of {healthy.sum()} healthy cells with a cause")
    if disturbed := int((table.disturbed_ratio > 0).sum()):
        share = table.disturbed_ratio.max()
        print(f"other processes took the cores in {disturbed} cells, for up to {share:.0%} of the time")


if __name__ == "__main__":
    main()
