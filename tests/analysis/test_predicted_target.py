"""When a training reaches its target, predicted from timed steps."""

import math

import pytest

from scaling.analysis.groups import group_rows
from scaling.analysis.learning import over_seeds
from scaling.report.page_tables import CONVERGENCE_STATISTIC, page_tables
from tests.made_studies import findings, rows_of

STEPS = 10


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


def test_it_is_iteration_time_times_iterations_and_has_no_interval_as_the_number_of_steps_may_vary(
    study, epochs
):
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
def test_a_prediction_says_that_it_leaves_augmentation_out_and_so_of_seeds(
    study, epochs, augmentation, is_said
):
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
