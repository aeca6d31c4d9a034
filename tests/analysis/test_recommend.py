"""Recommendations on synthetic studies whose answer is known, undecided ones among them."""

from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scaling.analysis.decisions import FEWEST
from scaling.analysis.findings import Finding
from scaling.analysis.objectives import front, parse_objective
from scaling.analysis.recommend import _names, recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table, read_study
from scaling.errors import ScalingError
from scaling.report.advice_text import recommendation_as_dict as as_dict
from scaling.report.text import text_of, title_of
from scaling.store import ResultsFolder

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
    found = {title_of(one.workload): one.choice.row for one in recommend(study.table, study.cells, "time")}
    assert [(row["aggregator"], row["augmentation"]) for row in found.values()] == [
        ("ring", None),
        ("tree", "standard"),
    ]
    plain, augmented = found
    assert plain.endswith(", augmentation none")
    assert augmented == plain.replace("augmentation none", "augmentation standard")


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


def test_a_loss_on_text_is_told_in_bits():
    lost = {"lost": 1.25, "score": "bits_per_byte", "reference": "exact aggregators"}
    told = text_of(Finding("lossy_below", (), lost))
    assert told == "lossy, and it ends 1.25 bits per byte above exact aggregators"


@pytest.mark.parametrize(("lost", "is_chosen"), [(0.02, True), (0.2, False)])
def test_with_seeds_a_lossy_aggregator_is_no_choice_where_they_say_it_is_worse(make_study, lost, is_chosen):
    """More than LARGEST_LOSS, and more than two deviations of the exact one, may be chance."""
    study = make_study()
    lossy = study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    study.add(launches(0.006), aggregator="ring", world_size=4)
    options = {"world_size": 4, "target": None}
    for seed, accuracy in enumerate((0.97, 0.98, 0.975)):
        study.add_training([5.0], accuracy=accuracy, aggregator="ring", seed=seed, **options)
    for seed, accuracy in enumerate((0.96, 1.0, 0.98)):
        ended = accuracy - lost
        study.add_training([3.0], accuracy=ended, aggregator="one_bit", lossy=True, seed=seed, **options)
    found = only(study)
    assert (found.choice.row["cell_id"] == lossy) == is_chosen
    if not is_chosen:
        (reason,) = (text_of(one.reason) for one in found.excluded if one.reason.kind == "lossy_below")
        assert reason == "lossy, and it ends 19.50% below the accuracy of exact aggregators"


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
    reasons = [text_of(one.reason) for one in found.excluded]
    assert any("no exact training with that momentum and batch" in reason for reason in reasons)


@pytest.mark.parametrize(("accuracy", "is_chosen"), [(0.975, True), (0.95, False)])
def test_without_a_target_a_lossy_aggregator_has_to_keep_the_accuracy(make_study, accuracy, is_chosen):
    study = make_study()
    lossy = study.add(launches(0.002), aggregator="one_bit", world_size=4, lossy=True)
    study.add(launches(0.006), aggregator="ring", world_size=4)
    options = {"world_size": 4, "target": None}
    study.add_training([3.0], accuracy=accuracy, aggregator="one_bit", lossy=True, **options)
    study.add_training([5.0], accuracy=0.98, aggregator="ring", **options)
    assert (only(study).choice.row["cell_id"] == lossy) == is_chosen


def of_two_that_differ_by_six_percent(study, scatter):
    generator = np.random.default_rng(6)
    for name, middle_s in (("ring", 0.0100), ("tree", 0.0106)):
        middles = middle_s * np.exp(scatter * generator.permutation([-1, 0, 1]))
        study.add([[one] * 12 for one in middles], aggregator=name, world_size=4)
    return only(study)


def test_launches_that_scatter_too_much_ask_for_an_idle_machine_not_for_hundreds_of_repeats(make_study):
    found = of_two_that_differ_by_six_percent(make_study(), 0.12)
    assert (found.state, found.more_repeats, found.is_noisy) == ("undecided", None, True)
    assert "scatter too much to decide: measure on an idle machine" in text_of(found.finding)


def test_choice_that_the_launches_do_not_show_is_undecided_with_the_repeats_that_would_tell(make_study):
    found = of_two_that_differ_by_six_percent(make_study(), 0.03)
    assert found.state == "undecided"
    assert [one.candidate.row["aggregator"] for one in found.rivals] == ["tree"]
    assert found.more_repeats > 0
    assert f"about {found.more_repeats} more repeats would decide" in text_of(found.finding)
    assert "at most" in text_of(found.cost)


def test_twice_as_many_repeats_as_asked_for_do_tell(make_study):
    for count, state in ((3, "undecided"), (40, "decided")):
        study = make_study()
        for name, middle_s in (("ring", 0.0100), ("tree", 0.0106)):
            study.add(launches(middle_s, count=count, spread=0.04), aggregator=name, world_size=4)
        assert only(study).state == state


@pytest.mark.parametrize(("spread", "state"), [(0.001, "tie"), (0.1, "undecided")])
def test_no_gap_is_a_tie_where_that_is_shown_and_asks_for_no_repeats(make_study, spread, state):
    study = make_study()
    pattern = np.array([-1, 0, 1])
    for name, signs in (("ring", 1), ("tree", -1)):
        middles = 0.010 * np.exp(spread * signs * pattern)
        study.add([[one] * 12 for one in middles], aggregator=name, world_size=4)
    found = only(study)
    assert (found.state, found.more_repeats) == (state, None)
    text = text_of(found.finding)
    assert ("either ring on 4 workers or tree on 4 workers, within 3%" in text) == (state == "tie")
    assert ("either will do" in text) == (state == "undecided")


def test_launches_that_scatter_together_decide_what_their_intervals_do_not(make_study):
    study = make_study()
    together = np.exp(0.1 * np.array([-1, 0, 1]))
    for name, middle_s in (("ring", 0.0100), ("tree", 0.0106)):
        study.add([[one] * 12 for one in middle_s * together], aggregator=name, world_size=4)
    found = only(study)
    assert found.choice.high > found.runner_up.low
    assert found.state == "decided"


def test_how_many_workers_and_which_aggregator_are_two_decisions(make_study):
    study = make_study()
    study.add(launches(0.020))
    pattern = np.array([-1, 0, 1])
    for name, middle_s, spread in (
        ("ring", 0.0100, 0.001),
        ("tree", 0.0100, -0.001),
        ("caffe", 0.015, 0.001),
    ):
        study.add([[one] * 9 for one in middle_s * np.exp(spread * pattern)], aggregator=name, world_size=4)
    found = only(study)
    assert found.state == "tie"
    aggregator = as_dict(found)["aggregator"]
    assert as_dict(found)["workers"] == {"state": "best", "choice": 4, "rivals": [], "others": [1]}
    assert {aggregator["choice"], *aggregator["rivals"]} == {"ring", "tree"}
    assert (aggregator["state"], aggregator["others"]) == ("tie", ["caffe"])


def test_unequal_launches_are_compared_with_what_both_have(make_study):
    study = make_study()
    study.add(launches(0.020, count=2))
    study.add(launches(0.010, count=5), aggregator="ring", world_size=4)
    study.add(launches(0.014, count=3), aggregator="tree", world_size=4)
    found = only(study)
    assert (found.state, found.choice.row["aggregator"]) == ("decided", "ring")


@pytest.mark.parametrize("factor", [1.03, 2.0])
def test_one_launch_decides_nothing_and_says_so(make_study, factor):
    study = make_study()
    study.add(launches(0.010, count=1), aggregator="ring", world_size=4)
    study.add(launches(0.010 * factor, count=1), aggregator="tree", world_size=4)
    found = only(study)
    assert (found.state, found.more_repeats) == ("one_launch", FEWEST - 1)
    assert "one launch, no verdict. Fastest so far: ring" in text_of(found.finding)


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
    (changed,) = [one for one in found if title in title_of(one.workload)]
    assert (changed.state, changed.choice.row["cell_id"]) == ("decided", kept)


def test_efficiency_on_the_bound_is_undecided(make_study):
    study = make_study()
    study.add(launches(0.016, spread=0.02))
    study.add(launches(0.010, spread=0.02), aggregator="ring", world_size=2)
    found = only(study, "efficiency >= 0.8")
    assert found.state == "undecided"
    assert "may be above or below the bound" in text_of(found.finding)


def test_gpu_hours_count_the_workers(make_study):
    study = make_study()
    cheap = study.add(launches(0.010), aggregator="ring", world_size=2)
    study.add(launches(0.006), aggregator="ring", world_size=4)
    assert only(study).choice.row["world_size"] == 4
    found = only(study, "gpu-hours")
    assert found.choice.row["cell_id"] == cheap
    assert found.choice.value == pytest.approx(0.010 * 2 / 64 / 3600 * 1e9, rel=0.01)


def test_least_memory_is_that_of_the_fullest_gpu_and_of_the_launch_that_took_most(make_study):
    study = make_study()
    peaks = {"memory_peak_bytes": [3e9, 4e9]}
    sharded = study.add(launches(0.009), aggregator="zero1", world_size=2, summary=peaks)
    study.add(launches(0.006), aggregator="ring", world_size=2, summary={"memory_peak_bytes": [2e9, 5e9]})
    study.add(launches(0.001), aggregator="tree", world_size=2, summary={"memory_peak_bytes": [None, None]})
    choice = only(study, "memory").choice
    assert (choice.row["cell_id"], choice.value) == (sharded, 4.0)


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
    assert (found.state, found.more_repeats) == ("one_launch", FEWEST - 1)


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
    assert [one.choice.row["world_size"] for one in found if one.workload["scaling"] == "weak"] == [4]
    assert len(found) == 2


@pytest.mark.parametrize("text", ["speed", "efficiency", "efficiency >= 80", "efficiency <= 0.8"])
def test_objective_that_is_none_says_what_is_allowed(text):
    with pytest.raises(ScalingError, match=r"allowed: 'time'|a ratio such as 0\.8"):
        parse_objective(text)


def test_ties_in_memory_are_broken_by_time(study):
    gpu = {"world_size": 2, "device": "cuda"}
    for name, step_s, gigabytes in (
        ("slow", 0.107, 15.0),
        ("fast", 0.0782, 15.1),
        ("fastest", 0.078, 15.4),
        ("large", 0.05, 16.1),
    ):
        steps = [[step_s * (1 + 0.0005 * launch)] * 6 for launch in range(3)]
        memory = {"memory_peak_bytes": [int(gigabytes * 1e9)] * 2}
        study.add_steps(steps, aggregator=name, summary=memory, **gpu)
    cells = read_cells(study.folder)
    (found,) = recommend(build_table("", cells), cells, "memory")
    assert found.choice.row["aggregator"] == "fast"
    assert found.state == "tie"
    (found,) = recommend(build_table("", cells), cells, "time")
    assert found.choice.row["aggregator"] == "large"


def test_front_takes_the_faster_of_two_that_are_the_same_and_leaves_out_what_is_beaten():
    points = [(10.0, 9.0), (10.2, 5.0), (11.0, 6.0), (12.0, 4.95), (13.0, 3.0)]
    values = itemgetter(0), itemgetter(1)
    assert front(points, *values, 0.03) == [(10.2, 5.0), (13.0, 3.0)]
    assert front(points, *values) == [(10.0, 9.0), (10.2, 5.0), (12.0, 4.95), (13.0, 3.0)]


def test_memory_is_decided_by_time_among_equals_and_the_trade_off_is_said():
    folder = ResultsFolder(Path(__file__).parents[2] / "results/reference/sharded-2xh100")
    study = read_study(folder)
    small, medium = recommend(study.table, study.cells, "memory")
    said = text_of(small.finding)
    assert "use zero2 on 2 GPUs: 15.10 GB" in said
    assert "the others: fsdp2 on 2 GPUs (99.6 ms), zero1 on 2 GPUs (78.4 ms)." in said, (
        "neither with a link that makes no difference"
    )
    assert small.trade_off is None, "zero2 is as fast as any"
    points = medium.trade_off.values["points"]
    assert [one["short"].partition(" ")[0] for one in points] == ["fsdp2", "zero2", "zero1", "all_reduce"]
    assert (
        "fsdp2 on 2 GPUs, peer access on (14.5; 165), zero2 on 2 GPUs, peer access on (15.0; 112)"
        in text_of(medium.trade_off)
    )


def test_what_is_ruled_out_is_told_from_the_choice_and_from_one_another():
    def named(*parts):
        return SimpleNamespace(parts=parts, name=", ".join(parts))

    ruled_out = [named("ddp on 2 GPUs", "host-only"), named("zero1 on 2 GPUs"), named("one worker", "eager")]
    assert _names(ruled_out, "ddp on 2 GPUs") == ["ddp on 2 GPUs, host-only", "zero1 on 2 GPUs", "one worker"]
