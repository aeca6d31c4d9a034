"""Recommendations on synthetic studies whose answer is known, undecided ones among them."""

from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scaling.aggregators.one_bit_adam import OneBitAdam
from scaling.analysis.columns import aggregator_name, to_rows
from scaling.analysis.decisions import FEWEST
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.objectives import front, parse_objective
from scaling.analysis.recommend import _names, recommend
from scaling.analysis.seed_noise import Trainings
from scaling.analysis.summary import read_study
from scaling.axes import OWN_ADAM, Shared, agree, as_trained
from scaling.errors import ScalingError
from scaling.report.advice_text import recommendation_as_dict as as_dict
from scaling.report.text import text_of, title_of
from scaling.store import ResultsFolder

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def launches(middle_s, *, count=5, spread=0.003):
    generator = np.random.default_rng([4, int(middle_s * 1e7), count])
    middles = middle_s * np.exp(generator.normal(0, spread, count))
    return [(one * np.exp(generator.normal(0, 0.001, 20))).tolist() for one in middles]


def on(world_size, aggregator="ring", **more):
    return {"aggregator": aggregator, "world_size": world_size, **more}


LOSSY = on(4, "one_bit", lossy=True)


def fill(study, *cells, **more):
    """Adds cells of (seconds a step, variables); their ids."""
    return [study.add(launches(step_s, **more), **cell) for step_s, cell in cells]


def patterned(study, *cells):
    """Adds cells on 4 workers of (aggregator, seconds a step, scatter), whose three launches scatter so."""
    for name, middle_s, scatter in cells:
        middles = middle_s * np.exp(scatter * np.array([-1, 0, 1]))
        study.add([[one] * 12 for one in middles], **on(4, name))


def only(study, objective="time"):
    (found,) = recommend(study.table, study.cells, objective)
    return found


def reasons(found):
    return "; ".join(text_of(one.reason) for one in found.excluded)


def test_clearly_fastest_setting_is_recommended_with_interval_and_runner_up(timed):
    *_, best = fill(timed, (0.020, {}), (0.008, on(4, "tree")), (0.006, on(4, "all_reduce")))
    found = only(timed)
    assert (found.state, found.choice.row["cell_id"]) == ("decided", best)
    assert found.choice.low < 6.0 * 1.01 < found.choice.high * 1.02
    assert (found.runner_up.row["aggregator"], found.rivals, found.more_repeats) == ("tree", [], None)
    assert "costs 3" in text_of(found.cost), "a third more: 8 ms against 6 ms"


def test_control_arm_is_never_recommended_though_it_is_the_fastest(timed):
    *_, best = fill(timed, (0.001, on(4, "none")), (0.001, on(4, "no_op", step="overlapped")), (0.006, on(4)))
    found = only(timed)
    assert (found.choice.row["cell_id"], reasons(found).count("control arm")) == (best, 2)


def test_augmented_steps_are_a_workload_of_their_own(timed):
    for name, plain_s, augmented_s in (("ring", 0.005, 0.009), ("tree", 0.007, 0.008)):
        fill(timed, (plain_s, on(4, name)), (augmented_s, on(4, name, augmentation="standard")))
    found = {title_of(one.workload): one.choice.row for one in recommend(timed.table, timed.cells)}
    chosen = [(row["aggregator"], row["augmentation"]) for row in found.values()]
    assert chosen == [("ring", None), ("tree", "standard")]
    plain, augmented = found
    assert plain.endswith(", augmentation none")
    assert augmented == plain.replace("augmentation none", "augmentation standard")


def test_one_worker_wins_where_more_do_not_help(timed):
    single, *_ = fill(timed, (0.004, {}), (0.004, on(1)), (0.009, on(2)))
    found = only(timed)
    assert (found.choice.row["cell_id"], found.choice.name) == (single, "1 worker, nothing to exchange")
    assert found.state == "decided", "other aggregators on one worker are the same and no rivals"


@pytest.mark.parametrize(("trainings", "is_chosen", "said"), [
    ([], False, "accuracy was not measured"), ([(0.98, LOSSY)], True, ""), ([(0.5, LOSSY)], False, ""),
    ([(0.975, {"target": None, **LOSSY}), (0.98, {"target": None, **on(4)})], True, ""),
    ([(0.95, {"target": None, **LOSSY}), (0.98, {"target": None, **on(4)})], False, ""),
    ([(0.98, {"momentum": 0.0, **LOSSY})], False, "with momentum 0.0 alone, not with momentum 0.9"),
    ([(0.98, {"batch": 32, **LOSSY})], False, "with global_batch 32 alone, not with global_batch 64"),
    *(([(0.8, {"target": None, **LOSSY}), (0.8, {"target": None, **on(4), **recipe})], False,
     "no exact training with that momentum and batch") for recipe in ({"momentum": 0.0}, {"batch": 32})),
])  # fmt: skip
def test_lossy_aggregator_is_a_choice_once_its_update_held_the_accuracy(timed, trainings, is_chosen, said):
    """To the target, or as an exact one with the same update."""
    lossy, exact = fill(timed, (0.002, LOSSY), (0.006, on(4)))
    for accuracy, cell in trainings:
        timed.add_training([3.0], accuracy=accuracy, **cell)
    found = only(timed)
    assert found.choice.row["cell_id"] == (lossy if is_chosen else exact)
    assert said in reasons(found)


def test_a_loss_on_text_is_told_in_bits():
    lost = {"lost": 1.25, "score": "bits_per_byte", "reference": "exact aggregators"}
    told = text_of(Finding("lossy_below", (), lost))
    assert told == "lossy, and it ends 1.25 bits per byte above exact aggregators"


@pytest.mark.parametrize(("lost", "is_chosen"), [(0.02, True), (0.2, False)])
def test_with_seeds_a_lossy_aggregator_is_no_choice_where_they_say_it_is_worse(timed, lost, is_chosen):
    """More than LARGEST_LOSS, and more than two deviations of the exact one, may be chance."""
    lossy, _ = fill(timed, (0.002, LOSSY), (0.006, on(4)))
    for seed, (exact, own) in enumerate(zip((0.97, 0.98, 0.975), (0.96, 1.0, 0.98), strict=True)):
        timed.add_training([5.0], accuracy=exact, seed=seed, target=None, **on(4))
        timed.add_training([3.0], accuracy=own - lost, seed=seed, target=None, **LOSSY)
    found = only(timed)
    assert (found.choice.row["cell_id"] == lossy) == is_chosen
    said = "lossy, and it ends 19.50% below the accuracy of exact aggregators"
    below = [text_of(one.reason) for one in found.excluded if one.reason.kind == "lossy_below"]
    assert below == ([] if is_chosen else [said])


def of_two_that_differ_by_six_percent(study, scatter):
    generator = np.random.default_rng(6)
    for name, middle_s in (("ring", 0.0100), ("tree", 0.0106)):
        middles = middle_s * np.exp(scatter * generator.permutation([-1, 0, 1]))
        study.add([[one] * 12 for one in middles], **on(4, name))
    return only(study)


def test_undecided_choice_has_the_repeats_that_would_tell_or_asks_for_an_idle_machine(make_study):
    found = of_two_that_differ_by_six_percent(make_study(), 0.03)
    assert (found.state, [one.candidate.row["aggregator"] for one in found.rivals]) == ("undecided", ["tree"])
    assert found.more_repeats > 0
    assert f"about {found.more_repeats} more repeats would decide" in text_of(found.finding)
    assert "at most" in text_of(found.cost)
    for count, state in ((3, "undecided"), (40, "decided")):
        study = make_study()
        fill(study, (0.0100, on(4)), (0.0106, on(4, "tree")), count=count, spread=0.04)
        assert only(study).state == state
    found = of_two_that_differ_by_six_percent(make_study(), 0.12)
    assert (found.state, found.more_repeats, found.is_noisy) == ("undecided", None, True)
    assert "scatter too much to decide: measure on an idle machine" in text_of(found.finding)


@pytest.mark.parametrize(("spread", "state"), [(0.001, "tie"), (0.1, "undecided")])
def test_no_gap_is_a_tie_where_that_is_shown_and_asks_for_no_repeats(timed, spread, state):
    patterned(timed, ("ring", 0.010, spread), ("tree", 0.010, -spread))
    found = only(timed)
    assert (found.state, found.more_repeats) == (state, None)
    text = text_of(found.finding)
    assert ("either ring on 4 workers or tree on 4 workers, within 3%" in text) == (state == "tie")
    assert ("either will do" in text) == (state == "undecided")


def test_launches_that_scatter_together_decide_what_their_intervals_do_not(timed):
    patterned(timed, ("ring", 0.0100, 0.1), ("tree", 0.0106, 0.1))
    found = only(timed)
    assert found.choice.high > found.runner_up.low
    assert found.state == "decided"


def test_how_many_workers_and_which_aggregator_are_two_decisions(timed):
    fill(timed, (0.020, {}))
    patterned(timed, ("ring", 0.0100, 0.001), ("tree", 0.0100, -0.001), ("caffe", 0.015, 0.001))
    found = as_dict(only(timed))
    assert found["state"] == "tie"
    assert found["workers"] == {"state": "best", "choice": 4, "rivals": [], "others": [1]}
    aggregator = found["aggregator"]
    assert {aggregator["choice"], *aggregator["rivals"]} == {"ring", "tree"}
    assert (aggregator["state"], aggregator["others"]) == ("tie", ["caffe"])


def test_unequal_launches_are_compared_with_what_both_have(timed):
    for count, step_s, cell in ((2, 0.020, {}), (5, 0.010, on(4)), (3, 0.014, on(4, "tree"))):
        fill(timed, (step_s, cell), count=count)
    found = only(timed)
    assert (found.state, found.choice.row["aggregator"]) == ("decided", "ring")


@pytest.mark.parametrize("factor", [1.03, 2.0])
def test_one_launch_decides_nothing_and_says_so(timed, factor):
    fill(timed, (0.010, on(4)), (0.010 * factor, on(4, "tree")), count=1)
    found = only(timed)
    assert (found.state, found.more_repeats) == ("one_launch", FEWEST - 1)
    assert ": fastest so far: ring on 4" in text_of(found.finding)


def test_efficiency_is_the_shortest_time_that_keeps_it(timed):
    _, kept, _ = fill(timed, (0.016, {}), (0.0089, on(2)), (0.0080, on(4)))
    found = only(timed, "efficiency >= 0.8")
    assert (found.state, found.choice.row["cell_id"]) == ("decided", kept)
    assert "efficiency below 0.8" in reasons(found)


@pytest.mark.parametrize(("changes", "title"), [
    ({"augmentation": "standard"}, "augmentation standard"),
    ({"batch_norm": "sync"}, "batch norm sync"), ({"batch": 128}, "global batch 128"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_efficiency_rests_on_the_noise_of_its_own_baseline_alone(timed, changes, title):
    fill(timed, (0.016, {}), spread=0.5)
    _, kept = fill(timed, (0.016, changes), (0.0089, {**on(2), **changes}))
    found = recommend(timed.table, timed.cells, "efficiency >= 0.8")
    (changed,) = [one for one in found if title in title_of(one.workload)]
    assert (changed.state, changed.choice.row["cell_id"]) == ("decided", kept)


def test_efficiency_on_the_bound_is_undecided(timed):
    fill(timed, (0.016, {}), (0.010, on(2)), spread=0.02)
    found = only(timed, "efficiency >= 0.8")
    assert (found.state, "may be above or below the bound" in text_of(found.finding)) == ("undecided", True)


def test_gpu_hours_count_the_workers(timed):
    cheap, fast = fill(timed, (0.010, on(2)), (0.006, on(4)))
    assert only(timed).choice.row["cell_id"] == fast
    choice = only(timed, "gpu-hours").choice
    expected = (cheap, pytest.approx(0.010 * 2 / 64 / 3600 * 1e9, rel=0.01))
    assert (choice.row["cell_id"], choice.value) == expected


def test_least_memory_is_that_of_the_fullest_gpu_and_of_the_launch_that_took_most(timed):
    cells = ((0.009, "zero1", [3e9, 4e9]), (0.006, "ring", [2e9, 5e9]), (0.001, "tree", [None, None]))
    cells = [(step_s, on(2, name, summary={"memory_peak_bytes": peaks})) for step_s, name, peaks in cells]
    sharded, *_ = fill(timed, *cells)
    choice = only(timed, "memory").choice
    assert (choice.row["cell_id"], choice.value) == (sharded, 4.0)


def test_energy_is_of_the_gpus_and_uncertain_by_the_counters_steps(make_study):
    def found(tree_j, window_s):
        study, joules = make_study(), (0.2, tree_j)
        gpus = [{"gpu": [{"energy_per_sample_j": one, "window_s": window_s}] * 2} for one in joules]
        fill(study, (0.010, on(2, summary=gpus[0])), (0.006, on(2, "tree", summary=gpus[1])))
        return only(study, "energy")

    sure = found(0.3, 10)
    assert (sure.state, sure.choice.row["aggregator"]) == ("decided", "ring")
    assert (sure.choice.low, found(0.25, 0.5).state) == (pytest.approx(200 * 0.99), "undecided")


def test_time_to_accuracy_needs_the_target_and_several_trainings(make_study):
    study, once = make_study(), make_study()
    fast = study.add_training([5.0, 5.1, 5.2], **on(4))
    study.add_training([9.0, 9.1, 9.2], **on(4, "tree"))
    study.add_training([1.0, 1.1, 1.2], accuracy=0.9, **LOSSY)
    found = only(study, "time-to-accuracy")
    assert (found.state, found.choice.row["cell_id"]) == ("decided", fast)
    assert (found.choice.value, "not reached" in reasons(found)) == (pytest.approx(5.1), True)
    for seconds, name in ((5.0, "ring"), (9.0, "tree")):
        once.add_training([seconds], **on(4, name))
    found = only(once, "time-to-accuracy")
    assert (found.state, found.more_repeats) == ("one_launch", FEWEST - 1)


RECIPES = {"momentum": 0.0, "weight_decay": 0.1, "warmup_epochs": 5.0, "batch_norm": "sync"}


@pytest.mark.parametrize(("name", "value"), RECIPES.items())
def test_single_workers_of_different_recipes_are_two_choices_which_the_name_tells(timed, name, value):
    timed.add_training([9.0, 9.1, 9.2], accuracy=0.5, **on(1, "all_reduce"), **{name: value})
    reached = timed.add_training([5.0, 5.1, 5.2], **on(1, "all_reduce"))
    found = only(timed, "time-to-accuracy")
    (left_out,) = found.excluded
    assert (found.choice.row["cell_id"], left_out.reason.kind) == (reached, "target_missed")
    assert f"{name} {value}" in left_out.name


def test_failed_cells_are_left_out_with_their_reason_and_nothing_measured_is_said(make_study):
    study = make_study()
    study.add([], **on(4), state="failed")
    found = only(study)
    assert (found.state, reasons(found).startswith("failed")) == ("none", True)
    assert recommend(make_study().table, [], "time") == []


def test_workloads_are_recommended_one_by_one_and_weak_scaling_by_the_sample(timed):
    weak = [(0.010, on(2, scaling="weak")), (0.011, on(4, scaling="weak"))]
    fill(timed, *weak, (0.004, on(2, model="other")))
    found = recommend(timed.table, timed.cells)
    assert [one.choice.row["world_size"] for one in found if one.workload["scaling"] == "weak"] == [4]
    assert len(found) == 2


@pytest.mark.parametrize("text", ["speed", "efficiency", "efficiency >= 80", "efficiency <= 0.8"])
def test_objective_that_is_none_says_what_is_allowed(text):
    with pytest.raises(ScalingError, match=r"allowed: 'time'|a ratio such as 0\.8"):
        parse_objective(text)


def test_ties_in_memory_are_broken_by_time(timed):
    for name, step_s, gigabytes in (
        ("slow", 0.107, 15.0), ("fast", 0.0782, 15.1), ("fastest", 0.078, 15.4), ("large", 0.05, 16.1),
    ):  # fmt: skip
        steps = [[step_s * (1 + 0.0005 * launch)] * 6 for launch in range(3)]
        memory = {"memory_peak_bytes": [int(gigabytes * 1e9)] * 2}
        timed.add(steps, device="cuda", summary=memory, **on(2, name))
    found = only(timed, "memory")
    assert (found.choice.row["aggregator"], found.state) == ("fast", "tie")
    assert only(timed, "time").choice.row["aggregator"] == "large"


def test_front_takes_the_faster_of_two_that_are_the_same_and_leaves_out_what_is_beaten():
    points = [(10.0, 9.0), (10.2, 5.0), (11.0, 6.0), (12.0, 4.95), (13.0, 3.0)]
    values = itemgetter(0), itemgetter(1)
    assert front(points, *values, 0.03) == [(10.2, 5.0), (13.0, 3.0)]
    assert front(points, *values) == [(10.0, 9.0), (10.2, 5.0), (12.0, 4.95), (13.0, 3.0)]


def test_memory_is_decided_by_time_among_equals_and_the_trade_off_is_said():
    study = read_study(ResultsFolder(REFERENCE / "sharded-2xh100"))
    small, medium = recommend(study.table, study.cells, "memory")
    said = text_of(small.finding)
    assert "use zero2 on 2 GPUs, peer access on, older code: 15.1 GB on" in said
    others = "the others: fsdp2 on 2 GPUs (99.6 ms), zero1 on 2 GPUs (78.4 ms)."
    assert others in said, "neither with a link that makes no difference"
    assert small.trade_off is None, "zero2 is as fast as any"
    points = medium.trade_off.values["points"]
    assert [one["short"].partition(" ")[0] for one in points] == ["fsdp2", "zero2", "zero1", "all_reduce"]
    best = "(14.5; 165), zero2 on 2 GPUs, peer access on, older code (15.0; 112)"
    assert best in text_of(medium.trade_off)


def test_what_is_ruled_out_is_told_from_the_choice_and_from_one_another():
    def named(*parts):
        return SimpleNamespace(parts=parts, name=", ".join(parts))

    ruled_out = [named("ddp on 2 GPUs", "host-only"), named("zero1 on 2 GPUs"), named("one worker", "eager")]
    assert _names(ruled_out, "ddp on 2 GPUs") == ["ddp on 2 GPUs, host-only", "zero1 on 2 GPUs", "one worker"]


ADAMW = {"optimizer": "adamw", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
ADAMW |= {"weight_decay": 0.01, "momentum": 0.0}
BY_SGD = {"optimizer": "sgd", "weight_decay": 0.01, "momentum": 0.0, "aggregator": OWN_ADAM, "lossy": True}


@pytest.fixture(scope="module")
def adam():
    """Trainings with AdamW, exact and lossy, and with 1-bit Adam."""
    return read_study(ResultsFolder(REFERENCE / "converge-gpt-adam-cpu"))


class TestOneBitAdam:
    """It counts as the Adam that it is, though its optimizer is sgd: the exact one is its counterpart."""

    def test_it_stands_in_the_table_of_the_exact_one(self, adam):
        (group,) = group_rows(to_rows(adam.table))
        assert {aggregator_name(row["aggregator"]) for row in group.rows} >= {"all_reduce", OWN_ADAM}

    @pytest.mark.parametrize("state", ["reached", None])
    def test_a_timed_cell_of_it_is_judged_by_both_trainings(self, adam, state):
        rows = to_rows(adam.table)
        trained = [{**row, "target_state": state and row["target_state"]} for row in rows]
        row = next(row for row in trained if row["aggregator"] == f"{OWN_ADAM}(warmup_steps=65)")
        (cell,) = [cell for cell in adam.cells if cell.cell_id == row["cell_id"]]
        timed = {**row, "kind": "iteration", "target_state": None}
        assert Trainings(trained, adam.cells).why_not(timed, cell) is None

    def test_an_exact_training_by_sgd_is_not_its_counterpart_and_defaults_are_the_aggregators(self):
        exact = {"aggregator": "all_reduce", **ADAMW}
        assert agree(Shared.UPDATE | Shared.CONTROL, exact, BY_SGD | {"aggregator_parameters": {}})
        by_sgd = {"aggregator": "all_reduce", "optimizer": "sgd", "weight_decay": 0.01, "momentum": 0.0}
        assert not agree(Shared.UPDATE, by_sgd, BY_SGD)
        assert not agree(Shared.CONTROL, exact, BY_SGD | {"aggregator_parameters": {"beta1": 0.8}})
        assert as_trained(BY_SGD | {"weight_decay": 0.0})["optimizer"] == "adam"
        trained = as_trained(BY_SGD)
        assert OneBitAdam(**{name: trained[name] for name in ("beta1", "beta2", "epsilon")}) == OneBitAdam()

    def test_it_is_recommended_where_it_is_faster_and_reaches_the_target(self, timed):
        timed.add([[0.03] * 20] * 3, world_size=2, aggregator="all_reduce", **ADAMW)
        faster = timed.add([[0.02] * 20] * 3, world_size=2, **BY_SGD)
        for own in ({"aggregator": "all_reduce", **ADAMW}, BY_SGD):
            timed.add_training([10.0] * 3, world_size=2, **own)
        assert only(timed).choice.cell_id == faster
