"""`scaling tune` with real workers on the CPU: both studies, the answer, and what a second time takes."""

from collections import Counter

import pytest

from scaling.store import ResultsFolder

pytestmark = pytest.mark.processes

STUDY = {
    **{"name": "small", "device": "cpu", "world_sizes": [2], "scaling": "strong", "step": "overlapped"},
    "workloads": [{"model": "mlp", "dataset": "digits", "global_batch": 64}],
    **{"aggregators": ["all_reduce"], "iterations": 10, "warmup": 2, "profiled_iterations": 3},
}


def tune(scaling):
    return scaling.here("tune", str(scaling.study), "--out", str(scaling.out), "--count", "2")


def test_buckets_are_probed_measured_and_judged_and_a_second_time_only_judged(scaling):
    scaling.write(STUDY)
    first = tune(scaling)
    assert first.returncode == 0, first.stderr
    probe, buckets = (ResultsFolder(scaling.out / name) for name in ("probe", "buckets"))
    fine = next(run for run in probe.runs() if run.cell["bucket_mb"])
    assert len(fine.summary["bucket_bytes"]) == 4
    assert sum(fine.summary["bucket_bytes"]) == 4 * fine.summary["num_parameters"]
    runs = buckets.runs()
    assert {run.state for run in runs} == {"done"}
    sizes = {tuple(run.cell["bucket_sizes_mb"] or ()) for run in runs}
    assert {(), (1.0, 25.0)} < sizes
    launches = Counter(tuple(run.cell["bucket_sizes_mb"] or ()) for run in runs)
    assert (sorted(launches.values()), launches[1.0, 25.0]) == ([2] * (len(sizes) - 2) + [4, 4], 4)
    assert "ms a step" in first.stdout
    assert "Without exchange the step takes" in first.stdout
    said = "By the model no buckets of the 4 gradients end their exchange before"
    assert said in " ".join(first.stdout.split())

    assert (tune(scaling).stdout, len(buckets.launch_times())) == (first.stdout, 4)
