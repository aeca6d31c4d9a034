"""Traces of two ranks' GPUs, made by hand: two steps of 10 ms."""

import gzip
import json

import pytest

from scaling.attach.trace import read_traces


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


def test_ranks_that_come_together_have_no_late_one(tmp_path):
    paths = [_trace(tmp_path / "0.json.gz", (5.0, 2.0)), _trace(tmp_path / "1.json.gz", (2.0, 5.0))]
    assert read_traces(paths, 2).late_rank is None


def test_a_trace_without_a_kernel_says_nothing(tmp_path):
    path = tmp_path / "cpu.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [_event("aten::mm", "cpu_op", 0.0, 1.0)]}, file)
    assert read_traces([path], 5) is None
