"""What a rank's marks and the traces of GPUs say, from ones that are made up."""

import gzip
import json

import pytest

from scaling.attach.marks import phases_s, steady, steps_of
from scaling.attach.trace import read_traces
from tests.attach.made_marks import ONE_STEP, made_rank


def test_steps_of_another_kind_are_left_out_on_all_ranks():
    kinds = [ONE_STEP, ONE_STEP, (1, 5, 1, 1), ONE_STEP]
    signature, steps = steady([made_rank(0, [0.1, 0.1, 0.9, 0.1], kinds), made_rank(1, [0.1] * 4)])
    assert signature == ONE_STEP
    assert [[step.number for step in rank] for rank in steps] == [[0, 1, 3], [0, 1, 3]]


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


def test_a_step_ends_with_the_outer_one_of_two_optimizers():
    rank = made_rank(0, [1.0, 1.0])
    rank["step_s"].append([end_s + 0.4 for end_s in rank["step_s"][0]])
    rank["counts"].append([[*counts[:3], counts[3] + 1] for counts in rank["counts"][0]])
    assert [step.start_s for step in steps_of(rank)] == [0.4, 1.4]


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


def test_nccl_idle_time_and_the_late_rank(tmp_path):
    paths = [_trace(tmp_path / "0.json.gz", (5.0, 5.0)), _trace(tmp_path / "1.json.gz", (2.0, 2.0))]
    traced = read_traces(paths, 2)
    assert (traced.nccl_s, traced.moving_s) == (pytest.approx(3.5e-3), pytest.approx(2e-3))
    assert (traced.step_s, traced.exposed_s) == (pytest.approx(10e-3), pytest.approx(2.5e-3))
    assert (traced.busy_s, traced.syncs_a_step) == (pytest.approx((8.0 + 5.0 + 0.1) / 2 * 1e-3), 1)
    assert traced.late_rank == 1


def test_ranks_that_come_together_have_no_late_one_and_a_trace_without_a_kernel_says_nothing(tmp_path):
    paths = [_trace(tmp_path / "0.json.gz", (5.0, 2.0)), _trace(tmp_path / "1.json.gz", (2.0, 5.0))]
    assert read_traces(paths, 2).late_rank is None
    path = tmp_path / "cpu.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [_event("aten::mm", "cpu_op", 0.0, 1.0)]}, file)
    assert read_traces([path], 5) is None
