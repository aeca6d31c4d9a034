"""The table of arms, the command of one worker, and what marks and traces say that are made up."""

import gzip
import json
import re

import pytest

from scaling.attach.arms import RULES, apart, switchable, why_skipped
from scaling.attach.inside.arms import ALL, ARMS, LATER, PROCESS, Arm, order_of
from scaling.attach.inside.settings import threads_that_fit
from scaling.attach.launch import one_worker
from scaling.attach.marks import phases_s, steady, steps_of
from scaling.attach.trace import read_traces
from scaling.report.text import TEMPLATES
from tests.attach.made_marks import EVEN, ONE_STEP, made_rank, made_runs, with_facts


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


def test_a_finding_of_an_arm_has_its_advice():
    macros = re.findall(r"macro (\w+)_advice", (TEMPLATES / "findings" / "attached.j2").read_text())
    assert {arm.finding for arm in ARMS.values() if arm.finding} <= set(macros)


def test_rules_by_which_an_arm_is_skipped_are_named_by_rows_alone():
    assert {rule for arm in ARMS.values() for rule in arm.skipped} == set(RULES)
    measured = made_runs(EVEN)
    assert why_skipped("trace", measured) == "there is no GPU"
    assert why_skipped("no_debugging", measured) == "no debugging is on"
    assert why_skipped("no_anomaly", measured) == "no anomaly detection is on"
    assert why_skipped("one_worker", measured) is None
    with_facts(measured, "baseline", collectives={"all_reduce": 99})
    assert why_skipped("no_collectives", measured) is None
    with_facts(measured, "baseline", script_hook="mine")
    assert why_skipped("no_collectives", measured).endswith("its communication hook mine")
    with_facts(measured, "baseline", without_ddp=True)
    assert why_skipped("no_collectives", measured).startswith("without DDP they are the exchange")
    assert why_skipped("buckets_2", measured) == "no model is wrapped in DDP"


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


def test_steps_of_another_kind_are_left_out_and_one_ends_with_the_outer_of_two_optimizers():
    kinds = [ONE_STEP, ONE_STEP, (1, 5, 1, 1), ONE_STEP]
    signature, steps = steady([made_rank(0, [0.1, 0.1, 0.9, 0.1], kinds), made_rank(1, [0.1] * 4)])
    assert signature == ONE_STEP
    assert [[step.number for step in rank] for rank in steps] == [[0, 1, 3], [0, 1, 3]]
    rank = made_rank(0, [1.0, 1.0])
    rank["step_s"].append([end_s + 0.4 for end_s in rank["step_s"][0]])
    rank["counts"].append([[*counts[:3], counts[3] + 1] for counts in rank["counts"][0]])
    assert [step.start_s for step in steps_of(rank)] == [0.4, 1.4]


PARTS = {
    "an evaluation is a part of its own": (
     [("evaluation", 0.0, 0.4), ("input", 0.1, 0.2), ("input", 0.5, 0.6), ("backward", 0.8, 0.9),
      ("update", 0.9, 1.0)],
     {"evaluation": [(0.0, 0.4)], "input": [(0.5, 0.6)], "forward": [(0.6, 0.8)], "backward": [(0.8, 0.9)],
      "gradients": [(0.9, 0.9)], "update": [(0.9, 1.0)]}),
    "what is marked between is no part of other phases": (
     [("input", 0.0, 0.1), ("collective", 0.2, 0.3), ("backward", 0.5, 0.6), ("collective", 0.7, 0.8),
      ("update", 0.9, 1.0)],
     {"forward": [(0.1, 0.2), (0.3, 0.5)], "gradients": [(0.6, 0.7), (0.8, 0.9)]}),
    "of a GAN: after a step of an optimizer the next forward pass begins": (
     [("input", 0.0, 0.1), ("backward", 0.2, 0.3), ("update", 0.3, 0.4), ("backward", 0.7, 0.8),
      ("update", 0.85, 1.0)],
     {"forward": [(0.1, 0.2), (0.4, 0.7)], "gradients": [(0.3, 0.3), (0.8, 0.85)]}),
    "a collective between backward passes parts the forward pass": (
     [("input", 0.0, 0.1), ("backward", 0.2, 0.3), ("collective", 0.5, 0.6), ("backward", 0.7, 0.8),
      ("update", 0.8, 1.0)],
     {"forward": [(0.1, 0.2), (0.3, 0.5), (0.6, 0.7)]}),
    "of synchronized batch normalization: collectives in a backward pass are no part of it": (
     [("input", 0.0, 0.1), ("collective", 0.4, 0.5), ("collective", 0.6, 0.7), ("backward", 0.3, 0.8),
      ("update", 0.8, 1.0)],
     {"collective": [(0.4, 0.5), (0.6, 0.7)], "backward": [(0.3, 0.4), (0.5, 0.6), (0.7, 0.8)]}),
}  # fmt: skip


@pytest.mark.parametrize(("marked", "expected"), PARTS.values(), ids=PARTS)
def test_parts_of_a_step_are(marked, expected):
    (step,) = steps_of({**made_rank(0, [1.0]), "phases": marked})
    found = {name: [] for name in expected}
    for name, start, stop in step.spans:
        found.get(name, []).append((round(start, 6), round(stop, 6)))
    assert found == expected
    wanted = pytest.approx(sum(b - a for n, a, b in step.spans if n == "backward"))
    assert phases_s([step])["backward"] == wanted
    assert step.waited_s == pytest.approx(sum(b - a for n, a, b in step.spans if n == "collective"))


def _event(name, category, start_ms, length_ms):
    return {"ph": "X", "cat": category, "name": name, "ts": start_ms * 1e3, "dur": length_ms * 1e3}


def _trace(path, nccl_ms):
    """A kernel of 4 ms, an all-reduce that it hides for 1 ms, a synchronising call."""
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name"}]
    for step in range(2):
        start_ms = 10.0 * step
        events.append(_event("gemm", "kernel", start_ms, 4.0))
        events.append(_event("ncclDevKernel_AllReduce", "kernel", start_ms + 3.0, nccl_ms[step]))
        events.append(_event("cudaStreamSynchronize", "cuda_runtime", start_ms + 5.0, 2.0))
    events.append(_event("gemm", "kernel", 19.9, 0.1))
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def test_nccl_idle_time_and_the_late_rank_if_any_are_read(tmp_path):
    paths = [_trace(tmp_path / "0.json.gz", (5.0, 5.0)), _trace(tmp_path / "1.json.gz", (2.0, 2.0))]
    traced = read_traces(paths, 2)
    assert (traced.nccl_s, traced.moving_s) == (pytest.approx(3.5e-3), pytest.approx(2e-3))
    assert (traced.step_s, traced.exposed_s) == (pytest.approx(10e-3), pytest.approx(2.5e-3))
    assert (traced.busy_s, traced.syncs_a_step) == (pytest.approx((8.0 + 5.0 + 0.1) / 2 * 1e-3), 1)
    assert traced.late_rank == 1
    paths = [_trace(tmp_path / "0.json.gz", (5.0, 2.0)), _trace(tmp_path / "1.json.gz", (2.0, 5.0))]
    assert read_traces(paths, 2).late_rank is None
    path = tmp_path / "cpu.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [_event("aten::mm", "cpu_op", 0.0, 1.0)]}, file)
    assert read_traces([path], 5) is None
