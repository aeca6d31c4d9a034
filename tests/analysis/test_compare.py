"""Comparing two studies: planted differences are found, and nothing else."""

import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from scaling.analysis.compare import Side, compare, compare_sides
from scaling.analysis.comparison import changed_time, changed_times, match_cells, parse_gate
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


def bucketed(study, number, middles, **more):
    """Adds a cell of an own size of buckets."""
    cell = {"aggregator": "ring", "world_size": 2, "bucket_mb": number + 1.0, **more}
    return study.add([[one] * 9 for one in middles], **cell)


def compared(a, b, level=0.02):
    return compare_sides(Side.of([a.table], [a.cells]), Side.of([b.table], [b.cells]), level)


def verdicts(comparison, *wanted):
    found = [one for one in comparison.cells if one.verdict in wanted]
    return {(one.match.a["aggregator"], one.match.a["world_size"]) for one in found}


def changes(comparison):
    """Those that are slower, and those that are faster."""
    return verdicts(comparison, "slower"), verdicts(comparison, "faster")


def both(make_study, first, second=None):
    """Two studies: of each of two lists of cells (runs, variables), or twice of one."""
    studies = make_study(), make_study()
    for study, cells in zip(studies, (first, second or first), strict=True):
        for runs, cell in cells:
            study.add(runs, **cell)
    return studies


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
    assert changes(compared(before, after)) == ({("tree", 4)}, set())
    assert changes(compared(after, before)) == (set(), {("tree", 4)})


def test_one_launch_has_no_verdict_and_fails_no_gate_and_says_how_many_would_tell(make_study):
    generator = np.random.default_rng(1)
    options = {"num_launches": 1, "spread": 0.0, "pairs": True}
    before = noisy(make_study, generator, **options)
    found = compared(before, noisy(make_study, generator, **options, slow=("tree", 4), slow_factor=2))
    assert verdicts(found, "not resolved") == {(name, size) for name in AGGREGATORS for size in WORLD_SIZES}
    gate = parse_gate("slower")
    assert (gate.failing(found), len(gate.blind(found))) == ([], 15)
    assert "repeats=3 on both sides would tell the largest ratio seen, 2.0" in flowing(found)


def nine(make_study, generator, factor=1.0, slow=1.0, spread=0.004, drift=(0.0,) * 4):
    """Cells of one world size, of which all are longer by a factor and one by another; launches may drift."""
    study = make_study()
    for number in range(9):
        middle_s = 0.01 * factor * (slow if number == 0 else 1.0)
        bucketed(study, number, middle_s * np.exp(drift + generator.normal(0, spread, len(drift))))
    return study


def test_shift_of_a_campaign_is_one_line_and_no_cell_is_called_for_it(make_study):
    generator = np.random.default_rng(3)
    found = compared(nine(make_study, generator), nine(make_study, generator, 1.03, 1.06))
    assert [cell.match.a["bucket_mb"] for cell in found.cells if cell.verdict == "slower"] == [1.0]
    (shift,) = found.shifts
    assert shift.difference.ratio == pytest.approx(1.03, abs=0.005)
    assert not shift.difference.is_significant, "two campaigns of one machine differ by 2%"
    assert "All 9 timed cells on 2 workers: B/A 1.0" in printed(found)


def test_a_cell_is_not_resolved_for_the_others_shift_only_where_it_surely_differs_from_them(make_study):
    generator = np.random.default_rng(5)
    before, after = noisy(make_study, generator, num_launches=5, spread=0.002), make_study()
    for one in before.cells:
        name, factor = one.label("aggregator"), 1.0 if one.cell["aggregator"] == "none" else 1.2
        steps = [(factor * launch.step_s).tolist() for launch in one.launches]
        after.add(steps, aggregator=name, world_size=one.cell["world_size"])
    found = compared(before, after)
    shifted = {one.match.a["aggregator"] for one in found.cells if one.reason == "shift of the others"}
    assert shifted == {"none"}
    scattering = [noisy(make_study, generator, spread=0.2) for _ in range(2)]
    assert {one.reason for one in compared(*scattering).cells} == {"scatter"}


def test_several_folders_a_side_tell_how_far_campaigns_differ(make_study):
    generator = np.random.default_rng(4)

    def side(factors):
        studies = [nine(make_study, generator, factor) for factor in factors]
        return Side.of([one.table for one in studies], [one.cells for one in studies])

    steady = compare_sides(side([1, 1.001, 0.999]), side([1.03, 1.031, 1.029]), 0.02)
    assert steady.shifts[0].difference.is_significant
    restless = compare_sides(side([1, 1.04, 0.96]), side([1.03, 1.07, 0.99]), 0.02)
    assert not restless.shifts[0].difference.is_significant
    assert {cell.num_launches for cell in steady.cells} == {(3, 3)}


def drifting(make_study, generator, campaign, factor=1.0):
    """Nine cells of six launches, all of which follow a machine that drifts by a tenth."""
    drift = np.linspace(0, 0.1, 6) + generator.normal(0, 0.002, 6)
    study = nine(make_study, generator, factor, spread=0.002, drift=drift)
    for cell in study.cells:
        for record in cell.records:
            record.launch["campaign"] = campaign
    return study


@pytest.mark.parametrize(("other", "is_paired"), [("x", True), ("y", False)])
def test_launches_that_took_turns_show_a_shift_of_all_and_a_gate_fails(make_study, other, is_paired):
    generator = np.random.default_rng(6)
    found = compared(drifting(make_study, generator, "x"), drifting(make_study, generator, other, 1.03))
    fails = bool(parse_gate("slower > 2%").failing_shifts(found))
    shown = found.is_paired, found.shifts[0].difference.is_significant, fails, "took turns" in printed(found)
    assert (shown, parse_gate("faster > 2%").failing_shifts(found)) == ((is_paired,) * 4, [])
    assert changes(found) == (set(), set()), "cells are called relative to it"
    assert text_of(changed_times(found.shifts[0])).startswith("all 9 timed cells on 2 workers take 1.03")


def test_gate_fails_where_all_cells_are_a_tenth_slower_than_in_another_campaign(make_study):
    generator = np.random.default_rng(7)
    a, *others = (nine(make_study, generator, factor) for factor in (1.0, 1.1, 1.03))
    shifts = [parse_gate("slower > 5%").failing_shifts(compared(a, other)) for other in others]
    assert list(map(bool, shifts)) == [True, False]


def test_what_pairs_of_a_a_differ_by_is_part_of_every_difference_between_folders(make_study):
    generator = np.random.default_rng(9)

    def side(offset):
        study = make_study()
        for number, replicate in [*itertools.product(range(9), [0]), *itertools.product(range(4), [1])]:
            middle_s = 0.01 * np.exp(generator.normal(0, offset))
            bucketed(study, number, middle_s * np.exp(generator.normal(0, 0.002, 4)), aa_replicate=replicate)
        return study

    steady, restless = (compared(side(offset), side(offset)) for offset in (1e-6, 0.03))
    assert restless.offset_ratio > 0.02 > steady.offset_ratio
    assert changes(restless) == (set(), set())
    assert restless.detectable(restless.cells[0]) > steady.detectable(steady.cells[0])
    assert "that A/A pairs differ by" in flowing(restless)


@pytest.mark.parametrize("num_others", [0, 3, 9])
def test_detectable_ratio_is_the_smallest_that_is_found_among_all_pairs(make_study, num_others):
    generator = np.random.default_rng(num_others)
    scatter = [np.exp(generator.normal(0, 0.01, 4)) for _ in range(num_others + 1)]

    def found_with(factor):
        studies = make_study(), make_study()
        for study, own in zip(studies, (1.0, factor), strict=True):
            for number, middles in enumerate(scatter):
                bucketed(study, number, 0.01 * middles * (own if number == 0 else 1.0))
            study.add([[0.01] * 9], aggregator="tree", world_size=4)  # of one launch: no test
        return compared(*studies)

    before = found_with(1.0)
    smallest = before.detectable(before.cells[0])
    assert before.num_tests == num_others + 1
    assert smallest > 1
    for factor, is_found in ((smallest**1.01, True), (smallest**0.99, False)):
        found = found_with(factor)
        assert (found.cells[0].verdict == "slower") == is_found
        (one_launch,) = [one for one in found.cells if one.match.a["aggregator"] == "tree"]
        assert found.detectable(one_launch) is None


def test_more_launches_find_smaller_differences_and_those_beyond_all_bounds_could_find_none(make_study):
    smallest = []
    for count in (2, 3, 5, 9):
        generator = np.random.default_rng(8)
        found = compared(*[noisy(make_study, generator, num_launches=count, pairs=True) for _ in range(2)])
        smallest.append(np.median([found.detectable(cell) for cell in found.cells]))
    assert sorted(smallest, reverse=True) == smallest
    sides = ([[[one] * 9 for one in (1e-6, own)]] for own in (1e3, 2e3))
    cells = ([(*runs, {"aggregator": name, "world_size": 2}) for name in ("ring", "tree")] for runs in sides)
    found = compared(*both(make_study, *cells))
    assert (changes(found), {found.detectable(cell) for cell in found.cells}) == ((set(), set()), {None})


def test_replicates_stand_aside_and_cells_without_partner_are_named(make_study):
    generator = np.random.default_rng(0)
    a, b = noisy(make_study, generator, pairs=True), noisy(make_study, generator)
    extra = b.add([[0.1] * 12] * 3, aggregator="caffe", world_size=2)
    found = compared(a, b)
    assert len(found.cells) == len(AGGREGATORS) * len(WORLD_SIZES)
    assert ([row["cell_id"] for row in found.only_in_b], found.only_in_a) == ([extra], [])


def flowing(comparison):
    return " ".join(printed(comparison).split())


def printed(comparison):
    console = Console(file=io.StringIO(), width=80)
    for part in render_comparison(comparison):
        console.print(part)
    return console.file.getvalue()


def test_iterations_and_trainings_have_tables_and_counts_of_their_own(make_study):
    a, b = both(make_study, [([[0.0125] * 9] * 3, {"aggregator": "ring", "world_size": 2})])
    for study, factor in ((a, 1), (b, 2)):
        study.add_training([factor * one for one in (10.0, 10.1, 10.2)], aggregator="ring", world_size=2)
        study.cells.reverse()  # the first pair's kind must not decide the units of the rest
    found = compared(a, b)
    (training,) = [one for one in found.cells if one.kind == "convergence"]
    assert (training.quantity, training.verdict) == ("train_s", "slower")
    assert training.difference.ratio == pytest.approx(2, rel=0.01)
    assert [cell.given for cell in found.cells] == [found.cells[0].given] * len(found.cells)
    told = printed(found)
    iterations, trainings = told.split("time of a whole training: ")
    texts = ("A ms", "12.5", "A s ", "10.1")
    shown = [[text in table for text in texts] for table in (iterations, trainings)]
    assert shown == [[True, True, False, False], [False, False, True, True]]
    assert "time of a step: " in iterations
    assert "Of 1 timed cells of B: 1 same within 3%." in told
    assert "Of 1 trainings of B: 1 slower." in told
    assert [one["kind"] for one in found.as_dict()["cells"]] == [cell.kind for cell in found.cells]
    (failing,) = parse_gate("slower > 5%").failing(found)
    assert text_of(changed_time(failing)).startswith("a training of ring on 2 workers takes 2.00 times as")


def test_trainings_of_several_seeds_are_named_by_them(make_study):
    a, b = make_study(), make_study()
    for study, seed in itertools.product((a, b), (0, 1)):
        study.add_training([10.0, 10.1, 10.2], aggregator="ring", world_size=2, seed=seed)
    assert [cell.name for cell in compared(a, b).cells] == ["ring, seed 0", "ring, seed 1"]


RUNS = [[0.1] * 9] * 2


def test_cells_match_over_the_machines_threads_and_say_so(make_study):
    sides = ([(RUNS, {"device": "cuda", "threads": threads})] for threads in (12, 24))
    (cell,) = compared(*both(make_study, *sides)).cells
    assert cell.match.differing == {"threads": (12, 24)}
    first, second = ({**row, "device": "cpu"} for row in (cell.match.a, {**cell.match.b, "cell_id": "other"}))
    assert match_cells([first], [second])[0] == []


@pytest.mark.parametrize(("first", "second", "differing"), [
    ({}, {"augmentation": "standard"}, "the nearest ones differ in augmentation"),
    ({"batch": 64}, {"batch": 128}, "differ in local_batch, global_batch"),
])  # fmt: skip
def test_nothing_in_common_names_what_differs(make_study, first, second, differing):
    with pytest.raises(ScalingError, match=differing):
        compared(*both(make_study, [(RUNS, first)], [(RUNS, second)]))


def test_what_one_side_alone_has_is_told_by_memory_format_and_augmentation(make_study):
    more = {"augmentation": "standard", "memory_format": "channels_last"}
    found = compared(*both(make_study, [(RUNS, {}), (RUNS, more)], [(RUNS, {})]))
    (told,) = [str(one) for one in render_comparison(found) if "in A alone" in str(one)]
    assert "(mlp, channels_last, augmentation standard, done)" in " ".join(told.split())


@pytest.mark.parametrize(("text", "verdict", "more_than"), [
    ("slower > 5%", "slower", 0.05), ("slower", "slower", 0.0), ("faster>2.5 %", "faster", 0.025),
])  # fmt: skip
def test_gate_is_read(text, verdict, more_than):
    gate = parse_gate(text)
    assert (gate.verdict, gate.more_than) == (verdict, pytest.approx(more_than))


@pytest.mark.parametrize("text", ["", "slow", "slower > 5", "slower < 5%", "5%"])
def test_gate_that_is_none_says_what_is_allowed(text):
    with pytest.raises(ScalingError, match="allowed: 'slower > P%'"):
        parse_gate(text)


def test_gate_fails_on_larger_differences_only_and_tells_where_it_was_blind(make_study):
    generator = np.random.default_rng(5)
    options = {"num_launches": 5, "spread": 0.004}
    before = noisy(make_study, generator, **options)
    found = compared(before, noisy(make_study, generator, **options, slow=("ring", 2)))
    gates = [parse_gate(f"slower > {percent}%") for percent in (0.1, 5, 20)]
    assert [[cell.name for cell in gate.failing(found)] for gate in gates[1:]] == [["ring"], []]
    assert [len(gate.blind(found)) for gate in gates[::2]] == [len(found.cells) - 1, 0]


@pytest.fixture
def pair(study, tmp_path):
    """Two folders of the same cell."""
    folders = study, type(study)(tmp_path / "other")
    for one in folders:
        one.add_steps([[0.1] * 9], aggregator="ring", world_size=2)
    return [one.folder for one in folders]


def test_environments_come_first_with_every_field_that_differs(pair):
    first, other = pair
    changed = {"versions": {"torch": "3.0"}, "gpus": [{"name": "A"}, {"name": "A"}], "hostname": "elsewhere"}
    other.write_environment({**other.environment(), **changed})
    found = compare([first], [other])
    told = [(one.field, one.a, one.b, one.decides) for one in found.environment]
    assert sorted(told[:2]) == [("gpus", "none", "2 x A", True), ("versions", None, {"torch": "3.0"}, True)]
    assert told[2:] == [("hostname", None, "elsewhere", False)]
    assert compare([first], [first]).environment == []


def test_other_code_is_said_though_the_environments_are_the_same(pair):
    for one, commit in zip(pair, ("aaa", "bbb"), strict=True):
        one.write_environment({**one.environment(), "git": {"commit": commit, "dirty": True}})
    told = flowing(compare(pair[:1], pair[1:]))
    assert "the same hardware, drivers, versions and settings, but the code differs: git.commit: aaa" in told
    assert "git.changes: some against some, perhaps others" in told
