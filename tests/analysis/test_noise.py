"""A/A pairs: the floor that they give, and what is indistinguishable under it."""

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.noise import noise_finding
from scaling.analysis.summary import summary_table
from scaling.report.text import text_of
from tests.made_studies import findings


def add_pair(study, first, second, **cell):
    """An A/A pair from the launches' step times."""
    study.add_steps(first, **cell)
    study.add_steps(second, aa_replicate=1, **cell)


def floors(study):
    return {
        (row["aggregator"], row["model"], row["aa_replicate"]): row["noise_floor"]
        for row in to_rows(summary_table(study.folder))
    }


def lines(study):
    groups = group_rows(to_rows(summary_table(study.folder)))
    found = [noise_finding(group, groups) for group in groups]
    return [text_of(finding) if finding else None for finding in found]


RING = {"aggregator": "ring", "world_size": 2}


def test_floor_is_the_largest_difference_of_the_launches_medians_over_their_mean(study):
    add_pair(study, [[1.0, 1.0, 9.0], [2.0]], [[1.02], [1.9]], **RING)
    assert floors(study)["ring", "mlp", 0] == pytest.approx(0.1 / 1.95)


def test_floor_holds_for_all_cells_of_the_group(study):
    study.add_steps([[4.0]])
    add_pair(study, [[1.0]], [[1.1]], **RING)
    assert list(floors(study).values()) == pytest.approx([0.1 / 1.05] * 3)


def test_floor_of_several_pairs_is_the_largest(study):
    add_pair(study, [[1.0]], [[1.1]], **RING)
    add_pair(study, [[1.0]], [[1.01]], aggregator="tree", world_size=2)
    assert floors(study)["tree", "mlp", 0] == pytest.approx(0.1 / 1.05)
    assert lines(study) == ["noise floor 9.5% (the largest of 2 A/A pairs)"]


def test_group_without_a_pair_takes_that_of_the_same_model_step_and_device(study):
    add_pair(study, [[1.0]], [[1.1]], **RING)
    study.add_steps([[1.0]], seed=1)
    study.add_steps([[1.0]], model="fcn-r")
    study.add_steps([[1.0]], step="captured")
    assert floors(study)["none", "fcn-r", 0] is None
    assert sorted(map(str, lines(study))) == [
        "None",
        "None",
        "noise floor 9.5% (A/A pair: ring on 2 workers)",
        "noise floor 9.5% (A/A pair: ring on 2 workers, of another table)",
    ]


def test_pair_needs_a_launch_that_both_have(study):
    study.add_steps([[1.0]], **RING)
    study.add(["planned"], aa_replicate=1, **RING)
    assert set(floors(study).values()) == {None}


def test_replicate_of_a_cell_that_differs_in_more_is_no_pair(study):
    study.add_steps([[1.0]], **RING)
    study.add_steps([[1.1]], aa_replicate=1, **{**RING, "seed": 1})
    assert set(floors(study).values()) == {None}


def test_replicates_are_rows_of_the_summary_but_of_no_group(study):
    add_pair(study, [[1.0]], [[1.1]], **RING)
    rows = to_rows(summary_table(study.folder))
    assert [row["aa_replicate"] for row in rows] == [0, 1]
    (group,) = group_rows(rows)
    assert [row["aa_replicate"] for row in group.rows] == [0]
    assert [row["aa_replicate"] for row in group.replicates] == [1]


def around(step_s):
    return [[step_s - 1e-6], [step_s], [step_s + 1e-6]]


def test_cells_closer_than_the_floor_are_indistinguishable_though_their_intervals_are_apart(study):
    study.add_steps(around(4.0))
    add_pair(study, around(1.000), around(1.010), **RING)
    study.add_steps(around(1.005), aggregator="tree", world_size=2)
    study.add_steps(around(1.5), aggregator="host_serial", world_size=2)
    (text,) = findings(summary_table(study.folder))
    assert "the fastest is" not in text
    assert "tree on 2 workers is indistinguishable from it (less than the noise floor of 1.0% apart)" in text
    assert "host_serial" not in text


def test_replicate_is_no_candidate(study):
    add_pair(study, around(1.0), around(0.5), **RING)
    (text,) = findings(summary_table(study.folder))
    assert "ring on 2 workers takes 1000.0000 ms" in text


def test_cell_that_is_further_away_than_the_floor_is_not_alike(study):
    add_pair(study, around(1.0), around(1.01), **RING)
    study.add_steps(around(1.02), aggregator="tree", world_size=2)
    (text,) = findings(summary_table(study.folder))
    assert "the fastest is ring on 2 workers" in text


def test_one_worker_within_the_noise_is_said_to_be_indistinguishable(study):
    study.add_steps(around(1.005))
    add_pair(study, around(1.0), around(1.01), **RING)
    (text,) = findings(summary_table(study.folder))
    assert "It is indistinguishable from one worker (none on 1 worker" in text
    assert "below the noise floor" in text
