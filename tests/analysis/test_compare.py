"""Comparing two studies: planted differences are found, and nothing else."""

import io

import numpy as np
import pytest
from rich.console import Console

from scaling.analysis.compare import compare, compare_tables
from scaling.analysis.gates import changed_time, parse_gate
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
    return compare_tables(a.table, a.cells, b.table, b.cells, level)


def verdicts(comparison, *wanted):
    return {
        (cell.match.a["aggregator"], cell.match.a["world_size"])
        for cell in comparison.cells
        if cell.verdict in wanted
    }


def test_few_of_100_studies_of_the_same_raise_a_false_alarm(make_study):
    generator, alarms = np.random.default_rng(2026), 0
    for _ in range(100):
        first, second = noisy(make_study, generator), noisy(make_study, generator)
        alarms += bool(verdicts(compared(first, second), "faster", "slower"))
    assert alarms <= 5


def test_few_of_100_studies_with_ten_launches_raise_a_false_alarm(make_study, monkeypatch):
    monkeypatch.setattr("scaling.measure.ratios.BOOTSTRAP_RESAMPLES", 2)  # the test is Welch's all the same
    monkeypatch.setattr("scaling.measure.statistics.BOOTSTRAP_RESAMPLES", 2)
    generator, alarms = np.random.default_rng(11), 0
    for _ in range(100):
        ratios = compared_ratios(generator)
        alarms += min(ratios) < 0.02
    assert alarms <= 5


def compared_ratios(generator):
    """Corrected p values of 15 pairs of ten launches."""
    from scaling.measure.ratios import adjusted, estimate_ratio

    values = [np.exp(generator.normal(0, 0.02, (2, 10))) for _ in range(15)]
    return adjusted([estimate_ratio([[x] for x in a], [[x] for x in b]).p_value for a, b in values])


@pytest.mark.parametrize("seed", range(10))
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


def test_with_one_launch_a_verdict_is_within_it_and_needs_an_a_a_pair(make_study):
    generator = np.random.default_rng(1)
    options = {"num_launches": 1, "spread": 0.0}
    before = noisy(make_study, generator, **options)
    after = noisy(make_study, generator, **options, slow=("tree", 4), slow_factor=1.3)
    without = next(cell for cell in compared(before, after).cells if cell.verdict == "undecided")
    assert without.reason == "one_launch_no_pair"
    with_pair = compared(
        noisy(make_study, generator, **options, pairs=True),
        noisy(make_study, generator, **options, pairs=True, slow=("tree", 4), slow_factor=1.3),
    )
    assert verdicts(with_pair, "slower") == {("tree", 4)}
    assert all(cell.within_one_launch for cell in with_pair.cells)
    assert with_pair.num_tests == 0


def test_difference_of_three_percent_in_one_launch_stays_undecided(make_study):
    a, b = make_study(), make_study()
    for study, factor in ((a, 1.0), (b, 1.03)):
        for replicate in (0, 1):
            study.add([[0.01 * factor] * 20], aggregator="ring", world_size=2, aa_replicate=replicate)
    (cell,) = compared(a, b).cells
    assert (cell.verdict, cell.ratio.ratio) == ("undecided", pytest.approx(1.03))


def steady(middle_s, num_launches):
    """Launches that differ by a millionth."""
    middles = [middle_s * (1 + 1e-6 * number) for number in range(num_launches)]
    return [[one * (1 + 1e-7 * sample) for sample in range(12)] for one in middles]


def with_floor(make_study, floor, num_launches, tree_s=0.01):
    """A study whose A/A pair differs by `floor` of its mean, and a cell of tree."""
    study = make_study()
    for replicate, middle_s in enumerate((0.01 * (1 - floor / 2), 0.01 * (1 + floor / 2))):
        study.add(steady(middle_s, num_launches), aggregator="ring", world_size=4, aa_replicate=replicate)
    study.add(steady(tree_s, num_launches), aggregator="tree", world_size=4)
    return study


@pytest.mark.parametrize("num_launches", [1, 3])
@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
@pytest.mark.parametrize("floors", [(0.02, 0.12), (0.12, 0.02), (0.02, 0.08)])
def test_difference_has_to_be_above_the_larger_noise_floor_of_both_studies(
    make_study, num_launches, factor, floors
):
    a = with_floor(make_study, floors[0], num_launches)
    b = with_floor(make_study, floors[1], num_launches, 0.01 * factor)
    tree = next(cell for cell in compared(a, b).cells if cell.match.a["aggregator"] == "tree")
    assert tree.noise_floor == pytest.approx(max(floors), rel=1e-4)
    if max(floors) > 0.1:
        assert (tree.verdict, tree.reason) == ("indistinguishable", "below_noise_floor")
    else:
        assert (tree.verdict, tree.reason) == ("slower" if factor > 1 else "faster", None)


def test_one_launch_needs_five_percent_however_low_the_noise_floor_is(make_study):
    for factor, verdict in ((1.049, "undecided"), (1.051, "slower"), (1 / 1.049, "undecided")):
        a, b = with_floor(make_study, 0.001, 1), with_floor(make_study, 0.001, 1, 0.01 * factor)
        tree = next(cell for cell in compared(a, b).cells if cell.match.a["aggregator"] == "tree")
        assert tree.verdict == verdict


@pytest.mark.parametrize("num_others", [0, 3, 9])
def test_detectable_ratio_is_the_smallest_that_is_found_among_all_pairs(make_study, num_others):
    generator = np.random.default_rng(num_others)
    scatter = {size: np.exp(generator.normal(0, 0.01, 4)) for size in range(1, num_others + 2)}

    def study(factor):
        made = make_study()
        for size, middles in scatter.items():
            times = middles * (factor if size == 1 else 1.0)
            made.add([[0.01 * one] * 9 for one in times], aggregator="ring", world_size=size, batch=5040)
        made.add([[0.01] * 9], aggregator="tree", world_size=2, batch=5040)  # of one launch: no test
        return made

    before = compared(study(1.0), study(1.0))
    assert before.num_tests == num_others + 1
    planted = next(cell for cell in before.cells if cell.match.a["world_size"] == 1)
    smallest = before.detectable(planted)
    assert smallest > 1
    for factor, verdict in ((smallest**1.01, "slower"), (smallest**0.99, "indistinguishable")):
        found = compared(study(1.0), study(factor))
        cell = next(one for one in found.cells if one.match.a["world_size"] == 1)
        assert cell.verdict == verdict
        assert found.detectable(cell) == pytest.approx(smallest)
        one_launch = next(one for one in found.cells if one.match.a["aggregator"] == "tree")
        assert found.detectable(one_launch) is None


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
    assert cell.ratio.ratio == pytest.approx(2, rel=0.01)


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
    assert {cell.group for cell in found.cells} == {found.cells[0].group}
    told = printed(found)
    iterations, trainings = told.split("time of a whole training: ")
    assert "time of an iteration: " in iterations
    assert "A ms" in iterations
    assert "12.5" in iterations
    assert "10.1" not in iterations
    assert "A s " in trainings
    assert "12.5" not in trainings
    assert "Of 1 timed cells of B: 1 indistinguishable." in told
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
    with pytest.raises(ScalingError, match="the most alike ones differ in augmentation"):
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
    found = compare(study.folder, other.folder)
    told = {one.field: (one.a, one.b, one.decides) for one in found.environment}
    assert told == {
        "gpus": ("none", "2 x A", True),
        "versions": (None, {"torch": "3.0"}, True),
        "hostname": (None, "elsewhere", False),
    }
    assert [one.decides for one in found.environment] == [True, True, False]
    assert compare(study.folder, study.folder).environment == []
