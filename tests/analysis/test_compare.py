"""Comparing two studies: planted differences are found, and nothing else."""

import io

import numpy as np
import pytest
from rich.console import Console

from scaling.analysis.compare import Side, compare, compare_sides
from scaling.analysis.comparison import changed_time, changed_times, parse_gate
from scaling.analysis.matching import match_cells
from scaling.errors import ScalingError
from scaling.report.compare_text import render_comparison
from scaling.report.text import text_of

AGGREGATORS = ("none", "all_reduce", "ring", "tree", "host_serial")
WORLD_SIZES = (1, 2, 4)


def noisy(make_study, generator, *, num_launches=3, spread=0.02, slow=None, slow_factor=1.1, pairs=False):
    """A study of 15 cells whose launches scatter; `slow` = (aggregator, size) takes longer."""
    study = make_study()
    for aggregator in AGGREGATORS:
        for size in WORLD_SIZES:
            middle_s = 0.01 / size * (slow_factor if (aggregator, size) == slow else 1.0)
            for number in range(1 + (pairs and aggregator == "ring" and size == 4)):
                middles = middle_s * np.exp(generator.normal(0, spread, num_launches))
                runs = [(one * np.exp(generator.normal(0, 0.01, 12))).tolist() for one in middles]
                study.add(runs, aggregator=aggregator, world_size=size, aa_replicate=number)
    return study


def compared(a, b, level=0.02):
    return compare_sides(Side.of([a.table], [a.cells]), Side.of([b.table], [b.cells]), level)


def verdicts(comparison, *wanted):
    return {
        (cell.match.a["aggregator"], cell.match.a["world_size"])
        for cell in comparison.cells
        if cell.verdict in wanted
    }


@pytest.mark.quality
def test_few_studies_of_the_same_raise_a_false_alarm(make_study):
    generator, alarms = np.random.default_rng(2026), 0
    for _ in range(60):
        first, second = noisy(make_study, generator), noisy(make_study, generator)
        alarms += bool(verdicts(compared(first, second), "faster", "slower"))
    assert alarms <= 6


@pytest.mark.parametrize("seed", range(5))
def test_planted_slow_down_of_a_tenth_is_found_and_nothing_else(make_study, seed):
    generator = np.random.default_rng(seed)
    before = noisy(make_study, generator, num_launches=5, spread=0.005)
    after = noisy(make_study, generator, num_launches=5, spread=0.005, slow=("tree", 4))
    found = compared(before, after)
    assert verdicts(found, "slower") == {("tree", 4)}
    assert verdicts(found, "faster") == set()
    back = compared(after, before)
    assert verdicts(back, "faster") == {("tree", 4)}
    assert verdicts(back, "slower") == set()


def test_one_launch_has_no_verdict_and_fails_no_gate_and_says_how_many_would_tell(make_study):
    generator = np.random.default_rng(1)
    options = {"num_launches": 1, "spread": 0.0, "pairs": True}
    before = noisy(make_study, generator, **options)
    after = noisy(make_study, generator, **options, slow=("tree", 4), slow_factor=2)
    found = compared(before, after)
    assert verdicts(found, "not resolved") == {(name, size) for name in AGGREGATORS for size in WORLD_SIZES}
    assert parse_gate("slower").failing(found) == []
    assert len(parse_gate("slower").blind(found)) == 15
    assert "repeats=3 on both sides would tell the largest ratio seen, 2.0" in flowing(found)


def with_common(make_study, generator, factor=1.0, slow=1.0):
    """Nine cells of one world size, of which all are longer by a factor and one by another."""
    study = make_study()
    for number in range(9):
        middle_s = 0.01 * factor * (slow if number == 0 else 1.0)
        middles = middle_s * np.exp(generator.normal(0, 0.004, 4))
        study.add([[one] * 9 for one in middles], aggregator="ring", world_size=2, bucket_mb=number + 1.0)
    return study


def test_shift_of_a_campaign_is_one_line_and_no_cell_is_called_for_it(make_study):
    generator = np.random.default_rng(3)
    found = compared(with_common(make_study, generator), with_common(make_study, generator, 1.03, 1.06))
    assert [cell.verdict for cell in found.cells if cell.match.a["bucket_mb"] != 1.0].count("slower") == 0
    assert [cell.verdict for cell in found.cells if cell.match.a["bucket_mb"] == 1.0] == ["slower"]
    (shift,) = found.shifts
    assert shift.difference.ratio == pytest.approx(1.03, abs=0.005)
    assert not shift.difference.is_significant, "two campaigns of one machine differ by 2%"
    assert "All 9 timed cells on 2 workers: B/A 1.0" in printed(found)


def test_a_cell_is_not_resolved_for_the_others_shift_only_where_it_surely_differs_from_them(make_study):
    generator = np.random.default_rng(5)
    before = noisy(make_study, generator, num_launches=5, spread=0.002)
    after = make_study()
    for one in before.cells:
        row, factor = one.cell, 1.0 if one.cell["aggregator"] == "none" else 1.2
        steps = [(factor * launch.step_s).tolist() for launch in one.launches]
        after.add(steps, aggregator=one.label("aggregator"), world_size=row["world_size"])
    found = compared(before, after)
    shifted = [one.match.a for one in found.cells if one.reason == "shift of the others"]
    assert {row["aggregator"] for row in shifted} == {"none"}
    scattering = [noisy(make_study, generator, spread=0.2) for _ in range(2)]
    assert {one.reason for one in compared(*scattering).cells} == {"scatter"}


def test_launches_that_scatter_beyond_all_bounds_could_have_found_nothing(make_study):
    def side(factor):
        study = make_study()
        for aggregator in ("ring", "tree"):
            study.add([[middle] * 9 for middle in (1e-6, factor)], aggregator=aggregator, world_size=2)
        return study

    found = compared(side(1e3), side(2e3))
    assert verdicts(found, "slower", "faster") == set()
    assert all(found.detectable(cell) is None for cell in found.cells)


def test_several_folders_a_side_tell_how_far_campaigns_differ(make_study):
    generator = np.random.default_rng(4)

    def side(factors):
        studies = [with_common(make_study, generator, factor) for factor in factors]
        return Side.of([one.table for one in studies], [one.cells for one in studies])

    steady = compare_sides(side([1, 1.001, 0.999]), side([1.03, 1.031, 1.029]), 0.02)
    assert steady.shifts[0].difference.is_significant
    restless = compare_sides(side([1, 1.04, 0.96]), side([1.03, 1.07, 0.99]), 0.02)
    assert not restless.shifts[0].difference.is_significant
    assert {cell.num_launches for cell in steady.cells} == {(3, 3)}


def drifting(make_study, generator, campaign, factor=1.0):
    """Nine cells of six launches, all of which follow a machine that drifts by a tenth."""
    drift = np.exp(np.linspace(0, 0.1, 6) + generator.normal(0, 0.002, 6))
    study = make_study()
    for number in range(9):
        middles = 0.01 * factor * drift * np.exp(generator.normal(0, 0.002, 6))
        cell = {"aggregator": "ring", "world_size": 2, "bucket_mb": float(number + 1)}
        study.add([[one] * 9 for one in middles], **cell)
    for cell in study.cells:
        for record in cell.records:
            record.launch["campaign"] = campaign
    return study


@pytest.mark.parametrize(("campaigns", "is_paired"), [(("x", "x"), True), (("x", "y"), False)])
def test_launches_that_took_turns_show_a_shift_of_all_cells_and_a_gate_fails_on_it(
    make_study, campaigns, is_paired
):
    generator = np.random.default_rng(6)
    a, b = (
        drifting(make_study, generator, name, factor)
        for name, factor in zip(campaigns, (1.0, 1.03), strict=True)
    )
    found = compared(a, b)
    assert found.is_paired is is_paired
    assert found.shifts[0].difference.is_significant is is_paired
    assert bool(parse_gate("slower > 2%").failing_shifts(found)) is is_paired
    assert parse_gate("faster > 2%").failing_shifts(found) == []
    assert verdicts(found, "slower", "faster") == set(), "cells are called relative to it"
    assert ("took turns" in printed(found)) is is_paired
    assert text_of(changed_times(found.shifts[0])).startswith("all 9 timed cells on 2 workers take 1.03")


def test_gate_fails_where_all_cells_are_a_tenth_slower_than_in_another_campaign(make_study):
    generator = np.random.default_rng(7)
    a, b = with_common(make_study, generator), with_common(make_study, generator, 1.1)
    assert parse_gate("slower > 5%").failing_shifts(compared(a, b))
    assert not parse_gate("slower > 5%").failing_shifts(compared(a, with_common(make_study, generator, 1.03)))


def test_what_pairs_of_a_a_differ_by_is_part_of_every_difference_between_folders(make_study):
    generator = np.random.default_rng(9)

    def side(offset):
        study = make_study()
        for number in range(9):
            for replicate in range(1 + (number < 4)):
                middle_s = 0.01 * np.exp(generator.normal(0, offset))
                middles = middle_s * np.exp(generator.normal(0, 0.002, 4))
                cell = {"aggregator": "ring", "world_size": 2, "bucket_mb": float(number + 1)}
                study.add([[one] * 9 for one in middles], aa_replicate=replicate, **cell)
        return study

    steady, restless = (compared(side(offset), side(offset)) for offset in (1e-6, 0.03))
    assert restless.offset_ratio > 0.02 > steady.offset_ratio
    assert verdicts(restless, "slower", "faster") == set()
    assert restless.detectable(restless.cells[0]) > steady.detectable(steady.cells[0])
    assert "that A/A pairs differ by" in flowing(restless)


@pytest.mark.parametrize("num_others", [0, 3, 9])
def test_detectable_ratio_is_the_smallest_that_is_found_among_all_pairs(make_study, num_others):
    generator = np.random.default_rng(num_others)
    scatter = {number: np.exp(generator.normal(0, 0.01, 4)) for number in range(num_others + 1)}

    def study(factor):
        made = make_study()
        for number, middles in scatter.items():
            times = middles * (factor if number == 0 else 1.0)
            cell = {"aggregator": "ring", "world_size": 2, "bucket_mb": float(number + 1)}
            made.add([[0.01 * one] * 9 for one in times], **cell)
        made.add([[0.01] * 9], aggregator="tree", world_size=4)  # of one launch: no test
        return made

    before = compared(study(1.0), study(1.0))
    assert before.num_tests == num_others + 1
    smallest = before.detectable(before.cells[0])
    assert smallest > 1
    for factor, is_found in ((smallest**1.01, True), (smallest**0.99, False)):
        found = compared(study(1.0), study(factor))
        assert (found.cells[0].verdict == "slower") == is_found
        one_launch = next(one for one in found.cells if one.match.a["aggregator"] == "tree")
        assert found.detectable(one_launch) is None


def test_more_launches_find_smaller_differences(make_study):
    smallest = []
    for count in (2, 3, 5, 9):
        generator = np.random.default_rng(8)
        studies = [noisy(make_study, generator, num_launches=count, pairs=True) for _ in range(2)]
        found = compared(*studies)
        smallest.append(np.median([found.detectable(cell) for cell in found.cells]))
    assert sorted(smallest, reverse=True) == smallest


def test_replicates_stand_aside_and_cells_without_partner_are_named(make_study):
    generator = np.random.default_rng(0)
    a, b = noisy(make_study, generator, pairs=True), noisy(make_study, generator)
    extra = b.add([[0.1] * 12] * 3, aggregator="caffe", world_size=2)
    found = compared(a, b)
    assert len(found.cells) == len(AGGREGATORS) * len(WORLD_SIZES)
    assert [row["cell_id"] for row in found.only_in_b] == [extra]
    assert found.only_in_a == []


def test_trainings_are_compared_by_their_seconds_and_not_with_other_epochs(make_study):
    a, b = make_study(), make_study()
    a.add_training([10.0, 10.1, 10.2], aggregator="ring", world_size=2)
    b.add_training([20.0, 20.1, 20.2], aggregator="ring", world_size=2)
    (cell,) = compared(a, b).cells
    assert (cell.quantity, cell.verdict) == ("train_s", "slower")
    assert cell.difference.ratio == pytest.approx(2, rel=0.01)


def flowing(comparison):
    return " ".join(printed(comparison).split())


def printed(comparison):
    console = Console(file=io.StringIO(), width=80)
    for part in render_comparison(comparison):
        console.print(part)
    return console.file.getvalue()


def test_iterations_and_trainings_have_tables_and_counts_of_their_own(make_study):
    a, b = make_study(), make_study()
    for study, factor in ((a, 1), (b, 2)):
        # A training first: the first pair's kind must not decide the units of the rest.
        study.add_training([factor * one for one in (10.0, 10.1, 10.2)], aggregator="ring", world_size=2)
        study.add([[0.0125] * 9] * 3, aggregator="ring", world_size=2)
    found = compared(a, b)
    assert [cell.given for cell in found.cells] == [found.cells[0].given] * len(found.cells)
    told = printed(found)
    iterations, trainings = told.split("time of a whole training: ")
    assert "time of a step: " in iterations
    assert "A ms" in iterations
    assert "12.5" in iterations
    assert "10.1" not in iterations
    assert "A s " in trainings
    assert "12.5" not in trainings
    assert "Of 1 timed cells of B: 1 same within 3%." in told
    assert "Of 1 trainings of B: 1 slower." in told
    assert [one["kind"] for one in found.as_dict()["cells"]] == [cell.kind for cell in found.cells]
    (failing,) = parse_gate("slower > 5%").failing(found)
    assert text_of(changed_time(failing)).startswith("a training of ring on 2 workers takes 2.00 times as")


def test_trainings_of_several_seeds_are_named_by_them(make_study):
    a, b = make_study(), make_study()
    for study in (a, b):
        for seed in (0, 1):
            study.add_training([10.0, 10.1, 10.2], aggregator="ring", world_size=2, seed=seed)
    assert [cell.name for cell in compared(a, b).cells] == ["ring, seed 0", "ring, seed 1"]


def test_cells_match_over_the_machines_threads_and_say_so(make_study):
    a, b = make_study(), make_study()
    a.add([[0.1] * 9] * 2, device="cuda", threads=12)
    b.add([[0.1] * 9] * 2, device="cuda", threads=24)
    (cell,) = compared(a, b).cells
    assert cell.match.differing == {"threads": (12, 24)}
    rows = [{**cell.match.a, "device": "cpu"}], [{**cell.match.b, "device": "cpu", "cell_id": "other"}]
    rows[0][0]["cell_id"] = "one"
    assert match_cells(*rows)[0] == []


def test_augmented_steps_are_not_compared_with_plain_ones(make_study):
    a, b = make_study(), make_study()
    a.add([[0.1] * 9] * 2)
    b.add([[0.1] * 9] * 2, augmentation="standard")
    with pytest.raises(ScalingError, match="the nearest ones differ in augmentation"):
        compared(a, b)


def test_what_one_side_alone_has_is_told_by_memory_format_and_augmentation(make_study):
    a, b = make_study(), make_study()
    for study in (a, b):
        study.add([[0.1] * 9] * 2)
    a.add([[0.1] * 9] * 2, augmentation="standard", memory_format="channels_last")
    (told,) = [str(one) for one in render_comparison(compared(a, b)) if "in A alone" in str(one)]
    assert "(mlp, channels_last, augmentation standard, done)" in " ".join(told.split())


def test_nothing_in_common_names_what_differs(make_study):
    a, b = make_study(), make_study()
    a.add([[0.1] * 9], batch=64)
    b.add([[0.1] * 9], batch=128)
    with pytest.raises(ScalingError, match="differ in local_batch, global_batch"):
        compared(a, b)


@pytest.mark.parametrize(
    ("text", "verdict", "more_than"),
    [("slower > 5%", "slower", 0.05), ("slower", "slower", 0.0), ("faster>2.5 %", "faster", 0.025)],
)
def test_gate_is_read(text, verdict, more_than):
    gate = parse_gate(text)
    assert (gate.verdict, gate.more_than) == (verdict, pytest.approx(more_than))


@pytest.mark.parametrize("text", ["", "slow", "slower > 5", "slower < 5%", "5%"])
def test_gate_that_is_none_says_what_is_allowed(text):
    with pytest.raises(ScalingError, match="allowed: 'slower > P%'"):
        parse_gate(text)


def test_gate_fails_on_larger_differences_only_and_tells_where_it_was_blind(make_study):
    generator = np.random.default_rng(5)
    before = noisy(make_study, generator, num_launches=5, spread=0.004)
    after = noisy(make_study, generator, num_launches=5, spread=0.004, slow=("ring", 2))
    found = compared(before, after)
    assert [cell.name for cell in parse_gate("slower > 5%").failing(found)] == ["ring"]
    assert parse_gate("slower > 20%").failing(found) == []
    assert parse_gate("slower > 20%").blind(found) == []
    assert len(parse_gate("slower > 0.1%").blind(found)) == len(found.cells) - 1


def test_environments_come_first_with_every_field_that_differs(study, tmp_path):
    other = type(study)(tmp_path / "other")
    for one in (study, other):
        one.add_steps([[0.1] * 9], aggregator="ring", world_size=2)
    environment = other.folder.environment()
    environment["versions"] = {"torch": "3.0"}
    environment["gpus"] = [{"name": "A"}, {"name": "A"}]
    environment["hostname"] = "elsewhere"
    other.folder.write_environment(environment)
    found = compare([study.folder], [other.folder])
    told = {one.field: (one.a, one.b, one.decides) for one in found.environment}
    assert told == {
        "gpus": ("none", "2 x A", True),
        "versions": (None, {"torch": "3.0"}, True),
        "hostname": (None, "elsewhere", False),
    }
    assert [one.decides for one in found.environment] == [True, True, False]
    assert compare([study.folder], [study.folder]).environment == []


def test_other_code_is_said_though_the_environments_are_the_same(study, tmp_path):
    other = type(study)(tmp_path / "other")
    for one, commit in ((study, "aaa"), (other, "bbb")):
        one.add_steps([[0.1] * 9], aggregator="ring", world_size=2)
        one.folder.write_environment({**one.folder.environment(), "git": {"commit": commit, "dirty": True}})
    told = " ".join(printed(compare([study.folder], [other.folder])).split())
    assert "the same hardware, drivers, versions and settings, but the code differs: git.commit: aaa" in told
    assert "git.changes: some against some, perhaps others" in told
