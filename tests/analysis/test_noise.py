"""A/A pairs: the floor that they give, and what differs by less."""

import math

import numpy as np
import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.decisions import Difference
from scaling.analysis.groups import group_rows
from scaling.analysis.noise import aa_warnings, noise_finding, scatter_of
from scaling.analysis.samples import read_cells
from scaling.analysis.study_scatter import UNSHOWN_WEIGHT, CellTimes, offset_variance, study_scatter
from scaling.analysis.summary import summary_table
from scaling.report.text import text_of
from tests.made_studies import findings


def add_pair(study, first, second, **cell):
    """An A/A pair from the launches' step times."""
    study.add_steps(first, **cell)
    study.add_steps(second, aa_replicate=1, **cell)


def around(step_s):
    return [[step_s * 0.999], [step_s], [step_s * 1.001]]


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


@pytest.mark.parametrize(("first", "second", "floor"), [
    ([[0.5, 0.5, 2.0], [2.0]], [[1.02], [1.9]], -math.log(1.02 * 1.9 / 2) / 2),
    ([[1.0], [1.1], [1.0], [1.1]], [[1.1], [1.0], [1.1], [1.0]], 0.0),  # falls where nothing stays
    ([[1.0]], [[1.1]], math.log(1.1)),
])  # fmt: skip
def test_floor_of_a_group_is_the_difference_of_the_mean_logarithms_of_launches(study, first, second, floor):
    study.add_steps([[4.0]])
    add_pair(study, first, second, **RING)
    assert list(floors(study).values()) == pytest.approx([floor] * 3)


def test_floor_of_several_pairs_is_their_root_mean_square(study):
    add_pair(study, [[1.0]], [[1.1]], **RING)
    add_pair(study, [[1.0]], [[1.01]], aggregator="tree", world_size=2)
    expected = math.hypot(math.log(1.1), math.log(1.01)) / math.sqrt(2)
    assert floors(study)["tree", "mlp", 0] == pytest.approx(expected)
    assert lines(study) == ["noise floor 6.8% (of 2 A/A pairs)"]


@pytest.mark.parametrize(("second", "warned"), [(1.1, True), (1.001, False)])
def test_a_pair_that_differs_more_than_its_launches_scatter_is_a_warning(study, second, warned):
    add_pair(study, around(1.0), around(second)[::-1], **RING)
    cells = read_cells(study.folder)
    assert [one.kind for one in aa_warnings(cells, scatter_of(cells))] == ["aa_pair_differs"] * warned


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


def test_pair_needs_a_launch_that_both_have_and_cells_that_differ_in_nothing_more(study):
    study.add_steps([[1.0]], **RING)
    study.add(["planned"], aa_replicate=1, **RING)
    study.add_steps([[1.1]], aa_replicate=1, **{**RING, "seed": 1})
    assert set(floors(study).values()) == {None}


def test_replicates_are_rows_of_the_summary_but_of_no_group_and_no_candidates(study):
    add_pair(study, around(1.0), around(0.5), **RING)
    rows = to_rows(summary_table(study.folder))
    (group,) = group_rows(rows)
    shown = [[row["aa_replicate"] for row in part] for part in (rows, group.rows, group.replicates)]
    assert shown == [[0, 1], [0], [1]]
    text, of_offsets = findings(study.folder)
    assert "ring on 2 workers takes 1000.0" in text
    assert of_offsets.startswith("Offsets of cells were not measured (1 A/A pair, 4 are needed)")


def test_four_pairs_that_differ_are_part_of_every_difference(study):
    for number, aggregator in enumerate(("ring", "tree", "all_reduce", "caffe")):
        add_pair(study, around(1.0), around(1.05), **{**RING, "aggregator": aggregator, "seed": number})
    cells = read_cells(study.folder)
    scatter = scatter_of(cells)
    assert aa_warnings(cells, scatter_of(cells)) == []
    # The pairs' differences have twice the component's variance.
    assert math.sqrt(2 * scatter.offset_variance) == pytest.approx(math.log(1.05), rel=0.1)
    assert scatter.offset_degrees == pytest.approx(4)  # of four pairs
    first, second = (cell.cell_id for cell in cells[:2])
    assert scatter.difference(first, second).error == pytest.approx(math.log(1.05), rel=0.1)


def test_what_pairs_differ_by_is_less_known_the_more_their_launches_scatter():
    steady, scattering = (
        [Difference(one, error, 9.0) for one in (0.02, -0.03, 0.03, -0.02)] for error in (0.001, 0.02)
    )
    (steady_variance, degrees), (variance, fewer) = map(offset_variance, (steady, scattering))
    assert 0 < variance < steady_variance
    assert 0 < fewer < 1 < 3.9 < degrees < 4
    assert offset_variance([Difference(0.01, 0.02, 9.0)] * 4) == (0.0, 0.0)


@pytest.mark.parametrize(("error", "weight"), [(0.03, UNSHOWN_WEIGHT), (0.005, 1.0)])
def test_what_pairs_hardly_show_counts_in_part(error, weight):
    ratios = (0.04, -0.03, 0.04, -0.03)
    excess = np.mean(np.square(ratios)) - error**2
    variance, _ = offset_variance([Difference(one, error, 9.0) for one in ratios])
    assert variance == pytest.approx(weight * excess / 2)


def test_a_pair_knows_its_scatter_better_if_both_cells_scatter_alike_but_not_from_two_launches():
    def degrees(num_launches):
        logs = np.random.default_rng(3).normal(0, 0.01, (8, num_launches))
        logs[2] *= 4
        times = {cell: CellTimes("same", dict(enumerate(np.exp(own)))) for cell, own in enumerate(logs)}
        scatter = study_scatter(times)
        return scatter.difference(0, 1).degrees, scatter.difference(0, 2).degrees

    alike, unlike = degrees(4)
    assert alike > unlike + 1
    assert degrees(2)[0] == pytest.approx(degrees(2)[1])
