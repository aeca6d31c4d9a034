"""Recommendations on synthetic studies whose answer is known, undecided ones among them."""

import numpy as np
import pytest
from scipy import special

from scaling.analysis.objectives import parse_objective
from scaling.analysis.recommend import recommend
from scaling.analysis.repeats import FEWEST, launches_needed
from scaling.errors import ScalingError
from scaling.report.text import text_of

GENERATOR_SEED = 4


def launches(middle_s, *, count=5, spread=0.003, seed=GENERATOR_SEED, samples=20):
    generator = np.random.default_rng([seed, int(middle_s * 1e7), count])
    middles = middle_s * np.exp(generator.normal(0, spread, count))
    return [(one * np.exp(generator.normal(0, 0.001, samples))).tolist() for one in middles]


def only(study, objective="time"):
    (found,) = recommend(study.table, study.cells, objective)
    return found


def test_clearly_fastest_setting_is_recommended_with_interval_and_runner_up(make_study):
    study = make_study()
    study.add(launches(0.020))
    study.add(launches(0.008), aggregator="tree", world_size=4)
    best = study.add(launches(0.006), aggregator="all_reduce", world_size=4)
    found = only(study)
    assert (found.state, found.choice.row["cell_id"]) == ("decided", best)
    assert found.choice.low < 6.0 * 1.01 < found.choice.high * 1.02
    assert found.runner_up.row["aggregator"] == "tree"
    assert found.rivals == []
    assert found.more_repeats is None
    assert "costs 3" in text_of(found.cost), "a third more: 8 ms against 6 ms"


def test_control_arm_is_never_recommended_though_it_is_the_fastest(make_study):
    study = make_study()
    study.add(launches(0.001), aggregator="none", world_size=4)
    study.add(launches(0.001), aggregator="no_op", world_size=4, step="overlapped")
    best = study.add(launches(0.006), aggregator="ring", world_size=4)
    found = only(study)
    assert found.choice.row["cell_id"] == best
    assert sum("control arm" in text_of(one.reason) for one in found.excluded) == 2


def test_augmented_steps_are_a_workload_of_their_own(make_study):
    study = make_study()
    for name, plain_s, augmented_s in (("ring", 0.005, 0.009), ("tree", 0.007, 0.008)):
        study.add(launches(plain_s), aggregator=name, world_size=4)
        study.add(launches(augmented_s), aggregator=name, world_size=4, augmentation="standard")
    found = {one.workload: one.choice.row for one in recommend(study.table, study.cells, "time")}
    assert [(row["aggregator"], row["augmentation"]) for row in found.values()] == [
        ("ring", None),
        ("tree", "standard"),
    ]
    plain, augmented = found
    assert augmented == f"{plain}, augmentation standard"


def test_one_worker_wins_where_more_do_not_help(make_study):
    study = make_study()
    single = study.add(launches(0.004))
    study.add(launches(0.004), aggregator="ring")
    study.add(launches(0.009), aggregator="ring", world_size=2)
    found = only(study)
    assert found.choice.row["cell_id"] == single
    assert found.choice.name == "1 worker, nothing to exchange"
    assert found.state == "decided", "other aggregators on one worker are the same and no rivals"


def test_lossy_aggregator_without_measured_accuracy_is_left_out(make_study):
    study = make_study()
    study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    exact = study.add(launches(0.006), aggregator="ring", world_size=4)
    found = only(study)
    assert found.choice.row["cell_id"] == exact
    assert any("accuracy was not measured" in text_of(one.reason) for one in found.excluded)


@pytest.mark.parametrize(("accuracy", "is_chosen"), [(0.98, True), (0.5, False)])
def test_lossy_aggregator_is_a_choice_once_it_reached_the_target(make_study, accuracy, is_chosen):
    study = make_study()
    lossy = study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    study.add(launches(0.006), aggregator="ring", world_size=4)
    study.add_training([3.0], accuracy=accuracy, aggregator="one_bit", world_size=4, lossy=True)
    assert (only(study).choice.row["cell_id"] == lossy) == is_chosen


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"momentum": 0.0}, "with momentum 0.0 alone, not with momentum 0.9"),
        ({"batch": 32}, "with global_batch 32 alone, not with global_batch 64"),
    ],
)
def test_lossy_aggregator_is_no_choice_where_only_another_update_held_the_accuracy(make_study, recipe, said):
    study = make_study()
    study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    exact = study.add(launches(0.006), aggregator="ring", world_size=4)
    study.add_training([3.0], aggregator="one_bit", world_size=4, lossy=True, **recipe)
    found = only(study)
    assert found.choice.row["cell_id"] == exact
    assert any(said in text_of(one.reason) for one in found.excluded)


@pytest.mark.parametrize("recipe", [{"momentum": 0.0}, {"batch": 32}])
def test_lossy_accuracy_is_not_held_against_an_exact_one_of_another_update(make_study, recipe):
    study = make_study()
    study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    exact = study.add(launches(0.006), aggregator="ring", world_size=4)
    study.add_training([3.0], accuracy=0.8, target=None, aggregator="one_bit", world_size=4, lossy=True)
    study.add_training([5.0], accuracy=0.8, target=None, aggregator="ring", world_size=4, **recipe)
    found = only(study)
    assert found.choice.row["cell_id"] == exact
    assert any(
        "no exact training by that momentum and batch" in text_of(one.reason) for one in found.excluded
    )


@pytest.mark.parametrize(("accuracy", "is_chosen"), [(0.975, True), (0.95, False)])
def test_without_a_target_a_lossy_aggregator_has_to_keep_the_accuracy(make_study, accuracy, is_chosen):
    study = make_study()
    lossy = study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    study.add(launches(0.006), aggregator="ring", world_size=4)
    options = {"world_size": 4, "target": None}
    study.add_training([3.0], accuracy=accuracy, aggregator="one_bit", lossy=True, **options)
    study.add_training([5.0], accuracy=0.98, aggregator="ring", **options)
    assert (only(study).choice.row["cell_id"] == lossy) == is_chosen


def test_overlapping_intervals_are_undecided_with_the_repeats_that_would_tell(make_study):
    study = make_study()
    a = [[0.0100], [0.0101], [0.0102]]
    b = [[0.0101], [0.0102], [0.0103]]
    study.add([one * 12 for one in a], aggregator="ring", world_size=4)
    study.add([one * 12 for one in b], aggregator="tree", world_size=4)
    found = only(study)
    assert found.state == "undecided"
    assert [one.candidate.row["aggregator"] for one in found.rivals] == ["tree"]
    needed = next(
        n for n in range(3, 200) if special.stdtrit(n - 1, 0.975) * 0.2 / np.sqrt(n) < 0.1 * (1 - 1e-9)
    )
    assert found.more_repeats == needed - 3
    assert f"about {needed - 3} more repeats would tell" in text_of(found.finding)
    assert "at most" in text_of(found.cost)


def test_twice_as_many_repeats_as_asked_for_do_tell(make_study):
    for count, state in ((3, "undecided"), (40, "decided")):
        study = make_study()
        for name, middle_s in (("ring", 0.0100), ("tree", 0.0102)):
            study.add(launches(middle_s, count=count, spread=0.01), aggregator=name, world_size=4)
        assert only(study).state == state


def test_difference_below_the_noise_floor_is_undecided_and_no_repeats_would_tell(make_study):
    study = make_study()
    study.add(launches(0.0100, spread=0.0001), aggregator="ring", world_size=4)
    study.add(launches(0.0104, spread=0.0001), aggregator="ring", world_size=4, aa_replicate=1)
    study.add(launches(0.0102, spread=0.0001), aggregator="tree", world_size=4)
    found = only(study)
    assert (found.state, found.more_repeats) == ("undecided", None)
    assert "noise floor" in text_of(found.finding)
    assert "either will do" in text_of(found.finding)
    assert text_of(found.cost).startswith("Choosing it wrongly may cost as much as the noise floor, ")


@pytest.mark.parametrize(("factor", "state"), [(1.03, "undecided"), (1.3, "decided")])
def test_one_launch_decides_large_differences_only_and_says_so(make_study, factor, state):
    study = make_study()
    study.add(launches(0.010, count=1), aggregator="ring", world_size=4)
    study.add(launches(0.010 * factor, count=1), aggregator="tree", world_size=4)
    found = only(study)
    assert found.state == state
    assert "one launch" in text_of(found.finding)
    assert found.more_repeats == (FEWEST - 1 if state == "undecided" else None)


def test_efficiency_is_the_shortest_time_that_keeps_it(make_study):
    study = make_study()
    study.add(launches(0.016))
    kept = study.add(launches(0.0089), aggregator="ring", world_size=2)
    study.add(launches(0.0080), aggregator="ring", world_size=4)
    found = only(study, "efficiency >= 0.8")
    assert (found.state, found.choice.row["cell_id"]) == ("decided", kept)
    assert any("efficiency below 0.8" in text_of(one.reason) for one in found.excluded)


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"augmentation": "standard"}, "augmentation standard"),
        ({"batch_norm": "sync"}, "batch norm sync"),
        ({"batch": 128}, "global batch 128"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_efficiency_rests_on_the_noise_of_its_own_baseline_alone(make_study, changes, title):
    study = make_study()
    study.add(launches(0.016, spread=0.5))
    study.add(launches(0.016), **changes)
    kept = study.add(launches(0.0089), aggregator="ring", world_size=2, **changes)
    found = recommend(study.table, study.cells, "efficiency >= 0.8")
    (changed,) = [one for one in found if title in one.workload]
    assert (changed.state, changed.choice.row["cell_id"]) == ("decided", kept)


def test_efficiency_on_the_bound_is_undecided(make_study):
    study = make_study()
    study.add(launches(0.016, spread=0.02))
    study.add(launches(0.010, spread=0.02), aggregator="ring", world_size=2)
    found = only(study, "efficiency >= 0.8")
    assert found.state == "undecided"
    assert "may lie on either side" in text_of(found.finding)


def test_gpu_hours_count_the_workers(make_study):
    study = make_study()
    cheap = study.add(launches(0.010), aggregator="ring", world_size=2)
    study.add(launches(0.006), aggregator="ring", world_size=4)
    assert only(study).choice.row["world_size"] == 4
    found = only(study, "gpu-hours")
    assert found.choice.row["cell_id"] == cheap
    assert found.choice.value == pytest.approx(0.010 * 2 / 64 / 3600 * 1e9, rel=0.01)


def test_energy_is_of_the_gpus_and_uncertain_by_the_counters_steps(make_study):
    study = make_study()

    def gpus(joules, window_s):
        return {"gpu": [{"energy_per_sample_j": joules, "window_s": window_s}] * 2}

    little = study.add(launches(0.010), aggregator="ring", world_size=2, summary=gpus(0.2, 10))
    study.add(launches(0.006), aggregator="tree", world_size=2, summary=gpus(0.3, 10))
    found = only(study, "energy")
    assert (found.state, found.choice.row["cell_id"]) == ("decided", little)
    assert found.choice.low == pytest.approx(200 * 0.99)
    short = make_study()
    short.add(launches(0.010), aggregator="ring", world_size=2, summary=gpus(0.20, 0.5))
    short.add(launches(0.006), aggregator="tree", world_size=2, summary=gpus(0.25, 0.5))
    assert only(short, "energy").state == "undecided"


def test_time_to_accuracy_needs_the_target_and_several_trainings(make_study):
    study = make_study()
    fast = study.add_training([5.0, 5.1, 5.2], aggregator="ring", world_size=4)
    study.add_training([9.0, 9.1, 9.2], aggregator="tree", world_size=4)
    study.add_training([1.0, 1.1, 1.2], accuracy=0.9, aggregator="one_bit", world_size=4, lossy=True)
    found = only(study, "time-to-accuracy")
    assert (found.state, found.choice.row["cell_id"]) == ("decided", fast)
    assert found.choice.value == pytest.approx(5.1)
    assert any("not reached" in text_of(one.reason) for one in found.excluded)
    once = make_study()
    once.add_training([5.0], aggregator="ring", world_size=4)
    once.add_training([9.0], aggregator="tree", world_size=4)
    found = only(once, "time-to-accuracy")
    assert (found.state, found.more_repeats) == ("undecided", FEWEST - 1)


@pytest.mark.parametrize(
    "other", [{"momentum": 0.0}, {"weight_decay": 0.1}, {"warmup_epochs": 5.0}, {"batch_norm": "sync"}]
)
def test_single_workers_of_different_recipes_are_two_choices_which_the_name_tells(make_study, other):
    study = make_study()
    ((name, value),) = other.items()
    study.add_training([9.0, 9.1, 9.2], accuracy=0.5, aggregator="all_reduce", world_size=1, **other)
    reached = study.add_training([5.0, 5.1, 5.2], aggregator="all_reduce", world_size=1)
    found = only(study, "time-to-accuracy")
    assert found.choice.row["cell_id"] == reached
    (left_out,) = found.excluded
    assert f"{name} {value}" in left_out.name
    assert left_out.reason.kind == "target_missed"


def test_failed_cells_are_left_out_with_their_reason_and_nothing_measured_is_said(make_study):
    study = make_study()
    study.add([], aggregator="ring", world_size=4, state="failed")
    found = only(study)
    assert found.state == "none"
    assert any(text_of(one.reason).startswith("failed") for one in found.excluded)
    assert recommend(make_study().table, [], "time") == []


def test_workloads_are_recommended_one_by_one_and_weak_scaling_by_the_sample(make_study):
    study = make_study()
    study.add(launches(0.010), aggregator="ring", world_size=2, scaling="weak")
    study.add(launches(0.011), aggregator="ring", world_size=4, scaling="weak")
    study.add(launches(0.004), aggregator="ring", world_size=2, model="other")
    found = recommend(study.table, study.cells)
    assert [one.choice.row["world_size"] for one in found if "weak" in one.workload] == [4]
    assert len(found) == 2


@pytest.mark.parametrize("text", ["speed", "efficiency", "efficiency >= 80", "efficiency <= 0.8"])
def test_objective_that_is_none_says_what_is_allowed(text):
    with pytest.raises(ScalingError, match=r"allowed: 'time'|a ratio such as 0\.8"):
        parse_objective(text)


def test_launches_needed_grow_with_the_square_of_the_spread():
    few, many = launches_needed(1.0, [0.5, 0.5]), launches_needed(1.0, [1.5, 1.5])
    assert few < many
    assert launches_needed(1e-9, [1.0]) is None
    assert launches_needed(5.0, [0.01]) == FEWEST


def test_floor_of_a_busy_machine_is_no_reason_to_take_either(make_study):
    study = make_study()
    study.add(launches(0.010), aggregator="ring", world_size=4)
    study.add(launches(0.020), aggregator="ring", world_size=4, aa_replicate=1)
    study.add(launches(0.014), aggregator="tree", world_size=4)
    found = only(study)
    assert (found.state, found.more_repeats) == ("undecided", None)
    assert "either will do" not in text_of(found.finding)
    assert "a quieter machine" in text_of(found.finding)


def pair_and_another(study, floor, other_s, *, own_step="eager", step="eager", other_floor=None):
    """An A/A pair of 10 ms that differs by `floor` of its mean, and another candidate."""

    def add(middle_s, **cell):
        middles = [middle_s * (1 + 1e-6 * number) for number in range(4)]
        study.add([[one] * 12 for one in middles], world_size=4, **cell)

    for name, middle_s, own, difference in (
        ("ring", 0.010, own_step, floor), ("tree", other_s, step, other_floor)
    ):  # fmt: skip
        add(middle_s, aggregator=name, step=own)
        if difference is not None:
            further_s = middle_s * (2 + difference) / (2 - difference)  # their difference over their mean
            add(further_s, aggregator=name, step=own, aa_replicate=1)


@pytest.mark.parametrize("floor", [0.02, 0.4])
@pytest.mark.parametrize(("part", "state"), [(0.98, "undecided"), (1.02, "decided")])
def test_candidates_are_distinguished_from_the_noise_floor_on(make_study, floor, part, state):
    study, difference = make_study(), part * floor
    pair_and_another(study, floor, 0.010 * (2 + difference) / (2 - difference))
    found = only(study)
    assert (found.state, found.choice.row["aggregator"]) == (state, "ring")


@pytest.mark.parametrize("floors", [(0.02, 0.2), (0.2, 0.02)])
def test_larger_of_two_noise_floors_holds_for_candidates_of_different_steps(make_study, floors):
    study = make_study()
    pair_and_another(study, floors[0], 0.0115, step="overlapped", other_floor=floors[1])
    found = only(study)
    assert (found.state, found.choice.row["aggregator"]) == ("undecided", "ring")
    assert found.choice.row["noise_floor"] == pytest.approx(floors[0], rel=1e-3)
    assert found.rivals[0].candidate.row["noise_floor"] == pytest.approx(floors[1], rel=1e-3)
    assert "as the noise floor, 20%." in text_of(found.cost)


@pytest.mark.parametrize(("factor", "state"), [(1.04, "undecided"), (1.06, "decided")])
def test_one_launch_needs_five_percent_without_a_noise_floor(make_study, factor, state):
    study = make_study()
    for name, middle_s in (("ring", 0.010), ("tree", 0.010 * factor)):
        study.add([[middle_s * (1 + 1e-6 * n) for n in range(20)]], aggregator=name, world_size=4)
    assert only(study).state == state


@pytest.mark.parametrize("spreads", [[0.5], [0.3, 0.2], [1.0, 2.0]])
def test_launches_needed_are_the_fewest_by_students_quantiles(spreads):
    from scipy import stats

    number = launches_needed(1.0, spreads)

    def half_widths(launches):
        return stats.t.ppf(0.975, launches - 1) * sum(spreads) / np.sqrt(launches)

    assert half_widths(number) < 1.0 <= half_widths(number - 1)
