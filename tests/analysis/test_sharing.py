"""Trainings whose workers shared GPUs: their accuracy is told, and no second or joule of theirs anywhere."""

import json
import math

import pytest

from scaling.analysis.columns import shares_gpus, to_rows
from scaling.analysis.compare import Side, compare, compare_sides
from scaling.analysis.groups import group_rows
from scaling.analysis.learning import epoch_table
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import summary_table
from scaling.errors import ScalingError
from scaling.report import write_report
from scaling.report.exports.logs import mllog
from scaling.report.exports.tidy_csv import tidy_csv
from scaling.report.figures.training import target_bars
from scaling.report.page_tables import page_tables
from scaling.report.text import text_of, warnings_of
from tests.made_studies import findings

TRAIN_S = 1234.5
"""Of an epoch, in the raw samples: found nowhere in a report."""
ACCURACIES = (0.91, 0.97)
TIMES = ("train_s", "seconds_to_target", "joules_per_sample", "joules_to_target", "predicted_s_to_target")


@pytest.fixture
def lines(epochs):
    """lines(seconds): an epoch each, on one rank."""
    return lambda epoch_s: epochs(ACCURACIES, epoch_s, train_j=77.0)


@pytest.fixture
def shared(study, lines):
    """A folder with world size 2 on two GPUs, and world size 4 on the same two."""
    common = {"kind": "convergence", "aggregator": "ring", "device": "cuda", "target_accuracy": 0.95}
    study.add([[lines(10.0)] * 2], world_size=2, epochs=2, **common)
    study.add([[lines(TRAIN_S)] * 4], world_size=4, workers_per_gpu=2, epochs=2, **common)
    return study


def rows_of(study):
    return {row["world_size"]: row for row in to_rows(summary_table(study.folder))}


class TestRow:
    def test_accuracy_is_told_and_no_time_or_energy_and_a_warning_says_how_many_shared_what(self, shared):
        rows = rows_of(shared)
        assert (rows[4]["workers_per_gpu"], rows[4]["final_test_accuracy"]) == (2, 0.97)
        assert (rows[4]["target_state"], rows[4]["epochs_to_target"]) == ("reached", 2)
        own = rows[2]
        assert (own["workers_per_gpu"], own["train_s"], own["seconds_to_target"]) == (None, 20.0, 20.0)
        assert (shares_gpus(own), own["warnings"]) == (False, None)
        (group,) = group_rows(list(rows.values()))
        (warning,) = warnings_of(group)
        assert warning.startswith("shared GPUs: 4 workers on 2 GPUs: the accuracy holds for 4 workers")
        assert "workers shared GPUs" in warning
        assert "ring on 4 workers" in warning
        shared.add_steps([[0.5, 0.5, 0.5]], aggregator="ring", device="cuda", world_size=4)
        for row in (rows[4], rows_of(shared)[4]):
            assert {name: row[name] for name in TIMES} == dict.fromkeys(TIMES), "nor is one predicted"

    def test_epochs_have_no_seconds_sentences_speak_of_accuracy_and_comparisons_leave_them_out(self, shared):
        by_size = dict(iter(epoch_table(read_cells(shared.folder)).groupby("world_size")))
        assert by_size[4][["train_s", "train_j"]].isna().all(axis=None)
        assert by_size[2]["train_s"].tolist() == [10.0, 20.0]
        assert by_size[4]["test_accuracy"].tolist() == list(ACCURACIES)
        said = " ".join(findings(shared.folder))
        assert "2 of 2 combinations reached 95.0% in every repeat." in said
        assert "4 workers on 2 GPUs: the accuracy holds for that many workers; times are left out" in said
        side = Side.of([summary_table(shared.folder)], [read_cells(shared.folder)])
        found = compare_sides(side, side)
        assert ([one.match.a["world_size"] for one in found.cells], found.num_left_out) == ([2], 2)


class TestSentences:
    def test_seeds_that_shared_have_epochs_to_the_target_and_no_seconds(self, study, lines):
        common = {"kind": "convergence", "device": "cuda", "target_accuracy": 0.95, "epochs": 2}
        for name, seed in (("ring", 0), ("ring", 1), ("tree", 0)):
            run = [lines(TRAIN_S)] * 4
            study.add([run], aggregator=name, seed=seed, world_size=4, workers_per_gpu=2, **common)
        (group,) = group_rows(list(to_rows(summary_table(study.folder))))
        (told,) = page_tables(group, [group])[0].remarks
        assert told == "ring on 4 workers: its 2 seeds reach the target after 2 to 2 epochs."

    def test_nothing_is_said_where_nobody_shared(self, study, lines):
        study.add([[lines(1.0)]], kind="convergence", device="cuda")
        assert "GPUs" not in " ".join(findings(study.folder))


class TestChoice:
    def test_no_training_on_shared_gpus_is_recommended_by_its_seconds(self, shared, study, lines):
        study.add(
            [[lines(0.001)] * 8], kind="convergence", aggregator="ring", device="cuda", target_accuracy=0.95,
            world_size=8, workers_per_gpu=4, epochs=2,
        )  # fmt: skip
        table, cells = summary_table(study.folder), read_cells(study.folder)
        (found,) = recommend(table, cells, "time-to-accuracy")
        assert found.choice.row["world_size"] == 2
        reasons = {one.name: text_of(one.reason) for one in found.excluded}
        assert reasons["ring on 8 workers"].startswith("8 workers on 2 GPUs: its seconds do not hold")
        assert reasons["ring on 4 workers"].startswith("4 workers on 2 GPUs")

    def test_a_lossy_timing_may_rest_on_their_accuracy(self, study, lines):
        """On four GPUs the exchange was timed; that it learns was seen on two."""
        common = {"device": "cuda", "world_size": 4}
        for name in ("all_reduce", "one_bit"):
            trained = {"kind": "convergence", "epochs": 2, "target_accuracy": 0.95, "workers_per_gpu": 2}
            study.add([[lines(TRAIN_S)] * 4], aggregator=name, **trained, **common)
            study.add_steps([[1.0 if name == "all_reduce" else 0.1] * 9] * 3, aggregator=name, **common)
        (found,) = recommend(summary_table(study.folder), read_cells(study.folder), "time")
        assert found.choice.row["aggregator"] == "one_bit"

    def test_compare_of_nothing_else_says_why(self, study, lines):
        study.add([[lines(1.0)] * 4], kind="convergence", device="cuda", world_size=4, workers_per_gpu=4)
        with pytest.raises(ScalingError, match="with a GPU a worker"):
            compare([study.folder], [study.folder])


class TestPages:
    def test_no_page_figure_table_bar_or_export_shows_their_seconds(self, shared):
        write_report(shared.folder)
        written = [p for p in shared.folder.path.rglob("*") if p.suffix in (".html", ".csv", ".svg", ".md")]
        assert len(written) > 3
        for path in written:
            text = path.read_text()
            for number in (TRAIN_S, 2 * TRAIN_S):
                assert f"{number:g}" not in text, path
                assert f"{number:.4g}" not in text, path
            assert "nan s" not in text, path
        (group,) = group_rows(list(rows_of(shared).values()))
        assert [bar.name for bar in target_bars(group)] == ["ring, 2 GPUs"]
        cells = read_cells(shared.folder)
        tidy = [one.split(",") for one in tidy_csv(shared.folder, cells)]
        quantities = {one[-3] for one in tidy if one[9] == "4"}
        assert "test_accuracy" in quantities
        assert not {"train_s", "train_j"} & quantities
        logged = [json.loads(one.removeprefix(":::MLLOG ")) for one in mllog(shared.folder, cells)]
        assert {one["metadata"]["world_size"] for one in logged if "world_size" in one["metadata"]} == {2}

    def test_all_shared_is_a_report_too(self, study, lines):
        study.add([[lines(TRAIN_S)] * 4], kind="convergence", device="cuda", world_size=4, workers_per_gpu=4)
        write_report(study.folder)
        names = {path.name for path in (study.folder.path / "figures").iterdir()}
        assert any(name.startswith("loss-epochs") for name in names)
        assert not any(name.startswith(("loss-seconds", "loss-joules", "target")) for name in names)
        (training,) = read_cells(study.folder)[0].trainings
        assert all(math.isnan(value) for value in training.train_s)
