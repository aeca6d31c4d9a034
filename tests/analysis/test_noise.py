"""A/A pairs: the floor that they give, and what differs by less; launches that are slow or correlated."""

import itertools
import math
from unittest.mock import patch

import numpy as np
import pytest

from scaling.analysis import launch_effects
from scaling.analysis.compare import Side, compare_sides
from scaling.analysis.decisions import Difference
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.launch_effects import Serial, inflation, serial_correlation, slow_launches
from scaling.analysis.noise import aa_warnings, noise_finding, scatter_of
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.study_scatter import (
    UNSHOWN_WEIGHT,
    CellTimes,
    cell_times,
    offset_variance,
    study_scatter,
)
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.report.advice_text import recommendation_as_dict as as_dict
from scaling.report.text import text_of
from tests.made_studies import findings, rows_of


def add_pair(study, first, second, **cell):
    """An A/A pair from the launches' step times."""
    study.add_steps(first, **cell)
    study.add_steps(second, aa_replicate=1, **cell)


def around(step_s):
    return [[step_s * 0.999], [step_s], [step_s * 1.001]]


def floors(study):
    names = ("aggregator", "model", "aa_replicate")
    return {tuple(row[name] for name in names): row["noise_floor"] for row in rows_of(study)}


def lines(study):
    groups = group_rows(rows_of(study))
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
    rows = rows_of(study)
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
    (steady_variance, degrees), (variance, fewer) = (
        offset_variance([Difference(one, error, 9.0) for one in (0.02, -0.03, 0.03, -0.02)])
        for error in (0.001, 0.02)
    )
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


SLOWER = np.array([0.5, 0.1, 0.4, 0.2, 0.6, 0.3, 0.15, 0.35])
"""By how much a disturbed launch slows cells down: unevenly."""


def scattered(num_launches, num_cells=8, seed=0, deviation=0.01):
    """Logarithms of times, [cell, launch]: of its own, and what the cells of a launch share."""
    generator = np.random.default_rng(seed)
    own = generator.normal(scale=deviation, size=(num_cells, num_launches))
    return own + generator.normal(scale=deviation, size=num_launches)


@pytest.mark.parametrize("num_launches", [3, 4, 5])
@pytest.mark.parametrize("slower", [SLOWER, np.full(8, 0.3), np.where(np.arange(8) < 6, SLOWER, 0)])
def test_slow_launch_is_found_whether_its_cells_are_slow_evenly_or_not(num_launches, slower):
    logs = scattered(num_launches)
    logs[:, 1] += slower
    assert slow_launches(logs) == [1]


def test_several_are_found_but_always_fewer_than_half():
    logs = scattered(5)
    logs[:, [0, 3]] += SLOWER[:, None]
    assert slow_launches(logs) == [0, 3]
    logs[:, 4] += SLOWER
    assert len(slow_launches(logs)) <= 2


@pytest.mark.parametrize("changed", [
    {"num_launches": 2},  # which one is slow?
    {"num_cells": 4}, {"slower": -SLOWER},  # too few to tell; a fast launch
    {"slower": np.where(np.arange(8) < 3, SLOWER, 0)}, {"slower": SLOWER / 20},  # three of eight; too little
])  # fmt: skip
def test_others_are_not(changed):
    logs = scattered(changed.get("num_launches", 3), changed.get("num_cells", 8), deviation=0.002)
    logs[:, 1] += changed.get("slower", SLOWER)[: len(logs)]
    assert slow_launches(logs) == []


def test_ordinary_launches_are_seldom_taken_for_slow():
    found = [slow_launches(scattered(3, seed=seed, deviation=0.05)) for seed in range(200)]
    assert sum(map(bool, found)) <= 10


NAMES = ("all_reduce", "ring", "tree", "host_serial", "host_parallel", "caffe", "mxnet_device", "tensorflow")


def add_launches(study, **launches):
    """Cells of two workers: for each aggregator, seconds a step of its launches."""
    for name, steps in launches.items():
        study.add_steps([[step_s] * 3 for step_s in steps], aggregator=name, world_size=2)
    return read_cells(study.folder)


def add_study(study, slower):
    logs = scattered(3, deviation=0.004)
    logs[1:] += 0.2
    logs[:, 1] += slower
    return add_launches(study, **dict(zip(NAMES, np.exp(logs), strict=True)))


def test_it_counts_for_nothing_and_a_line_says_so(study):
    cells = add_study(study, SLOWER)
    table = build_table("made", cells)
    (found,) = recommend(table, cells)
    assert (found.state, found.choice.row["aggregator"]) == ("decided", "all_reduce")
    row = found.choice.row
    assert row["iteration_s_low"] < row["iteration_s"] < row["iteration_s_high"] < 1.05
    said, of_offsets = as_dict(found)["remarks"]
    assert of_offsets.startswith("Offsets of cells were not measured (0 A/A pairs, 4 are needed)")
    assert "Launch 2 on 2 workers was slower than the others in 8 of 8 cells" in said
    assert "(without a slow one on 2 workers)" in text_of(verdicts(table, cells)[0], "sure_why")
    assert [len(cell.all_launches) for cell in cells] == [3] * 8


def test_nothing_is_said_without_one(study):
    assert [remark.kind for remark in scatter_of(add_study(study, 0.0)).remarks] == ["offsets_not_measured"]


LEFT = " Where %s left a comparison finds large differences alone; more repeats find smaller ones."


@pytest.mark.parametrize(("num_left", "said"), [
    (1, LEFT % "one launch is"), (2, LEFT % "two launches are"), (3, ""),
])  # fmt: skip
def test_the_launches_that_are_left_are_counted(num_left, said, study):
    (found,) = (one for one in scatter_of(add_study(study, SLOWER)).remarks if one.kind == "launch_set_aside")
    text = text_of(Finding(found.kind, (), {**found.values, "num_left": num_left}))
    assert text.partition("decisions.")[2] == said


def test_where_a_rival_is_undecided_the_others_are_named_as_ruled_out(study):
    slow = {"tree": [5.0, 5.1, 4.9], "host_serial": [6.0, 6.1, 5.9]}
    cells = add_launches(study, all_reduce=[1.0, 1.3, 1.0], ring=[1.3, 1.0, 1.1], **slow)
    table = build_table("made", cells)
    (found,) = recommend(table, cells)
    assert found.state == "undecided"
    said = as_dict(found)
    assert said["ruled_out"] == ["tree on 2 workers", "host_serial on 2 workers"]
    assert "tree on 2 workers and host_serial on 2 workers are ruled out; " in said["sentence"]
    why = text_of(verdicts(table, cells)[0], "aggregator_why")
    assert why == "fastest so far; not resolved from ring; ruled out: tree and host_serial"


def test_world_sizes_that_are_ruled_out_are_named(study):
    study.add_steps([[step_s] * 3 for step_s in (9.0, 9.1, 8.9)], world_size=1)
    for world_size, steps in {2: [1.0, 1.3, 1.0], 4: [1.3, 1.0, 1.1]}.items():
        study.add_steps([[step_s] * 3 for step_s in steps], aggregator="ring", world_size=world_size)
    cells = read_cells(study.folder)
    (found,) = verdicts(build_table("made", cells), cells)
    assert text_of(found, "headline").endswith("Not ruled out: 4 workers; ruled out: 1.")


def correlated(num_cells, num_launches, kept, seed=0):
    values = np.random.default_rng(seed).normal(size=(num_cells, num_launches))
    for launch in range(1, num_launches):
        values[:, launch] = kept * values[:, launch - 1] + np.sqrt(1 - kept**2) * values[:, launch]
    return 0.03 * values


def test_correlated_launches_are_found_by_their_order_and_what_all_share_is_apart():
    assert 0.8 <= serial_correlation([correlated(16, 5, 0.8, seed) for seed in range(3)]).within <= 0.9
    assert serial_correlation([correlated(16, 5, 0.8)[:, [2, 0, 4, 1, 3]]]) == Serial()
    shared = np.linspace(0, 1, 9)
    assert serial_correlation([correlated(16, 9, 0.0) + shared]) == Serial(0.0, pytest.approx(0.9))


def test_independent_launches_are_seldom_called_correlated():
    found = [serial_correlation([correlated(9, 5, 0.0, seed)]).within for seed in range(200)]
    assert sum(map(bool, found)) <= 20
    assert serial_correlation([correlated(9, 2, 0.8), np.ones((9, 5)), np.zeros((0, 4))]) == Serial()


@pytest.mark.parametrize("num_launches", [3, 9])
def test_inflation_is_what_a_mean_scatters_by_more(num_launches):
    values = correlated(20_000, num_launches, 0.6)
    expected = values.mean(axis=1).var() / (values.var(axis=1, ddof=1).mean() / num_launches)
    assert inflation(0.6, num_launches) == pytest.approx(expected, rel=0.05)
    assert inflation(0.0, num_launches) == inflation(0.6, 2) == 1


def test_intervals_of_correlated_launches_are_wider_and_a_line_says_so(study):
    cells = add_launches(study, **dict(zip(NAMES, np.exp(correlated(8, 9, 0.9)), strict=True)))
    scatter, times = scatter_of(cells), cell_times(cells)
    plain, ids = study_scatter(times), list(times)
    assert scatter.difference(*ids[:2]).error > 1.5 * plain.difference(*ids[:2]).error
    assert np.diff(scatter.interval(ids[0])) > 1.5 * np.diff(plain.interval(ids[0]))
    assert [remark.kind for remark in scatter.remarks] == ["correlated_launches", "offsets_not_measured"]
    compared = compare_sides(*[Side.of([build_table("made", cells)], [cells]) for _ in "ab"])
    assert [warning.kind for warning in compared.warnings] == [one.kind for one in scatter.remarks]
    errors = [cell.difference.error for cell in compared.cells]
    with patch.object(launch_effects, "SERIAL_LEVEL", 0):
        narrow = compare_sides(*[Side.of([build_table("made", cells)], [cells]) for _ in "ab"])
    assert all(wide > 1.5 * cell.difference.error for wide, cell in zip(errors, narrow.cells, strict=True))


def test_four_pairs_measure_the_offsets_of_cells(study):
    for name, replicate in itertools.product(NAMES[:4], (0, 1)):
        study.add_steps([[1.0], [1.01], [0.99]], aggregator=name, world_size=2, aa_replicate=replicate)
    assert not scatter_of(read_cells(study.folder)).remarks
