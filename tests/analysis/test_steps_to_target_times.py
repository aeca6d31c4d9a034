"""The validation of seconds to a target, on a folder whose steps, trainings and best setting are known."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.test_critical_batch import BATCHES, SAMPLES, true_steps
from tests.made import loaded

BENCHMARKS, RATE = Path(__file__).parents[2] / "benchmarks", 0.1
NAMES = {"model": "mlp", "optimizer": "sgd", "target_accuracy": 0.9, "target_bits_per_byte": np.nan}


def step_s(workers, batch):
    return 2e-5 * batch / workers + 0.0002 + 0.0005 * (workers > 1)


def epochs_of(batch, factor=1.0):
    """Steps and accuracy at the ends of a training's epochs, past 90% at a factor of the true steps."""
    each = SAMPLES // batch
    ends = each * np.arange(1, 2 + int(np.ceil(factor * true_steps(batch) / each)))
    return ends, np.minimum(0.9 * ends / (factor * true_steps(batch)), 1.0)


@pytest.fixture
def measured(study, epoch_line, tmp_path):
    """The CSV of three seeds each, batch 2,048 off the curve by 40%, and the folder."""
    rows = []
    for batch in BATCHES:
        for seed, factor in enumerate((0.99, 1.0, 1.01)):
            found = zip(*epochs_of(batch, factor * (1.4 if batch == 2048 else 1.0)), strict=True)
            for number, (steps, accuracy) in enumerate(found, 1):
                own = {"global_batch": batch, "learning_rate": RATE, "seed": seed, "epoch": number}
                rows.append({**NAMES, **own, "steps": steps, "test_accuracy": accuracy, "test_loss": 1.0})
        for workers in (1, 2):
            study.add_steps(
                [[step_s(workers, batch)] * 6] * 2, world_size=workers, batch=batch, aggregator="ring"
            )
    study.add_steps([[1e-6] * 6] * 2, world_size=2, batch=512, aggregator="none")  # exchanges nothing
    for workers, shared, factor in ((1, None, 1.0), (2, None, 1.0), (4, 2, 1.02)):
        lines = [
            epoch_line(number, step_s(workers, 512) * steps, 0.1, accuracy) | {"step_losses": [0.1] * 32}
            for number, (steps, accuracy) in enumerate(zip(*epochs_of(512, factor), strict=True), 1)
        ]
        own = {"aggregator": "ring", "learning_rate": RATE, "target_accuracy": 0.9, "epochs": len(lines)}
        study.add(
            [[lines] * workers],
            kind="convergence",
            world_size=workers,
            batch=512,
            workers_per_gpu=shared,
            **own,
        )
    path = tmp_path / "epochs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path, study.folder.path


def test_folds_choose_by_prediction_and_are_judged_by_what_was_measured(measured, monkeypatch, capsys):
    benchmark, (path, folder) = loaded(BENCHMARKS / "steps_to_target.py"), measured
    timed, trainings = benchmark.read_times(folder)
    folded = benchmark.folds(pd.read_csv(path), timed, trainings)
    assert {len(pair) for pair in folded.left_out} == {1}, "without two of four batches there is no fit"
    seconds = {
        (workers, batch): step_s(workers, batch) * true_steps(batch) * (1.4 if batch == 2048 else 1.0)
        for workers in (1, 2)
        for batch in BATCHES
    }
    best = min(seconds, key=seconds.get)
    for fold in folded.itertuples():
        assert fold.best == best
        assert fold.over_best == pytest.approx(seconds[fold.choice] / seconds[best], rel=0.01)
        assert (fold.trained_choice, fold.trained_over_best) == ((2, 512), 1.0)
    trained = benchmark.against_trainings(pd.read_csv(path), timed, trainings)
    assert trained.seconds[:2].tolist() == pytest.approx([seconds[1, 512], seconds[2, 512]], rel=0.01)
    assert trained.over_alone.tolist() == pytest.approx([1, 1, 1.02], rel=1e-3)
    assert trained.inside.notna().tolist() == [True, True, False], "seconds of workers that share are none"
    monkeypatch.setattr(sys, "argv", ["steps_to_target.py", str(path), "--times", str(folder)])
    benchmark.main()
    said = capsys.readouterr().out
    near = sum(fold.over_best <= 1.1 for fold in folded.itertuples())
    assert f"1 left out, over_best: {near} of 4 within 10%" in said
    assert "4 workers, 2 a GPU: steps of 1 trainings differ from one worker's by 2.0%" in said
