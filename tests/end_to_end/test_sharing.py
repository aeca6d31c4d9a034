"""Four workers on one GPU, or on two, learn what one worker learns: `scaling run` on real GPUs."""

import json
import os

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.processes]

EXACT = ("all_reduce", "ring", "tree", "host_serial", "host_parallel", "schedule")
LOSSY = ("one_bit", "one_bit_flat", "power_sgd", "top_k", "ef_sign", "qsgd", "fp16", "bf16")
DIGITS = {"model": "mlp", "dataset": "digits", "global_batch": 64}
PLAIN = {"learning_rate": 0.05, "momentum": 0.0, "epochs": 3, "device": "cuda", "scaling": "strong"}
FIRST_STEPS = 8


def visible(num_gpus):
    """CUDA_VISIBLE_DEVICES with the first of those that this process sees."""
    own = ",".join(map(str, range(torch.cuda.device_count())))
    return ",".join((os.environ.get("CUDA_VISIBLE_DEVICES") or own).split(",")[:num_gpus])


def run(scaling, num_gpus, parts, **keys):
    scaling.write({"name": "shared", "kind": "convergence", **PLAIN, **keys, "parts": parts})
    done = scaling.run(CUDA_VISIBLE_DEVICES=visible(num_gpus))
    logs = "\n".join(path.read_text()[-3000:] for path in scaling.out.glob("launches/*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    return {
        (record.cell["aggregator"], record.cell["step"], record.cell["world_size"]): record
        for record in scaling.results().runs()
    }


def losses(scaling, record):
    """Of every step of the training, over the global batch."""
    first = scaling.results().samples(record.cell_id, record.repeat)[0]
    return [loss for line in first for loss in line["step_losses"]]


@pytest.mark.parametrize("num_gpus", [1, pytest.param(2, marks=pytest.mark.gpu(2))])
class TestFourWorkers:
    def test_exact_aggregators_take_the_steps_of_one_worker_and_lossy_ones_learn(self, scaling, num_gpus):
        common = {"workloads": [DIGITS], "workers_per_gpu": 4}
        overlapped = {"aggregators": ["all_reduce", "ring", "one_bit"], "step": "overlapped"}
        parts = [
            {**common, "aggregators": ["all_reduce"], "world_sizes": [1]},
            {**common, "aggregators": [*EXACT, *LOSSY], "world_sizes": [4]},
            {**common, **overlapped, "world_sizes": [4]},
        ]
        runs = run(scaling, num_gpus, parts)
        assert {record.state for record in runs.values()} == {"done"}
        alone = losses(scaling, runs["all_reduce", "eager", 1])
        for (name, step, size), record in runs.items():
            if size == 1:
                assert record.cell["workers_per_gpu"] is None
                assert "workers_per_gpu" not in record.launch
                continue
            assert record.launch["workers_per_gpu"] == record.cell["workers_per_gpu"] == 4 // num_gpus
            assert any(note.startswith(f"4 workers on {num_gpus} GPU") for note in record.notes)
            own = losses(scaling, record)
            if name in EXACT:
                assert own[:FIRST_STEPS] == pytest.approx(alone[:FIRST_STEPS], rel=1e-5), (name, step)
            assert own[0] == pytest.approx(alone[0], rel=1e-5), (name, step)
            assert own[-1] < own[0] - 0.15, (name, step)
        shared = [row for row in scaling.rows() if row["world_size"] == "4"]
        assert len(shared) == len(EXACT) + len(LOSSY) + 3
        for row in shared:
            assert row["final_test_accuracy"]
            assert (row["train_s"], row["seconds_to_target"], row["joules_per_sample"]) == ("", "", "")
            assert row["warnings"].startswith("shared GPUs: 4 workers on")
        launches = [json.loads(path.read_text()) for path in (scaling.out / "launches").glob("[0-9]*.json")]
        (launch,) = [one for one in launches if one["world_size"] == 4]
        assert launch["settings"]["workers_per_gpu"] in (2, 4)

    def test_statistics_of_the_global_batch_are_those_of_one_worker(self, scaling, num_gpus):
        images = {"name": "synthetic", "input_shape": [3, 32, 32], "num_classes": 10}
        network = {"model": "resnet-56", "dataset": images, "global_batch": 32}
        part = {"aggregators": ["all_reduce"], "world_sizes": [1, 4], "workloads": [network]}
        part |= {"workers_per_gpu": 4, "batch_norm": "sync", "step": ["eager", "overlapped"]}
        runs = run(scaling, num_gpus, [part], epochs=1)
        assert {record.state for record in runs.values()} == {"done"}
        alone = losses(scaling, runs["all_reduce", "eager", 1])
        for step in ("eager", "overlapped"):
            shared = losses(scaling, runs["all_reduce", step, 4])
            assert shared[0] == pytest.approx(alone[0], rel=1e-4)  # those of each share are 1e-2 off
            assert shared[1] == pytest.approx(alone[1], rel=1e-2)


def test_captured_steps_and_times_of_shared_gpus_are_refused_before_anything_runs(scaling):
    common = {"name": "x", **PLAIN, "workloads": [DIGITS], "aggregators": ["ring"], "world_sizes": [4]}
    for keys, said in (
        ({"kind": "convergence", "step": "captured"}, "step: captured needs a GPU a worker"),
        ({"kind": "iteration"}, "times are not those of as many GPUs"),
    ):
        study = {**common, **keys, "workers_per_gpu": 4}
        if keys["kind"] == "iteration":
            del study["epochs"]
        scaling.write(study)
        done = scaling.run(CUDA_VISIBLE_DEVICES=visible(1))
        assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True)
