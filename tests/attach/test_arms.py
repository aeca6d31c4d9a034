"""The table of arms, their order, the command of one worker, and how many threads fit on a rank's cores."""

import pytest

from scaling.attach.arms import RULES, apart, switchable, why_skipped
from scaling.attach.inside.arms import ALL, ARMS, LATER, PROCESS, Arm, order_of
from scaling.attach.inside.settings import threads_that_fit
from scaling.attach.launch import one_worker
from tests.attach.made_marks import EVEN, made_runs


def test_all_ranks_draw_the_same_order_and_those_that_run_apart_begin_with_what_tells_most():
    arms = [name for name, arm in ARMS.items() if arm.when != PROCESS]
    orders = [order_of(arms, 3, number) for number in range(8)]
    assert orders == [order_of(arms, 3, number) for number in range(8)]
    assert all(sorted(order) == sorted(arms) for order in orders)
    assert len(set(map(tuple, orders))) == 8
    assert apart(list(ARMS), 0, 1)[:2] == ["baseline", "no_exchange"]
    assert "one_worker" not in apart(list(ARMS), 1, 1)


def test_arms_say_which_others_exclude_them_and_are_not_in_one_process_with_these(monkeypatch):
    for name, arm in ARMS.items():
        assert (arm.excluded_by == ALL) == (arm.when == PROCESS), name
        assert arm.excluded_by == ALL or set(arm.excluded_by) <= ARMS.keys(), name
    with pytest.raises(TypeError, match="excluded_by"):
        Arm("no_gc", LATER, "no garbage collection", "what does it cost")  # type: ignore[call-arg]
    monkeypatch.setitem(ARMS, "no_gc", Arm("no_gc", LATER, "", "", ("aa",)))
    assert switchable(["baseline", "aa", "no_gc", "clock"]) == ["baseline", "aa"]
    assert switchable(["baseline", "no_gc"]) == ["baseline", "no_gc"]


def test_rules_by_which_an_arm_is_skipped_are_named_by_rows_alone():
    assert {rule for arm in ARMS.values() for rule in arm.skipped} == set(RULES)
    measured = made_runs(EVEN)
    assert why_skipped("trace", measured) == "there is no GPU"
    assert why_skipped("no_debugging", measured) == "no debugging is on"
    assert why_skipped("no_anomaly", measured) == "no anomaly detection is on"
    assert why_skipped("one_worker", measured) is None


@pytest.mark.parametrize(("command", "expected"), [
    ("torchrun --nproc-per-node=2 train.py", "torchrun --nproc-per-node=1 train.py"),
    ("torchrun --nproc_per_node 4 train.py", "torchrun --nproc_per_node 1 train.py"),
    ("torchrun train.py --nproc-per-node=2", None),
    ("torchrun -m pkg.train --nproc-per-node 2", None),
    ("torchrun --nnodes=2 --node-rank=1 --nproc-per-node=4 -m pkg.train",
     "torchrun --nnodes=1 --node-rank=0 --nproc-per-node=1 -m pkg.train"),
    ("python -m torch.distributed.run --nproc-per-node 2 train.py",
     "python -m torch.distributed.run --nproc-per-node 1 train.py"),
    ("accelerate launch --num_processes 2 train.py --num_processes 2",
     "accelerate launch --num_processes 1 train.py --num_processes 2"),
    ("accelerate launch --multi_gpu --num_processes=2 train.py --multi_gpu",
     "accelerate launch --num_processes=1 train.py --multi_gpu"),
    ("srun -N2 --ntasks-per-node=2 python train.py", "srun -N1 --ntasks-per-node=1 python train.py"),
    ("mpirun -np 4 python train.py", "mpirun -np 1 python train.py"),
    ("python train.py", None),
])  # fmt: skip
def test_one_worker_replaces_only_the_launchers_option(command, expected):
    assert one_worker(command.split()) == (expected.split() if expected else None)


def _places(*masks):
    return [{"host": host, "affinity": list(cores)} for host, cores in masks]


@pytest.mark.parametrize(("places", "threads"), [
    (_places(*[("a", range(4))] * 4), 1),
    (_places(*[("a", range(8))] * 2, *[("b", range(8))] * 2), 4),  # of one node's cores
    (_places(*[("a", range(first, first + 4)) for first in (0, 4, 8, 12)]), 4),  # bound by the launcher
    (_places(("a", range(8)), ("a", range(4, 12))), 6),
    (_places(*[("a", range(2))] * 4), 1),
])  # fmt: skip
def test_ranks_share_the_cores_of_their_host_that_they_have_in_common(places, threads):
    assert threads_that_fit(places[0], places) == threads


@pytest.mark.parametrize("is_bound", [True, False])
def test_ranks_with_cores_of_their_own_need_no_fewer_threads(is_bound):
    measured, common = made_runs(EVEN), {"host": "a", "device": "cpu", "cores": 4, "threads": 4}
    firsts = [4 * rank * is_bound for rank in range(4)]
    measured.facts["baseline"] = [{**common, "affinity": [*range(at, at + 4)]} for at in firsts]
    reason = "the ranks' threads have cores of their own" if is_bound else None
    assert why_skipped("threads", measured) == reason
