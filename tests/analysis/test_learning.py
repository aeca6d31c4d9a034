"""What is made of trainings: targets, seeds, energy, the recipe in words, and the predicted time."""

import csv
import io
import math
from dataclasses import replace

import pandas as pd
import pytest

from scaling.analysis.groups import group_rows
from scaling.analysis.learning import epoch_table, over_seeds
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import table_csv
from scaling.analysis.summary_findings import unfinished_trainings
from scaling.report import write_report
from scaling.report.exports import FORMATS
from scaling.report.figures.base import FigureInput
from scaling.report.figures.parts import aggregator_looks
from scaling.report.figures.training import draw_training, target, target_bars, training_lines
from scaling.report.page_tables import CONVERGENCE_STATISTIC, page_tables
from scaling.report.text import recipe_text
from tests.made_studies import findings, row_with, rows_of, texts_of

STEPS = 10
BATCH = 64


class TestTarget:
    @pytest.mark.parametrize(("nats", "reached"), [
        (0.5, ("reached", 2)), (0.1, ("not reached in 3 epochs, at best 0.481 bits a byte", None)),
    ])  # fmt: skip
    def test_bits_per_byte_are_the_test_loss_and_have_to_fall_to_it(self, study, epochs, nats, reached):
        # The test loss of epoch k is 1 / k nats.
        cell = {"dataset": "text", "target_bits_per_byte": nats / math.log(2)}
        row = row_with(study, [[epochs([0.1, 0.2, 0.3])]], kind="convergence", **cell)
        assert (row["target_state"], row["epochs_to_target"]) == reached
        assert row["bits_per_byte"] == pytest.approx(1 / 3 / math.log(2))

    @pytest.mark.parametrize(("repeats", "target", "state", "reached"), [
        ([[0.5, 0.91, 0.89, 0.95]], 0.9, "reached", (2, 2.0, 2 * STEPS * BATCH)),
        ([[0.5, 0.88, 0.87]], 0.9, "not reached in 3 epochs, at best 88.00%", (None,) * 3),
        ([[0.95], [0.8]], 0.9, "not reached by 1 of 2 repeats in 1 epoch, at best 80.00%", (None,) * 3),
        ([[0.9]], None, None, (None,) * 3),
    ])  # fmt: skip
    def test_first_epoch_that_reaches_it_counts(self, study, epochs, repeats, target, state, reached):
        row = row_with(study, [[epochs(own)] for own in repeats], kind="convergence", target_accuracy=target)
        names = ("epochs_to_target", "seconds_to_target", "samples_to_target")
        assert (row["target_state"], tuple(row[name] for name in names)) == (state, reached)
        assert row["joules_to_target"] is None

    @pytest.mark.parametrize("is_known", [True, False])
    def test_joules_of_all_ranks_are_added_if_no_epoch_lacks_them(self, study, epochs, is_known):
        others = [{"epoch": n, "train_s": 1.0 * n, "train_j": 2.0 * n} for n in (1, 2)]
        own = epochs([0.5, 0.95], train_j=4.0)
        own[1]["train_j"] = 8.0 if is_known else None
        cell = {"target_accuracy": 0.9, "world_size": 2, "aggregator": "ring"}
        row = row_with(study, [[own, others]], kind="convergence", **cell)
        expected = (12.0, pytest.approx(12.0 / (2 * STEPS * BATCH))) if is_known else (None, None)
        assert (row["joules_to_target"], row["joules_per_sample"]) == expected


def add_seeds(study, epochs, *runs, **cell):
    for seed, accuracies in enumerate(runs):
        study.add([[epochs(accuracies)]], kind="convergence", seed=seed, **cell)


class TestSeeds:
    @pytest.mark.parametrize(("ends", "mean", "sd"), [([0.90, 0.92, 0.94], 0.92, 0.02), ([0.9], 0.9, None)])
    def test_spread_of_the_final_accuracy_is_the_same_in_every_row(self, study, epochs, ends, mean, sd):
        add_seeds(study, epochs, *([0.5, end] for end in ends))
        for row in rows_of(study):
            assert (row["num_seeds"], row["seed_mean_accuracy"]) == (len(ends), pytest.approx(mean))
            assert row["seed_sd_accuracy"] == (sd and pytest.approx(sd))

    def test_seeds_are_one_group_and_one_line_with_a_band(self, study, epochs):
        add_seeds(study, epochs, [0.5, 0.90], [0.5, 0.92], [0.5, 0.97])
        (group,) = group_rows(rows_of(study))
        (merged,) = over_seeds(group.rows)
        assert (merged["repeats"], merged["seed"]) == (3, None)
        assert merged["final_test_accuracy"] == pytest.approx(0.93)
        (line,) = training_lines(group, {cell.cell_id: cell for cell in read_cells(study.folder)})
        assert (line.test_accuracy, line.ranges["test_accuracy"]) == ([0.5, 0.92], ([0.5, 0.90], [0.5, 0.97]))

    def test_value_that_one_seed_lacks_is_missing_over_seeds(self, study, epochs):
        add_seeds(study, epochs, [0.5, 0.95], [0.5, 0.8], target_accuracy=0.9)
        (merged,) = over_seeds(group_rows(rows_of(study))[0].rows)
        assert (merged["seconds_to_target"], merged["target_state"]) == (None, "not reached by 1 of 2 seeds")

    def test_seconds_of_several_seeds_are_not_compared_with_one_seeds(self, study, epochs):
        add_seeds(study, epochs, [0.95, 0.96], [0.5, 0.96], [0.5, 0.96], target_accuracy=0.9)
        (group,) = group_rows(rows_of(study))
        assert not any("seeds reach" in one for one in page_tables(group, [group])[0].remarks)
        study.add([[epochs([0.95, 0.96])]], kind="convergence", target_accuracy=0.9, aggregator="ring")
        (group,) = group_rows(rows_of(study))
        told = page_tables(group, [group])[0].remarks[-1]
        assert told.startswith("none on 1 worker: its 3 seeds reach the target after 1 to 2 epochs")
        assert "its seconds are their median" in told
        assert [bar.name for bar in target_bars(group)] == ["none, 1 worker, 3 seeds", "ring, 1 worker"]

    def test_seconds_to_the_target_have_an_interval_over_seeds_or_say_they_are_of_one(self, study, epochs):
        for seed, epoch_s in enumerate((1.0, 2.0, 4.0)):
            study.add([[epochs([0.95, 0.96], epoch_s)]], kind="convergence", target_accuracy=0.9, seed=seed)
        for repeats, name in ((1, "ring"), (2, "tree")):
            again = [[epochs([0.95, 0.96])]] * repeats
            study.add(again, kind="convergence", target_accuracy=0.9, aggregator=name)
        (group,) = group_rows(rows_of(study))
        (table,) = page_tables(group, [group])
        shown = {row[0]: row[table.headings.index("s to target")] for row in table.rows}
        ratio = math.exp(4.302653 * math.log(2) / math.sqrt(3))
        assert shown["none"] == f"2.00 ({2 / ratio:.3g} to {2 * ratio:.3g})"
        assert (shown["ring"], shown["tree"]) == ("1.00, one training", "1.00, one seed")
        ends_s = {bar.name.split(",")[0]: bar.ends_s for bar in target_bars(group)}
        assert ends_s == {"none": pytest.approx((2 / ratio, 2 * ratio)), "ring": None, "tree": None}
        (drawn,) = target.draw(FigureInput(rows_of(study), {}))
        assert "black line: 95% interval over seeds" in drawn.caption

    def test_seeds_of_which_one_missed_have_no_median_of_seconds(self, study, epochs):
        add_seeds(study, epochs, [0.95, 0.96], [0.5, 0.96], [0.5, 0.6], target_accuracy=0.9)
        study.add([[epochs([0.95, 0.96])]], kind="convergence", target_accuracy=0.9, aggregator="ring")
        (group,) = group_rows(rows_of(study))
        told = page_tables(group, [group])[0].remarks[-1]
        assert told == "none on 1 worker: 2 of its 3 seeds reach the target after 1 to 2 epochs."

    def test_seeds_of_timed_cells_stay_apart(self, study):
        for seed in (0, 1):
            study.add_steps([[1.0]], seed=seed)
        assert len(group_rows(rows_of(study))) == 2


RECIPE = {
    "learning_rate": 0.1, "learning_rate_rule": "linear", "base_batch": 128, "warmup_epochs": 5.0,
    "schedule": "step", "milestones": [91, 136], "gamma": 0.1, "weight_decay": 1e-4,
    "augmentation": "standard", "batch_norm": "sync",
}  # fmt: skip


class TestRecipe:
    @pytest.mark.usefixtures("without_figures")
    def test_words_and_page_have_all_of_it(self, study, epochs):
        row = row_with(study, [[epochs([0.5, 0.9])]], kind="convergence", **RECIPE)
        assert row["milestones"] == "91 136"
        assert recipe_text(row) == (
            "learning rate 0.1 x global batch / 128 (linear), 5 epochs of warm-up, x 0.1 after epochs 91 "
            "and 136 (step); momentum 0.9, weight decay 0.0001; standard augmentation; batch normalisation, "
            "if any, over all workers"
        )
        page = write_report(study.folder).page.read_text()
        assert "Recipe: learning rate 0.1 x global batch / 128 (linear)" in page

    def test_folder_from_before_there_were_rules_was_fixed_and_constant(self, study):
        said = "learning rate 0.01 (fixed: the same for every batch), constant; momentum 0.9; no augmentation"
        assert recipe_text(row_with(study, ["planned"], kind="convergence")).startswith(said)

    @pytest.mark.parametrize(("key", "other"), [
        *(("learning_rate_rule", "sqrt"), ("schedule", "cosine")),
        *(("augmentation", "none"), ("batch_norm", "replica")),
    ])  # fmt: skip
    def test_trainings_of_different_recipes_are_not_compared(self, study, key, other):
        for recipe in (RECIPE, {**RECIPE, key: other}):
            study.add(["planned"], kind="convergence", **recipe)
        assert len(group_rows(rows_of(study))) == 2


def test_table_of_epochs_has_a_row_an_epoch_and_repeat(study, epochs):
    study.add([[epochs([0.5, 0.9])], [epochs([0.6, 0.8], train_j=3.0)]], kind="convergence", seed=4)
    rows = list(csv.DictReader(io.StringIO(table_csv(epoch_table(read_cells(study.folder))))))
    assert [(row["repeat"], row["epoch"]) for row in rows] == [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
    assert {row["seed"] for row in rows} == {"4"}
    assert [row["samples"] for row in rows[:2]] == [str(STEPS * BATCH), str(2 * STEPS * BATCH)]
    assert [row["train_j"] for row in rows] == ["", "", "3.0", "6.0"]
    assert [row["test_accuracy"] for row in rows] == ["0.5", "0.9", "0.6", "0.8"]


def test_folder_from_before_has_no_training_accuracy_and_is_read(study, epoch_line):
    lines = [{key: value for key, value in epoch_line(1, 1.0, 0.5, 0.9).items() if key != "test_loss"}]
    row = row_with(study, [[lines]], kind="convergence")
    assert (row["train_accuracy"], row["test_loss"], row["final_test_accuracy"]) == (None, None, 0.9)


class TestTrainingsThatAreNotOver:
    def begun(self, study, epoch_line, *, state="running", ranks=1, **cell):
        cell |= {"kind": "convergence", "aggregator": "ring", "world_size": ranks, "epochs": 9}
        cell_id = study.add([state], **cell)
        for rank in range(ranks):
            lines = [epoch_line(epoch, float(epoch), 1.0 / epoch, 0.5 + epoch / 20) for epoch in (1, 2, 3)]
            study.folder.sample_writer(cell_id, 0, rank)(lines[: 3 - rank])
        return cell_id

    @pytest.mark.parametrize("state", ["running", "planned"])
    def test_their_epochs_so_far_are_in_figure_csv_and_a_sentence_alone(self, study, epoch_line, state):
        study.add([[[epoch_line(1, 1.0, 2.0, 0.6)]]], kind="convergence", epochs=1)
        cell_id = self.begun(study, epoch_line, state=state, ranks=2)
        report = write_report(study.folder)
        row = next(row for row in report.as_dict()["cells"] if row["cell_id"] == cell_id)
        assert (row["state"], row["final_test_accuracy"], row["train_s"]) == (state, None, None)
        epochs = pd.read_csv(study.folder.path / "convergence.csv", dtype={"cell_id": str})
        assert epochs[epochs.cell_id == cell_id].epoch.tolist() == [1, 2], "what every rank has recorded"
        assert epochs.groupby("cell_id").state.first()[cell_id] == state
        assert set(epochs[epochs.cell_id != cell_id].state) == {"done"}
        page = report.page.read_text()
        assert "ring on 2 workers has not finished: after 2 of 9 epochs the training loss is 0.5 and" in page
        assert "not over yet" in page, "the legend of its line"

    def told(self, study):
        groups = group_rows(rows_of(study))
        return texts_of(unfinished_trainings(groups, {one.cell_id: one for one in read_cells(study.folder)}))

    def test_sentences_tell_seeds_and_repeats_apart(self, study, epoch_line):
        cell = {"kind": "convergence", "aggregator": "ring", "epochs": 9}
        ids = [study.add(["running", "running"], seed=seed, **cell) for seed in (0, 1)]
        for cell_id, repeat, loss in ((ids[0], 0, 0.25), (ids[1], 1, None)):
            study.folder.sample_writer(cell_id, repeat, 0)([epoch_line(1, 1.0, loss, 0.5)])
        assert [one.partition(": ")[2] for one in self.told(study)] == [
            "ring on 1 worker, seed 0 has not finished: after 1 of 9 epochs the training loss is 0.25 and "
            "the test accuracy 50.00%.",
            "ring on 1 worker, seed 1, repeat 1 has not finished: "
            "after 1 of 9 epochs the loss is not finite.",
        ]

    def test_sentences_tell_recipes_apart(self, study, epoch_line):
        for momentum in (0.0, 0.9):
            self.begun(study, epoch_line, momentum=momentum)
        first, second = self.told(study)
        assert ("momentum 0:" in first, "momentum 0.9:" in second) == (True, True)

    def test_ring_is_at_the_end_of_their_line(self, study, epoch_line):
        self.begun(study, epoch_line)
        (group,) = group_rows(rows_of(study))
        lines = training_lines(group, {cell.cell_id: cell for cell in read_cells(study.folder)})
        for is_over, expected in ((False, [(3, 1.0 / 3), (3, 0.65)]), (True, [])):
            own = [replace(line, is_over=is_over) for line in lines]
            axes = draw_training("", own, aggregator_looks(["ring"]), "epochs").axes
            drawn = [one for each in axes for one in each.lines if one.get_alpha() != 0]
            rings = [one for one in drawn if one.get_markerfacecolor() == "white"]
            assert [tuple(one.get_xydata()[0]) for one in rings] == expected

    def test_they_are_not_exported(self, study, epoch_line):
        done = [epoch_line(1, 1.0, 2.0, 0.6)]
        cell_id = study.add([[done], "running"], kind="convergence", epochs=9)
        before = list(FORMATS["csv"](study.folder, read_cells(study.folder)))
        assert before
        study.folder.sample_writer(cell_id, 1, 0)(done)
        assert list(FORMATS["csv"](study.folder, read_cells(study.folder))) == before

    @pytest.mark.parametrize(("damaged", "left"), [
        (lambda text: text[:-9], [[1, 2]]), (lambda text: f"no sample\n{text}", []),
    ])  # fmt: skip
    def test_what_is_written_in_part_or_unreadable_is_left_out(self, study, epoch_line, damaged, left):
        cell_id = self.begun(study, epoch_line)
        (file,) = study.folder.path.glob(f"runs/{cell_id}/0/rank0.jsonl")
        file.write_text(damaged(file.read_text()))
        (cell,) = read_cells(study.folder)
        assert [training.epochs.tolist() for training in cell.begun] == left
        study.add(["planned"], kind="convergence")
        assert write_report(study.folder).page.exists()

    def test_line_of_seeds_of_which_one_is_done_is_that_ones(self, study, epoch_line):
        done = [epoch_line(1, 1.0, 2.0, 0.6)]
        study.add([[done]], kind="convergence", aggregator="ring", seed=1, epochs=9, target_accuracy=0.9)
        self.begun(study, epoch_line, target_accuracy=0.9)
        cells = {cell.cell_id: cell for cell in read_cells(study.folder)}
        (group,) = group_rows(rows_of(study))
        (line,) = training_lines(group, cells)
        assert (line.epochs, line.is_over) == ([1], True)


def train(study, epochs, accuracies=(0.5, 0.95), **cell):
    study.add([[epochs(accuracies)]], kind="convergence", target_accuracy=0.9, **cell)


def trained_and_timed(study, epochs, ends=(0.95,), **timed):
    for seed, end in enumerate(ends):
        train(study, epochs, [0.5, end, 0.99], seed=seed)
    study.add_steps([[0.1 / 1.1] * 3, [0.10] * 3, [0.11] * 3], **timed)
    return trainings(study)


def trainings(study):
    return [row for row in rows_of(study) if row["kind"] == "convergence"]


def remarks(study):
    group = next(one for one in group_rows(rows_of(study)) if one.kind == "convergence")
    return page_tables(group, [group])[0].remarks


def test_it_is_iteration_time_times_iterations_and_of_one_training_has_no_interval(study, epochs):
    (row,) = trained_and_timed(study, epochs)
    assert row["predicted_s_to_target"] == pytest.approx(0.1 * 2 * STEPS)
    assert row["predicted_s_to_target_low"] is row["predicted_s_to_target_high"] is None
    assert "With one training it has none" in CONVERGENCE_STATISTIC
    assert row["seconds_to_target"] == 2.0
    text = " ".join(findings(study.folder))
    assert "estimated as step time x steps: none on 1 worker 2.00, measured 2.00" in text


@pytest.mark.parametrize("num_launches", [1, 2])
def test_the_noise_floor_widens_what_one_launch_predicts(study, epochs, num_launches):
    study.add([[epochs([0.5, 0.95])]] * 2, kind="convergence", target_accuracy=0.9)
    study.add_steps([[0.1] * 100] * num_launches)
    study.add_steps([[0.12] * 100] * num_launches, aa_replicate=1)
    (row,) = trainings(study)
    predicted = row["predicted_s_to_target"]
    factor = 1.2 if num_launches == 1 else 1.0
    assert row["predicted_s_to_target_low"] == pytest.approx(predicted / factor, rel=1e-3)
    assert row["predicted_s_to_target_high"] == pytest.approx(predicted * factor, rel=1e-3)


def test_several_seeds_add_the_uncertainty_of_the_iterations(study, epochs):
    rows = trained_and_timed(study, epochs, ends=(0.95, 0.95, 0.5))  # epochs 2, 2, 3
    (timed,) = [row for row in rows_of(study) if row["kind"] == "iteration"]
    of_time = math.log(timed["iteration_s_high"] / timed["iteration_s_low"]) / 2
    of_count = 4.302653 * math.log(1.5) / math.sqrt(3) / math.sqrt(3)  # t of two degrees, 95%
    for row in rows:
        assert row["predicted_s_to_target"] == pytest.approx(2.0)
        factor = math.exp(math.hypot(of_time, of_count))
        assert row["predicted_s_to_target_low"] == pytest.approx(2.0 / factor, rel=1e-4)
        assert row["predicted_s_to_target_high"] == pytest.approx(2.0 * factor, rel=1e-4)


@pytest.mark.parametrize(("other", "is_predicted"), [
    *(({name: value}, False) for name, value in (
        ("aggregator", "ring"), ("batch", 32), ("threads", 2), ("batch_norm", "sync"),
        ("memory_format", "channels_last"), ("augmentation", "standard"))),
    ({"seed": 7, "learning_rate": 1.0, "momentum": 0.0}, True),
], ids=str)  # fmt: skip
def test_only_a_timed_cell_of_the_same_step_predicts(study, epochs, other, is_predicted):
    (row,) = trained_and_timed(study, epochs, **other)
    assert (row["predicted_s_to_target"] is not None) == is_predicted


@pytest.mark.parametrize("is_planned", [False, True])
def test_table_says_what_a_prediction_needs_where_there_is_none_or_it_is_planned(study, epochs, is_planned):
    train(study, epochs)
    train(study, epochs, [0.5, 0.8], aggregator="ring")
    if is_planned:
        study.add(["planned"])
    said = "Estimated: no combination, as no cell of kind: iteration here was measured with the same step"
    assert remarks(study)[0].startswith(said)


@pytest.mark.parametrize(("augmentation", "is_said"), [("standard", True), ("none", False)])
def test_a_prediction_says_that_it_leaves_augmentation_out(study, epochs, augmentation, is_said):
    for seed in (0, 1):
        train(study, epochs, seed=seed, augmentation=augmentation)
    study.add_steps([[0.1] * 3] * 3)
    for row in (*trainings(study), *over_seeds(trainings(study))):
        assert row["predicted_s_to_target"] is not None
        assert row["prediction_lacks"] == ("augmentation" if is_said else None)
    said = any(one.startswith("Estimated: without augmentation") for one in remarks(study))
    in_words = "step time x steps, without augmentation:" in " ".join(findings(study.folder))
    assert (said, in_words) == (is_said, is_said)


def test_an_augmented_training_is_predicted_from_augmented_steps_without_a_caution(study, epochs):
    train(study, epochs, augmentation="standard")
    study.add_steps([[0.3] * 9] * 3)  # more iterations, which else is preferred
    study.add_steps([[0.1] * 3] * 3, augmentation="standard")
    (row,) = trainings(study)
    assert row["predicted_s_to_target"] == pytest.approx(0.1 * 2 * STEPS)
    assert row["prediction_lacks"] is None
    assert not any("augmentation" in one for one in remarks(study))
    said = " ".join(findings(study.folder))
    assert "estimated as step time x steps: none on 1 worker 2.00" in said
    assert "without augmentation" not in said


def test_a_plain_training_is_predicted_from_plain_steps_alone(study, epochs):
    for name, said in (("none", {}), ("ring", {"augmentation": "none"})):  # folders of before; now
        train(study, epochs, aggregator=name, **said)
        study.add_steps([[0.3] * 9] * 3, aggregator=name, augmentation="standard")
        study.add_steps([[0.1] * 3] * 3, aggregator=name)
    found = trainings(study)
    assert [row["predicted_s_to_target"] for row in found] == [pytest.approx(2.0)] * 2
    assert [row["prediction_lacks"] for row in found] == [None, None]


def test_the_caution_names_those_of_a_table_whose_prediction_lacks_augmentation(study, epochs):
    for name, timed in (("ring", {"augmentation": "standard"}), ("tree", {})):
        train(study, epochs, aggregator=name, augmentation="standard")
        study.add_steps([[0.1] * 3] * 3, aggregator=name, **timed)
    expected = {"ring": None, "tree": "augmentation"}
    assert {row["aggregator"]: row["prediction_lacks"] for row in trainings(study)} == expected
    (caution,) = [one for one in remarks(study) if "augmentation" in one]
    assert caution.startswith("Estimated: without augmentation for tree on 1 worker, which")
    said = next(one for one in findings(study.folder) if "estimated as" in one)
    assert "step time x steps: ring on 1 worker 2.00, measured" in said
    assert "tree on 1 worker 2.00, without augmentation, measured 2.00" in said


def test_table_names_the_one_that_is_not_predicted(study, epochs):
    train(study, epochs, aggregator="ring")
    trained_and_timed(study, epochs)
    assert remarks(study)[0].startswith("Estimated: not ring on 1 worker, as")
