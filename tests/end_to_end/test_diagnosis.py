"""A rank that is slow is named from the samples of real processes."""

import json
import os
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.processes
def test_a_slow_rank_and_a_slow_tenth_step_are_named_in_real_processes(scaling):
    network = {"name": "diagnosis_plants:planted", "rank": 1, "width": 32, "depth": 6}
    planted = {"slow_forward": 150.0, "slow_backward_late": 150.0, "periodic": 200.0}
    models = [{**network, "plant": plant, "milliseconds": ms} for plant, ms in planted.items()]
    study = {
        **{"name": "planted", "scaling": "strong", "world_sizes": [2], "step": "overlapped", "threads": 1},
        **{"warmup": 2, "iterations": 60, "precision_goal": None, "noise_pair": False},
        **{"profiled_iterations": 12, "aggregators": ["all_reduce"], "bucket_mb": [0.008]},
        "workloads": [{"model": one, "dataset": "synthetic", "global_batch": 64} for one in models],
    }
    scaling.write(study)
    scaling.environment["PYTHONPATH"] += f"{os.pathsep}{BENCHMARKS}"
    done = scaling.run_here()
    assert done.returncode == 0, done.stderr
    told = json.loads(scaling.here("explain", str(scaling.out), "--json").stdout)
    recorded = {run.cell_id: run.cell["model_parameters"]["plant"] for run in scaling.results().runs()}
    said = {recorded[one["cell_id"]]: one["findings"] for one in told}
    rules, phases = ("slow_rank", "slow_rank", "periodic"), ("forward", "backward", "forward")
    for plant, rule, phase in zip(planted, rules, phases, strict=True):
        (found,) = [one for one in said[plant] if one["rule"] == rule]
        assert (found["values"]["rank"], found["values"]["phase"]) == (1, phase)
        assert found["is_limit"]
