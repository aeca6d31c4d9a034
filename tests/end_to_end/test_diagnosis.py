"""A rank that is slow is named from the samples of real processes."""

import json
import os
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.processes
def test_a_slow_rank_and_a_slow_tenth_step_are_named_in_real_processes(scaling):
    network = {"name": "diagnosis_plants:planted", "rank": 1, "width": 32, "depth": 6}
    planted = [
        {"plant": "slow_forward", "milliseconds": 150.0},
        {"plant": "slow_backward_late", "milliseconds": 150.0},
        {"plant": "periodic", "milliseconds": 200.0},
    ]
    study = {
        **{"name": "planted", "scaling": "strong", "world_sizes": [2], "step": "overlapped", "threads": 1},
        **{"warmup": 2, "iterations": 60, "precision_goal": None, "noise_pair": False},
        **{"profiled_iterations": 12, "aggregators": ["all_reduce"], "bucket_mb": [0.008]},
        "workloads": [
            {"model": {**network, **one}, "dataset": "synthetic", "global_batch": 64} for one in planted
        ],
    }
    scaling.write(study)
    scaling.environment["PYTHONPATH"] += f"{os.pathsep}{BENCHMARKS}"
    done = scaling.run_here()
    assert done.returncode == 0, done.stderr
    told = json.loads(scaling.here("explain", str(scaling.out), "--json").stdout)
    recorded = {run.cell_id: run.cell["model_parameters"]["plant"] for run in scaling.results().runs()}
    said = {recorded[one["cell_id"]]: one["findings"] for one in told}
    for plant, rule, phase in (
        ("slow_forward", "slow_rank", "forward"),
        ("slow_backward_late", "slow_rank", "backward"),
        ("periodic", "periodic", "forward"),
    ):
        (found,) = [one for one in said[plant] if one["rule"] == rule]
        assert (found["values"]["rank"], found["values"]["phase"]) == (1, phase)
        assert found["is_limit"]
