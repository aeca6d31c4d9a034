"""What is measured, how often, the table of samples, and the latency and bandwidth that it tells."""

import csv
import io
import json
import math
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest

from scaling.measure.probe import cases as probe
from scaling.measure.probe.series import fit_link, size_text

SAMPLE = probe.ProbeSample("default", "all_reduce", (0, 1, 2, 3), "", True, None, 4096, 7, 2e-6)


def operations(found):
    return Counter(case.operation for case in found)


class TestCases:
    def test_gpus_are_measured_alone_and_all_at_once_and_the_second_launch_messages_only(self):
        found = probe.cases(4, on_gpus=True, peer_copies=True)
        for operation in ("h2d", "d2h", "h2d_d2h"):
            pinned = [case.ranks for case in found if case.operation == operation and case.memory == "pinned"]
            assert pinned == [(0,), (1,), (2,), (3,), (0, 1, 2, 3)]
        assert (operations(found)["peer_copy"], operations(found)["send"]) == (4 * 3, 6)
        assert {case.captured for case in found if case.operation == "all_reduce"} == {False, True}
        found = operations(probe.cases(4, on_gpus=True, only_messages=True))
        assert set(found) == {"send", "swap", "shift", "all_reduce"}

    @pytest.mark.parametrize(("on_gpus", "ranks"), [(True, [(0,), (1,)]), (False, [(0, 1)])])
    def test_products_are_on_each_gpu_alone_or_on_all_cores_at_once(self, on_gpus, ranks):
        without, found = (set(probe.cases(2, on_gpus=on_gpus, with_products=one)) for one in (False, True))
        added = found - without
        assert without < found
        names = ["bf16", "float32", "fp16", *(["tf32"] if on_gpus else [])]
        expected = [(f"product_{name}", each) for name in names for each in ranks]
        assert sorted((case.operation, case.ranks) for case in added) == expected
        for case in added:
            sizes = tuple(probe.product_size(case.operation, size) for size in case.sizes_bytes)
            assert sizes == probe.matrix_sizes(on_gpus=on_gpus)

    @pytest.mark.parametrize(("on_gpus", "memory"), [(False, ""), (True, "pinned")])
    def test_mpi_is_one_more_all_reduce_in_host_memory_once(self, on_gpus, memory):
        without, with_mpi = (set(probe.cases(2, on_gpus=on_gpus, with_mpi=mpi)) for mpi in (False, True))
        (added,) = with_mpi - without
        assert without < with_mpi
        assert (added.operation, added.memory, added.ranks) == ("mpi_all_reduce", memory, (0, 1))
        assert added.sizes_bytes == probe.MESSAGE_SIZES
        assert not added.captured
        for world_size, only_messages in ((2, True), (1, False)):
            others = probe.cases(world_size, on_gpus=True, only_messages=only_messages, with_mpi=True)
            assert "mpi_all_reduce" not in operations(others)

    @pytest.mark.parametrize("on_gpus", [False, True])
    def test_ranks_of_a_case_are_different_ones_of_the_world_and_a_single_one_talks_to_none(self, on_gpus):
        for world_size in (1, 2, 4):
            for case in probe.cases(world_size, on_gpus=on_gpus, peer_copies=on_gpus):
                assert len(set(case.ranks)) == len(case.ranks)
                assert set(case.ranks) <= set(range(world_size))
                if case.operation in ("send", "swap", "peer_copy"):
                    assert len(case.ranks) == 2
        found = operations(probe.cases(1, on_gpus=on_gpus))
        assert not {"send", "swap", "shift", "all_reduce"} & set(found)
        assert found["host_sum"] == 2  # with all cores, and with one

    def test_no_case_is_there_twice_sizes_ascend_and_processes_copy_in_host_memory(self):
        found = probe.cases(3, on_gpus=True, peer_copies=True)
        assert (len(set(found)), len({case.describe() for case in found})) == (len(found), len(found))
        for case in found:
            assert list(case.sizes_bytes) == sorted(set(case.sizes_bytes))
            assert all(size % 4 == 0 for size in case.sizes_bytes)
        found = probe.cases(2, on_gpus=False)
        assert set(operations(found)) == {"host_copy", "host_sum", "send", "swap", "shift", "all_reduce"}
        assert not any(case.captured or case.memory for case in found)
        assert [case.ranks for case in found if case.operation == "host_copy"] == [(0, 1), (0,), (1,)]


class TestHowOften:
    def test_repeats_and_samples_follow_the_time_within_bounds(self):
        assert probe.repeats_for(0.0) == probe.repeats_for(1e-9) == probe.MAX_REPEATS
        assert (probe.repeats_for(1e-3), probe.repeats_for(1.0)) == (2, 1)
        assert probe.num_samples_for(left_s=1.0, sizes_left=5, sample_s=0.019) == 10
        assert probe.num_samples_for(left_s=-1.0, sizes_left=5, sample_s=0.02) == probe.MIN_SAMPLES
        assert probe.num_samples_for(left_s=100.0, sizes_left=1, sample_s=0.0) == probe.MAX_SAMPLES

    @pytest.mark.parametrize(("done", "left_s", "once_s", "more"), [
        (0, -1, 0, True), (1, -1, 100, True), (2, 1.0, 0.01, True), (2, 1.0, 0.1, False),
    ])  # fmt: skip
    def test_two_sizes_are_always_measured_and_others_if_there_is_time(self, done, left_s, once_s, more):
        assert probe.goes_on(done, [1024, 4096, 16384], left_s=left_s, once_s=once_s) == more


class TestSamples:
    def test_table_has_a_row_a_sample_with_both_bandwidths(self):
        (row,) = csv.DictReader(io.StringIO(probe.as_csv([SAMPLE])))
        expected = {"operation": "all_reduce", "ranks": "0 1 2 3", "captured": "True", "repeats": "7"}
        assert {name: row[name] for name in expected} == expected
        assert float(row["algbw_bytes_per_s"]) == 4096 / 2e-6
        assert float(row["busbw_bytes_per_s"]) == 1.5 * 4096 / 2e-6
        assert probe.bus_factor("all_reduce", 4) == probe.bus_factor("mpi_all_reduce", 4) == 1.5
        assert probe.bus_factor("shift", 4) == probe.bus_factor("send", 2) == 1
        assert ",0.01933112," in probe.as_csv([replace(SAMPLE, seconds=0.019331123000000616)])

    def test_samples_are_read_back_from_the_table_and_from_json_and_products_have_no_bandwidth(self):
        assert probe.ProbeSample.from_row(json.loads(json.dumps(asdict(SAMPLE)))) == SAMPLE
        samples = [SAMPLE, replace(SAMPLE, ranks=(2,), memory="pinned", captured=False, num_threads=1)]
        assert probe.from_csv(probe.as_csv(samples)) == samples
        sample = replace(SAMPLE, operation="product_bf16", ranks=(0,), num_bytes=2 * 64**2)
        assert sample.product_size == 64
        (row,) = csv.DictReader(io.StringIO(probe.as_csv([sample])))
        assert (row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]) == ("", "")
        assert probe.from_csv(probe.as_csv([sample])) == [sample]


SIZES = tuple(4096 * 8**step for step in range(6))  # 4 KiB to 128 MiB


def times(latency_s, bandwidth_bytes_per_s, *, noise=0.0, count=9, sizes=SIZES):
    generator = np.random.default_rng(7)
    exact = {size: latency_s + size / bandwidth_bytes_per_s for size in sizes}
    return {size: list(seconds * generator.lognormal(0, noise, count)) for size, seconds in exact.items()}


@pytest.mark.parametrize(
    ("latency_s", "bandwidth"), [(5e-6, 55e9), (2e-3, 1e9), (1e-6, 1e12), (0.0, 20e9)], ids=str
)
def test_exact_times_give_the_line_they_were_made_of(latency_s, bandwidth):
    fit = fit_link(times(latency_s, bandwidth))
    assert math.isclose(fit.latency_s, latency_s, rel_tol=1e-6, abs_tol=1e-12)
    assert math.isclose(fit.bandwidth_bytes_per_s, bandwidth, rel_tol=1e-6)
    assert fit.worst_error_ratio < 1e-6
    assert math.isclose(fit.seconds(10**6), latency_s + 1e6 / bandwidth, rel_tol=1e-6)


def test_intervals_hold_the_truth_and_grow_with_the_noise():
    quiet, loud = (fit_link(times(10e-6, 50e9, noise=noise)) for noise in (0.01, 0.2))
    for fit in (quiet, loud):
        low, high = fit.bandwidth_interval_bytes_per_s
        assert low <= fit.bandwidth_bytes_per_s <= high
        assert low < 50e9 < high
        assert fit.latency_interval_s[0] <= fit.latency_s <= fit.latency_interval_s[1]
    widths = [high - low for low, high in (quiet.latency_interval_s, loud.latency_interval_s)]
    assert widths[0] < widths[1]


def test_neither_one_outlier_nor_the_largest_messages_move_the_latency():
    slow = times(10e-6, 50e9)
    slow[SIZES[0]][0] *= 1000
    assert math.isclose(fit_link(slow).latency_s, 10e-6, rel_tol=1e-6)
    # A tenth of a second more on the largest would hide any latency from absolute errors.
    measured = times(10e-6, 50e9)
    measured[SIZES[-1]] = [value * 1.05 for value in measured[SIZES[-1]]]
    assert math.isclose(fit_link(measured).latency_s, 10e-6, rel_tol=0.05)


def test_line_goes_through_the_largest_size_and_says_where_it_is_furthest_off():
    # A protocol that is half as fast in the middle: a line free at both ends would be pulled down by it.
    measured = times(10e-6, 50e9)
    middle = SIZES[3]
    measured[middle] = [2 * value for value in measured[middle]]
    fit = fit_link(measured)
    assert math.isclose(fit.seconds(SIZES[-1]), np.median(measured[SIZES[-1]]))
    assert math.isclose(fit.bandwidth_bytes_per_s, 50e9, rel_tol=0.01)
    assert fit.worst_error_bytes == middle
    assert math.isclose(fit.worst_error_ratio, 0.5, abs_tol=0.05)


def test_neither_is_ever_negative_and_samples_are_those_of_the_size_with_fewest():
    fit = fit_link({1024: [2e-3] * 3, 2048: [1e-3] * 3})
    assert fit.latency_s > 0
    assert fit.bandwidth_bytes_per_s == math.inf
    curved = {1: [1.0], 2: [4.0], 3: [9.0]}
    assert fit_link(curved).latency_s == 0.0
    assert fit_link(curved).worst_error_ratio > 0.3
    measured = times(1e-6, 1e9, count=5)
    measured[SIZES[2]] = measured[SIZES[2]][:2]
    assert fit_link(measured).num_samples == 2


@pytest.mark.parametrize(("measured", "message"), [
    ({}, "0 sizes"),
    ({1024: [1.0]}, "1 sizes: latency and bandwidth need two"),
    ({1024: [1.0], 2048: []}, "every size needs a sample"),
    ({1024: [1.0], 2048: [0.0]}, "every time has to be positive"),
])  # fmt: skip
def test_what_cannot_be_fitted_is_refused(measured, message):
    with pytest.raises(ValueError, match=message):
        fit_link(measured)


@pytest.mark.parametrize(("num_bytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (4096, "4 KiB"), (1024**2 - 1024, "1023 KiB"),
    (1024**2, "1 MiB"), (3 * 1024**2 // 2, "1.5 MiB"), (1024**3, "1 GiB"), (2 * 1024**3, "2 GiB"),
])  # fmt: skip
def test_size_is_in_the_largest_unit_that_it_reaches(num_bytes, text):
    assert size_text(num_bytes) == text
