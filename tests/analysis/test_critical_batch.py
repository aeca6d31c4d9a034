"""Steps to a target by batch, and seconds by workers, from trainings whose curve is known."""

import importlib
import itertools
import json
import math
import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import typer

from scaling.analysis.columns import to_rows
from scaling.analysis.critical_batch import learning_plans
from scaling.analysis.samples import TrainingSamples, read_cells
from scaling.analysis.steps_by_batch import BatchSteps, fit_steps, rate_rule, steps_to_target
from scaling.analysis.summary import build_table
from scaling.errors import ScalingError
from scaling.report import write_report
from scaling.report.figures.base import FigureInput
from scaling.report.figures.parts import SETTINGS
from scaling.report.figures.training import target_by_workers
from scaling.report.formats import number
from scaling.report.text import text_of
from tests.made import loaded

LEAST, CRITICAL, SAMPLES = 200.0, 500.0, 16384
MEASURED = Path(__file__).parents[2] / "benchmarks/results/critical-batch"
BENCHMARK = loaded(MEASURED.parents[1] / "steps_to_target.py")
BATCHES = (32, 128, 512, 2048)


def true_steps(batch):
    return LEAST * (1 + CRITICAL / batch)


@pytest.fixture
def trained(study, epoch_line):
    """trained(batch, ...): a training whose accuracy is a straight line that passes 90% at `steps`.

    Of several batches: one with each factor of the true steps, of a seed each.
    """

    def add(batch, steps=None, seed=0, epochs=None, factors=(1.0,), **cell):
        if isinstance(batch, tuple):
            for one, (number, factor) in itertools.product(batch, enumerate(factors)):
                add(one, factor * true_steps(one), number, epochs, **cell)
            return None
        each = SAMPLES // batch
        steps = steps or true_steps(batch)
        epochs = epochs or math.ceil(steps / each) + 1
        lines = [
            epoch_line(number, 1.0 * number, 0.1, min(0.9 * number * each / steps, 1.0))
            | {"step_losses": [0.1] * each, "samples": number * each * batch}
            for number in range(1, epochs + 1)
        ]
        settings = {"aggregator": "all_reduce", "learning_rate": batch / 1000, "target_accuracy": 0.9, **cell}
        ranks = [lines] * cell.get("world_size", 1)
        return study.add([ranks], kind="convergence", batch=batch, seed=seed, epochs=epochs, **settings)

    return add


def read(study):
    """The rows of the folder as it is, and its cells by id."""
    cells = read_cells(study.folder)
    return to_rows(build_table("by-hand", cells)), {cell.cell_id: cell for cell in cells}


@pytest.fixture
def plans(study):
    return lambda **more: learning_plans(*read(study), **more)


def time_steps(study, sizes=(1, 2, 4), batches=BATCHES, overhead_s=0.0005, **cell):
    for size in sizes:
        for batch in batches:
            step_s = 2e-5 * batch / size + (overhead_s if size > 1 else 0.0) + 0.0002
            name = {"aggregator": "all_reduce" if size > 1 else "none", **cell}
            runs = [[step_s * (1 + 0.01 * launch)] * 6 for launch in range(3)]
            study.add_steps(runs, world_size=size, batch=batch, **name)


def texts(plan):
    return " ".join(text_of(finding) for finding in plan.findings())


def made(batch, steps, evaluation=1e-4, rates=(0.1,), rate=0.1):
    return BatchSteps(batch, rate, rates, tuple(steps), evaluation)


def test_known_curve_is_found_from_trainings_that_differ_in_batch_and_rate(trained, plans):
    trained(BATCHES, factors=(0.97, 1.0, 1.03))
    (plan,) = plans()
    assert [one.batch for one in plan.trained] == list(BATCHES)
    assert plan.trained[1].steps == pytest.approx([f * true_steps(128) for f in (0.97, 1.0, 1.03)])
    critical, least, unseen = plan.fit.critical, plan.fit.least, plan.fit.steps(256)
    assert critical.value == pytest.approx(CRITICAL, rel=0.02)
    assert least.value == pytest.approx(LEAST, rel=0.02)
    assert unseen.value == pytest.approx(true_steps(256), rel=0.02)
    for estimate, truth in ((critical, CRITICAL), (least, LEAST), (unseen, true_steps(256))):
        assert estimate.low < truth < estimate.high < 3 * truth
    assert "no step of this training was timed" in texts(plan)


def samples_of(accuracies, steps):
    unknown = np.full(len(steps), np.nan)
    numbers = np.arange(1, len(steps) + 1)
    known = np.array(accuracies), unknown, np.array(steps)
    return TrainingSamples(0, numbers, unknown, unknown, *known, *[unknown] * 3)


@pytest.mark.parametrize(("accuracies", "steps", "expected"), [
    ([0.5, 0.8, 1.0], [100.0] * 3, 250),
    ([0.95, 0.97], [100.0] * 2, 50),
    ([np.nan, 0.95], [100.0] * 2, 150),
    ([0.5, 0.8], [100.0] * 2, None),
    ([0.95], [0.0], None),  # a folder that lost its steps
])  # fmt: skip
def test_steps_are_interpolated_within_the_epoch_and_half_of_the_first_also_in_bits(
    accuracies, steps, expected
):
    found = steps_to_target(samples_of(accuracies, steps), {"target_accuracy": 0.9})
    variance = expected and pytest.approx((100 / expected) ** 2 / 12)
    assert found == (None if expected is None else (pytest.approx(expected), variance))
    losses = samples_of([np.nan] * 2, [100.0] * 2)
    object.__setattr__(losses, "test_loss", np.array([3.0, 1.0]) * math.log(2))
    assert steps_to_target(losses, {"target_bits_per_byte": 2.0})[0] == pytest.approx(150)


def test_more_seeds_do_not_make_the_uncertainty_of_evaluation_smaller():
    def width(evaluation, seeds):
        few = [made(batch, [true_steps(batch)] * seeds, evaluation) for batch in BATCHES]
        critical = fit_steps(few).critical
        return math.log(critical.high / critical.low)

    assert width(0.01, 9) == pytest.approx(width(0.01, 2))
    assert width(0.01, 9) > 2 * width(0.001, 9)


def test_batches_that_are_off_the_curve_widen_the_intervals():
    def fit(*factors):
        steps = [one * true_steps(batch) for batch, one in zip(BATCHES, factors, strict=True)]
        return fit_steps([made(batch, [one] * 3) for batch, one in zip(BATCHES, steps, strict=True)])

    on, off = fit(1, 1, 1, 1), fit(1, 1.3, 0.75, 1)
    assert on.misfit < 1e-9 < 0.01 < off.misfit
    assert off.steps(256).high / off.steps(256).low > 3 * on.steps(256).high / on.steps(256).low
    assert off.critical.high > on.critical.high
    # A trained batch is where its own trainings put it, also beside another.
    own = off.steps(128)
    assert own.value == pytest.approx(1.3 * true_steps(128), rel=0.01)
    assert own.high / own.low < 1.2 < off.steps(256).high / off.steps(256).low
    ratio = off.log_ratio(128, 512)
    assert ratio.value == pytest.approx(math.log(0.75 / 1.3 * true_steps(512) / true_steps(128)), abs=0.01)
    assert ratio.low < ratio.value < ratio.high < 0


def test_one_seed_on_several_numbers_of_workers_is_one_training(trained, plans):
    for size, factor in ((1, 0.98), (2, 1.02)):
        trained(BATCHES, factors=(factor,), world_size=size)
    (plan,) = plans()
    assert plan.trained[0].steps == pytest.approx([true_steps(32)])


def test_batches_without_a_plateau_leave_the_critical_batch_open_which_is_no_number_then(trained, plans):
    falling = fit_steps([made(batch, [1e5 / batch] * 3) for batch in BATCHES])
    assert (falling.critical.high, falling.least.low) == (math.inf, 0.0)
    assert falling.critical.low > 2048
    flat = fit_steps([made(batch, [100.0] * 3) for batch in BATCHES])
    assert flat.critical.low == 0.0
    assert flat.critical.high < 32
    for batch in BATCHES[:3]:
        trained(batch, 204_800 / batch)
    (plan,) = plans()
    assert (plan.fit.critical.high, "S_min at most" in texts(plan)) == (math.inf, True)
    assert ("B_crit at least" in texts(plan), "Beyond a batch" in texts(plan)) == (True, False)


def test_the_best_rate_counts_and_one_at_which_a_seed_misses_the_target_does_not(trained, plans):
    trained(BATCHES)
    for factor, rate in ((3.0, 5.0), (0.5, 7.0)):
        trained(BATCHES, factors=(factor,), learning_rate=rate)
    trained(32, seed=1, epochs=1, learning_rate=7.0)
    (plan,) = plans()
    assert [one.rate for one in plan.trained] == [0.032, 7.0, 7.0, 7.0]
    assert plan.trained[0].rates == (0.032, 5.0, 7.0)
    assert "At batch 32, 128, 512, 2048 the best rate is at an end of its grid" in texts(plan)


def test_a_batch_at_which_every_rate_misses_or_failed_is_left_out_with_a_word(trained, plans, study):
    trained(BATCHES)
    trained(256, epochs=2)
    trained(1024)
    failed = {"learning_rate": 1.024, "target_accuracy": 0.9, "aggregator": "all_reduce"}
    study.add(["failed: out of memory"], kind="convergence", batch=1024, seed=1, epochs=2, **failed)
    (plan,) = plans()
    assert (plan.missed, len(plan.trained)) == ([256, 1024], 4)
    said = texts(plan)
    assert "At batch 256, 1024 each rate has a training that failed or missed the target" in said
    assert "Trainings at batch 1024 failed or have not ended" in said


def test_steps_with_the_training_s_augmentation_go_before_others(trained, plans, study):
    trained(BATCHES, augmentation="standard")
    for step_s, augmentation in ((0.01, "none"), (0.02, "standard")):
        study.add_steps([[step_s] * 6], world_size=2, batch=128, aggregator="ring", augmentation=augmentation)
    (plan,) = plans()
    (setting,) = plan.settings
    assert setting.row["iteration_s"] == pytest.approx(0.02)


def test_two_batches_are_too_few_and_what_to_train_is_said(trained, plans):
    trained(BATCHES[:2])
    said = texts(plans()[0])
    assert "takes trainings at 3 batches that reach the target, there are 2" in said
    assert "four times apart (global_batch), each with three learning rates" in said
    assert fit_steps([made(32, [1.0]), made(64, [1.0])]) is None


RULES = {0.0: "fixed", 0.5: "sqrt", 1.0: "linear", 0.25: None, 2.0: None}


@pytest.mark.parametrize(("power", "rule"), RULES.items())
def test_the_rule_that_the_best_rates_follow_is_marked_but_not_of_ends_of_their_grids(power, rule):
    best = {batch: 0.01 * (batch / 32) ** power for batch in BATCHES}
    grids = {batch: (0.7 * rate, rate, 1.5 * rate) for batch, rate in best.items()}
    found = [made(batch, [1.0], rates=grids[batch], rate=rate) for batch, rate in best.items()]
    assert rate_rule(found) == rule
    for rates, rate in (((0.1, 0.2), 0.2), ((0.1,), 0.1)):
        assert rate_rule([made(batch, [1.0], rates=rates, rate=rate) for batch in BATCHES]) is None


def test_a_rule_with_a_base_batch_is_the_rate_at_the_batch(trained, plans):
    trained(BATCHES, learning_rate=0.1, learning_rate_rule="sqrt", base_batch=128)
    (plan,) = plans()
    assert [one.rate for one in plan.trained] == pytest.approx([0.05, 0.1, 0.2, 0.4])


def test_seconds_are_the_time_of_a_step_times_the_steps_and_the_fastest_is_named(trained, plans, study):
    trained(BATCHES, factors=(0.99, 1.0, 1.01))
    time_steps(study, batches=(*BATCHES, 8192))
    (plan,) = plans()
    for one in plan.settings:
        batch = one.row["global_batch"]
        assert one.seconds.value == pytest.approx(one.row["iteration_s"] * true_steps(batch), rel=0.02)
        assert one.seconds.low < one.seconds.value < one.seconds.high
        assert one.is_extrapolated == (batch == 8192)
    fastest = {size: one.row["global_batch"] for size, one in plan.by_workers.items()}
    truth = {
        size: min((*BATCHES, 8192), key=lambda batch: (
            2e-5 * batch / size + 0.0002 + 0.0005 * (size > 1)) * true_steps(batch))
        for size in (1, 2, 4)
    }  # fmt: skip
    assert fastest == truth
    times = plan.times_faster(plan.by_workers[4], plan.by_workers[1])
    assert times.low < times.value < times.high
    assert times.value == pytest.approx(plan.by_workers[1].seconds.value / plan.by_workers[4].seconds.value)
    assert plan.knee in plan.front
    said = texts(plan)
    assert f"fastest is 4 workers at batch {fastest[4]}" in said
    assert "times as fast as 1 worker at batch" in said
    assert "Knee: " in said
    enough = 10 * plan.fit.critical.high
    assert f"Beyond a batch of {number(enough, 2)} a larger one saves less than 10%" in said


def test_extrapolated_batches_have_wider_intervals_and_say_so(trained, plans, study):
    trained(BATCHES[:3], factors=(0.97, 1.0, 1.03))
    time_steps(study, sizes=(1, 8), batches=(256, 65536), overhead_s=-1e-4)
    (plan,) = plans()
    widths = {one.row["global_batch"]: one.seconds.high / one.seconds.low for one in plan.settings}
    assert widths[65536] > 1.2 * widths[256]
    assert {one.row["global_batch"] for one in plan.settings if one.is_extrapolated} == {65536}


def test_a_lossy_exchange_has_its_own_steps_or_none(trained, plans, study):
    trained(BATCHES)
    lossy = {"aggregator": "one_bit", "lossy": True}
    for seed, steps in enumerate((1900.0, 2000.0, 2100.0)):
        trained(128, steps, seed, world_size=2, **lossy)
    time_steps(study)
    time_steps(study, sizes=(2, 4), batches=(128, 512), **lossy)
    (plan,) = plans()
    (own,) = [one for one in plan.settings if one.is_own]
    assert (own.row["world_size"], own.row["global_batch"]) == (2, 128)
    assert own.steps.value == pytest.approx(2000, rel=0.01)
    assert own.steps.low < 1900 < 2100 < own.steps.high
    assert len(plan.not_trained) == 3
    assert all(one.row["aggregator"] != "one_bit" or one is own for one in plan.settings)
    assert plan.fit.steps(128).value == pytest.approx(true_steps(128), rel=0.02)
    assert "Left out, lossy without trainings of their own" in texts(plan)


def test_two_workloads_are_two_plans_and_only_the_timed_one_has_seconds(trained, plans, study):
    trained(BATCHES)
    trained(BATCHES, factors=(2.0,), optimizer="adamw", learning_rate=0.001)
    time_steps(study)
    first, second = sorted(plans(), key=lambda plan: plan.fit.least.value)
    assert (len(first.settings), len(second.settings)) == (12, 0)
    assert second.given["further"] == ["adamw", *second.given["further"][1:]]
    assert first.fit.least.value == pytest.approx(LEAST, rel=0.05)
    assert second.fit.least.value == pytest.approx(2 * LEAST, rel=0.05)


def test_control_arms_transfers_and_settings_above_the_memory_are_no_choice(trained, plans, study):
    trained(BATCHES)
    time_steps(study, sizes=(2,), aggregator="none")
    time_steps(study, sizes=(2,), aggregator="ring")
    study.add(["planned"], kind="transfer", model=None, dataset=None, aggregator=None)
    (plan,) = plans()
    assert {one.row["aggregator"] for one in plan.settings} == {"ring"}
    (limited,) = plans(max_memory_bytes=10**9)
    assert limited.settings == []
    assert "none is left of the steps that were timed here" in texts(limited)
    assert "memory above the most or not measured: 4 timed cells." in texts(limited)


def test_least_hours_and_energy_to_the_target_are_objectives_where_energies_are_known(trained, plans, study):
    def said(quantity):
        return " ".join(text_of(finding) for finding in plan.findings(quantity))

    trained(BATCHES)
    time_steps(study, sizes=(1, 2))
    (plan,) = plans()
    assert "no timed step has a known energy. Fastest is 2 workers" in said("joules")
    for one in plan.settings:
        one.row["joules_per_sample"] = 2.0 / one.row["world_size"]
    least = plan.least("joules")
    assert (least.row["world_size"], least.row["global_batch"]) == (2, 32)
    assert least.joules == pytest.approx(32 * least.steps.value)
    says = f"least energy: 2 workers at batch 32 and rate 0.032 with all_reduce, {number(least.joules)} J. F"
    assert says in said("joules")
    assert plan.least("hours") is plan.front[0]
    assert "fewest worker hours: 1 worker at batch" in said("hours")


def test_predicted_steps_of_other_numbers_of_workers_are_settings_that_say_so(trained, plans, study):
    trained(BATCHES)
    time_steps(study, sizes=(1, 2), overhead_s=0.0)
    cells = [cell.cell for cell in read_cells(study.folder) if cell.cell["kind"] == "iteration"]
    step = {"iteration_s": 0.001, "iteration_s_low": 0.0005, "iteration_s_high": 0.002}
    predicted = [{**cell, **step, "world_size": size} for cell in cells for size in (1, 8)]
    predicted += [{**predicted[-1], "aggregator": "ring"}, {**cells[-1], "world_size": 8, "reason": "none"}]
    (plan,) = plans(predicted=predicted)
    assert len(plan.settings) == 3 * len(BATCHES)
    best = plan.by_workers[8]
    assert (best.row["global_batch"], best.seconds.value) == (2048, pytest.approx(0.25, rel=0.05))
    assert best.seconds.high > 2 * best.seconds.value
    assert f"8 workers at batch 2,048 with {best.values()['exchange']}, step predicted" in texts(plan)
    assert {one.row["world_size"] for one in plan.settings if one.values()["is_predicted"]} == {8}


def test_a_noise_scale_that_contradicts_the_fit_is_said(trained, plans):
    trained(BATCHES)
    (plan,) = plans()
    for one in plan.trained:
        one.rows[0].update(noise_scale=2e4, noise_scale_low=1e4, noise_scale_high=3e4)
    assert "10,000 to 30,000, disagrees with the fitted critical batch" in texts(plan)
    for one in plan.trained:
        one.rows[0].update(noise_scale=600.0, noise_scale_low=400.0, noise_scale_high=None)
    assert "400 or more, does not contradict the fit" in texts(plan)
    for one in plan.trained:  # of Adam, whose own form counts
        one.rows[0].update(preconditioned_noise_scale_low=5e4, preconditioned_noise_scale_high=6e4)
    assert "preconditioned noise scale of these trainings, 50,000 to 60,000, disagrees" in texts(plan)


def test_figure_has_a_line_a_batch_and_names_the_knee(trained, study):
    trained(BATCHES)

    def drawn_of():
        with matplotlib.rc_context(SETTINGS):
            return list(target_by_workers.draw(FigureInput(*read(study))))

    time_steps(study, sizes=(1,))
    assert drawn_of() == [], "of one number of workers there is nothing to draw"
    time_steps(study, sizes=(2, 4))
    (drawn,) = drawn_of()
    (axes,) = drawn.figure.axes
    lines = [line for line in axes.lines if list(line.get_xdata()) == [1, 2, 4]]
    assert (len(lines), drawn.title) == (len(BATCHES), "mlp on synthetic, to 90.0%")
    assert "the knee, " in drawn.caption
    assert {"knee", *(f"{batch:,}" for batch in BATCHES)} == {text.get_text() for text in axes.texts}


def test_command_gives_the_answer_in_words_and_json_and_3_without_one(trained, study, capsys, monkeypatch):
    from scaling.cli.advice import recommend

    def call(**more):
        try:
            recommend(study.folder.path, **{"objective": "time_to_target", **more})
        except typer.Exit as error:
            return error.exit_code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    with pytest.raises(ScalingError, match="no training with a target"):
        call()
    trained(BATCHES[:2])
    code, out = call()
    assert (code, "there are 2" in out) == (3, True)
    trained(BATCHES[2:])
    time_steps(study)
    code, out = call()
    assert (code, "fastest is 4 workers" in " ".join(out.split())) == (0, True)
    (found,) = json.loads(call(as_json=True)[1])
    assert found["critical_batch"]["critical"]["value"] == pytest.approx(CRITICAL, rel=0.05)
    assert (len(found["settings"]), found["seconds_by_workers"]["best"]["world_size"]) == (12, 4)
    cell = next(cell.cell for cell in read_cells(study.folder) if cell.cell["world_size"] == 2)
    step = dict.fromkeys(("iteration_s", "iteration_s_low", "iteration_s_high"), 1e-6)
    asked = []
    monkeypatch.setattr(
        importlib.import_module("scaling.cli.predict"),
        "steps_on",
        lambda *a: asked.append(a) or [{**cell, **step, "world_size": 8}],
    )
    assert "fastest is 8 workers" in " ".join(call(topology="hgx-h200", world_sizes="8")[1].split())
    assert asked == [(study.folder.path, "hgx-h200", "8")]
    for wrong in ({"world_sizes": ""}, {"topology": ""}, {"objective": "time"}):
        with pytest.raises(ScalingError, match="belong together, and to --objective time-to-target"):
            call(**{"topology": "hgx-h200", "world_sizes": "8", **wrong})


@pytest.mark.usefixtures("without_figures")
def test_study_of_a_target_begins_with_the_seconds_to_it_and_without_a_curve_with_its_trainings(
    trained, study
):
    def said():
        return write_report(study.folder).answer

    study.folder.write_text("study.yaml", "name: by-hand\nparts: []\nquestion: time_to_target\n")
    trained(BATCHES[:1])
    time_steps(study, batches=BATCHES[:1])
    assert said()[0].startswith("mlp to an accuracy of 90.0%: on 1 worker (no other number")
    trained(BATCHES[1:])
    time_steps(study, batches=BATCHES[1:])
    assert re.match(
        r"mlp, to 90.0%: fastest is 4 workers at batch \d+ and rate \d.*, [\d.]+ times",
        said()[0],
    )
    assert [line for line in said() if line.startswith("Aggregator")] == []


def committed():
    """Batch -> its trainings at the best rate, of those that were measured for the page of results."""
    table = pd.read_csv(MEASURED / "epochs.csv").rename(columns={"batch": "global_batch"})
    return BENCHMARK.batches(table.assign(target_accuracy=0.97, target_bits_per_byte=None, test_loss=np.nan))


def test_committed_prediction_and_table_of_steps_are_those_of_the_samples():
    found, predicted = committed(), json.loads((MEASURED / "prediction.json").read_text())
    fit = fit_steps([found[batch] for batch in BATCHES])
    known = {"least_steps": fit.least, "critical_batch": fit.critical}
    for name, one in {**predicted["steps_of_one_training"]}.items():
        known[name], predicted[name] = fit.steps(int(name)), one
    for name, estimate in known.items():
        assert estimate._asdict() == pytest.approx(predicted[name], rel=0.01), name
    readme = (MEASURED.parent / "README.md").read_text()
    text = readme.partition("\n## critical-batch\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")][1:]
    assert [int(row[0].split()[0].strip(",").replace(",", "")) for row in rows] == [*BATCHES, 256, 1024]
    for row, batch in zip(rows, [*BATCHES, 256, 1024], strict=True):
        one = found[batch]
        assert row[1].strip() == f"{one.rate:g}"
        assert row[2].strip() == ", ".join(f"{steps:,.0f}" for steps in one.steps)
        if "blind" in row[0]:
            guess = fit_steps([found[known] for known in BATCHES]).steps(batch)
            error = abs(guess.value / math.exp(one.logs.mean()) - 1)
            assert row[4].strip() == f"{error:.0%}"
            assert all(guess.low < steps < guess.high for steps in one.steps)


def test_folds_choose_by_prediction_and_are_judged_by_what_was_measured(trained, study, monkeypatch, capsys):
    """Batch 2,048 is 40% off the curve. Each epoch of a training takes a second, whatever its steps."""
    folder = study.folder.path
    trained(BATCHES[:3], factors=(0.99, 1.0, 1.01))
    trained(BATCHES[3:], factors=(1.386, 1.4, 1.414))
    epochs = BENCHMARK.gathered([folder])
    trained(512, 1.02 * true_steps(512), world_size=4, workers_per_gpu=2)
    time_steps(study, sizes=(1, 2))
    time_steps(study, sizes=(2,), aggregator="no_op", overhead_s=0.0)  # exchanges nothing
    timed, trainings = BENCHMARK.read_times(folder)
    steps = {batch: true_steps(batch) * (1.4 if batch == 2048 else 1.0) for batch in BATCHES}
    seconds = {
        (size, batch): (2e-5 * batch / size + 0.0005 * (size > 1) + 0.0002) * 1.01 * steps[batch]
        for size, batch in itertools.product((1, 2), BATCHES)
    }
    of_epochs = {(1, batch): steps[batch] * batch / SAMPLES for batch in BATCHES}
    folded = BENCHMARK.folds(epochs, timed, trainings)
    assert [*folded.left_out] == [(batch,) for batch in BATCHES], "without two of four there is no fit"
    for fold in folded.itertuples():
        for measured, choice, best, over in ((seconds, *fold[3:6]), (of_epochs, *fold[6:9])):
            assert best == min(measured, key=measured.get)
            assert over == pytest.approx(measured[choice] / measured[best], rel=0.02)
    judged = BENCHMARK.against_trainings(epochs, timed, trainings)
    shared = judged[judged.world_size == 4]
    assert ([*shared.over_alone.round(3)], [*shared.inside]) == ([1.03], [np.nan])
    monkeypatch.setattr("sys.argv", ["", "FILE", "--times", str(folder)])
    monkeypatch.setattr(pd, "read_csv", lambda _: epochs)
    BENCHMARK.main()
    said = capsys.readouterr().out
    assert f"1 left out, over_best: {(folded.over_best <= 1.1).sum()} of 4 within 10%" in said
    assert "4 workers, 2 a GPU: steps of 1 trainings differ from one worker's by 3.0%" in said
