"""When a training reaches its target, predicted from timed steps."""

import math

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.learning import over_seeds
from scaling.analysis.summary import summary_table
from scaling.report.page_tables import CONVERGENCE_STATISTIC, page_tables
from tests.made_studies import findings, rows_of

STEPS = 10


class TestPrediction:
    def trained_and_timed(self, study, epochs, ends=(0.95,), **timed):
        for seed, end in enumerate(ends):
            study.add([[epochs([0.5, end, 0.99])]], kind="convergence", target_accuracy=0.9, seed=seed)
        study.add_steps([[0.1 / 1.1] * 3, [0.10] * 3, [0.11] * 3], **timed)
        return [row for row in rows_of(study) if row["kind"] == "convergence"]

    def test_it_is_iteration_time_times_iterations(self, study, epochs):
        (row,) = self.trained_and_timed(study, epochs)
        assert row["predicted_s_to_target"] == pytest.approx(0.1 * 2 * STEPS)
        assert row["seconds_to_target"] == 2.0

    def test_one_training_has_no_interval_as_its_number_of_steps_may_vary(self, study, epochs):
        (row,) = self.trained_and_timed(study, epochs)
        assert row["predicted_s_to_target"] is not None
        assert row["predicted_s_to_target_low"] is row["predicted_s_to_target_high"] is None
        assert "With one training it has none" in CONVERGENCE_STATISTIC

    @pytest.mark.parametrize("num_launches", [1, 2])
    def test_the_noise_floor_widens_what_one_launch_predicts(self, study, epochs, num_launches):
        steps = [[0.1] * 100] * num_launches
        study.add([[epochs([0.5, 0.95])]] * 2, kind="convergence", target_accuracy=0.9)
        study.add_steps(steps)
        study.add_steps([[0.12] * 100] * num_launches, aa_replicate=1)
        (row,) = [row for row in rows_of(study) if row["kind"] == "convergence"]
        predicted = row["predicted_s_to_target"]
        factor = 1.2 if num_launches == 1 else 1.0
        assert row["predicted_s_to_target_low"] == pytest.approx(predicted / factor, rel=1e-3)
        assert row["predicted_s_to_target_high"] == pytest.approx(predicted * factor, rel=1e-3)

    def test_several_seeds_add_the_uncertainty_of_the_iterations(self, study, epochs):
        rows = self.trained_and_timed(study, epochs, ends=(0.95, 0.95, 0.5))  # epochs 2, 2, 3
        (timed,) = [row for row in rows_of(study) if row["kind"] == "iteration"]
        of_time = math.log(timed["iteration_s_high"] / timed["iteration_s_low"]) / 2
        of_count = 4.302653 * math.log(1.5) / math.sqrt(3) / math.sqrt(3)  # t of two degrees, 95%
        for row in rows:
            assert row["predicted_s_to_target"] == pytest.approx(2.0)
            factor = math.exp(math.hypot(of_time, of_count))
            assert row["predicted_s_to_target_low"] == pytest.approx(2.0 / factor, rel=1e-4)
            assert row["predicted_s_to_target_high"] == pytest.approx(2.0 * factor, rel=1e-4)

    @pytest.mark.parametrize("other", [
        {"aggregator": "ring"}, {"batch": 32}, {"threads": 2}, {"batch_norm": "sync"},
        {"memory_format": "channels_last"}, {"augmentation": "standard"},
    ])  # fmt: skip
    def test_timed_cell_of_another_step_predicts_nothing(self, study, epochs, other):
        (row,) = self.trained_and_timed(study, epochs, **other)
        assert row["predicted_s_to_target"] is None

    def test_another_rate_and_seed_take_the_same_time(self, study, epochs):
        (row,) = self.trained_and_timed(study, epochs, seed=7, learning_rate=1.0, momentum=0.0)
        assert row["predicted_s_to_target"] is not None

    def test_table_says_what_a_prediction_needs_where_there_is_none(self, study, epochs):
        study.add([[epochs([0.5, 0.95])]], kind="convergence", target_accuracy=0.9)
        study.add([[epochs([0.5, 0.8])]], kind="convergence", target_accuracy=0.9, aggregator="ring")
        (group,) = group_rows(rows_of(study))
        (table,) = page_tables(group, [group])
        assert table.remarks[0].startswith("Estimated: no combination, as no cell of kind: iteration here")

    def test_a_timed_cell_that_is_planned_does_not_count_as_measured(self, study, epochs):
        study.add([[epochs([0.5, 0.95])]], kind="convergence", target_accuracy=0.9)
        study.add(["planned"])
        group = next(one for one in group_rows(rows_of(study)) if one.kind == "convergence")
        assert "iteration here was measured with the same step" in page_tables(group, [group])[0].remarks[0]

    @pytest.mark.parametrize(("augmentation", "is_said"), [("standard", True), ("none", False)])
    def test_a_prediction_says_that_it_leaves_augmentation_out(self, study, epochs, augmentation, is_said):
        study.add([[epochs([0.5, 0.95])]], kind="convergence", target_accuracy=0.9, augmentation=augmentation)
        study.add_steps([[0.1] * 3] * 3)
        group = next(one for one in group_rows(rows_of(study)) if one.kind == "convergence")
        assert group.rows[0]["predicted_s_to_target"] is not None
        remarks = page_tables(group, [group])[0].remarks
        assert any(one.startswith("Estimated: without augmentation") for one in remarks) == is_said
        assert ("step time x steps, without augmentation:" in " ".join(findings(study.folder))) == is_said

    def test_an_augmented_training_is_predicted_from_augmented_steps_without_a_caution(self, study, epochs):
        study.add([[epochs([0.5, 0.95])]], kind="convergence", target_accuracy=0.9, augmentation="standard")
        study.add_steps([[0.3] * 9] * 3)  # more iterations, which else is preferred
        study.add_steps([[0.1] * 3] * 3, augmentation="standard")
        table = summary_table(study.folder)
        group = next(one for one in group_rows(to_rows(table)) if one.kind == "convergence")
        assert group.rows[0]["predicted_s_to_target"] == pytest.approx(0.1 * 2 * STEPS)
        assert group.rows[0]["prediction_lacks"] is None
        assert not any("augmentation" in one for one in page_tables(group, [group])[0].remarks)
        said = " ".join(findings(study.folder))
        assert "estimated as step time x steps: none on 1 worker 2.00" in said
        assert "without augmentation" not in said

    def test_a_plain_training_is_predicted_from_plain_steps_alone(self, study, epochs):
        for name, said in (("none", {}), ("ring", {"augmentation": "none"})):  # folders of before; now
            run = [epochs([0.5, 0.95])]
            study.add([run], kind="convergence", target_accuracy=0.9, aggregator=name, **said)
            study.add_steps([[0.3] * 9] * 3, aggregator=name, augmentation="standard")
            study.add_steps([[0.1] * 3] * 3, aggregator=name)
        trained = [row for row in rows_of(study) if row["kind"] == "convergence"]
        assert [row["predicted_s_to_target"] for row in trained] == [pytest.approx(2.0)] * 2
        assert [row["prediction_lacks"] for row in trained] == [None, None]

    def test_the_caution_names_those_of_a_table_whose_prediction_lacks_augmentation(self, study, epochs):
        for name in ("ring", "tree"):
            run = [epochs([0.5, 0.95])]
            more = {"aggregator": name, "augmentation": "standard"}
            study.add([run], kind="convergence", target_accuracy=0.9, **more)
        study.add_steps([[0.1] * 3] * 3, aggregator="ring", augmentation="standard")
        study.add_steps([[0.1] * 3] * 3, aggregator="tree")
        table = summary_table(study.folder)
        group = next(one for one in group_rows(to_rows(table)) if one.kind == "convergence")
        expected = {"ring": None, "tree": "augmentation"}
        assert {row["aggregator"]: row["prediction_lacks"] for row in group.rows} == expected
        (caution,) = [one for one in page_tables(group, [group])[0].remarks if "augmentation" in one]
        assert caution.startswith("Estimated: without augmentation for tree on 1 worker, which")
        said = next(one for one in findings(study.folder) if "estimated as" in one)
        assert "step time x steps: ring on 1 worker 2.00, measured" in said
        assert "tree on 1 worker 2.00, without augmentation, measured 2.00" in said

    def test_seeds_share_what_their_prediction_lacks(self, study, epochs):
        for seed in (0, 1):
            more = {"seed": seed, "augmentation": "standard"}
            study.add([[epochs([0.5, 0.95])]], kind="convergence", target_accuracy=0.9, **more)
        study.add_steps([[0.1] * 3] * 3)
        trained = [row for row in rows_of(study) if row["kind"] == "convergence"]
        assert [row["prediction_lacks"] for row in trained] == ["augmentation"] * 2
        (merged,) = over_seeds(trained)
        assert merged["prediction_lacks"] == "augmentation"

    def test_table_names_the_one_that_is_not_predicted(self, study, epochs):
        study.add([[epochs([0.5, 0.95])]], kind="convergence", target_accuracy=0.9, aggregator="ring")
        self.trained_and_timed(study, epochs)
        group = next(one for one in group_rows(rows_of(study)) if one.kind == "convergence")
        (table,) = page_tables(group, [group])
        assert table.remarks[0].startswith("Estimated: not ring on 1 worker, as")

    def test_sentence_has_both(self, study, epochs):
        self.trained_and_timed(study, epochs)
        text = " ".join(findings(study.folder))
        assert "estimated as step time x steps: none on 1 worker 2.00, measured" in text
        assert "measured 2.00" in text
