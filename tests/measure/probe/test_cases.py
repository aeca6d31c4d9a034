"""What is measured, how often, and the table of samples."""

import csv
import io
import json
from collections import Counter
from dataclasses import asdict, replace

import pytest

from scaling.measure.probe.cases import (
    MAX_REPEATS,
    MAX_SAMPLES,
    MESSAGE_SIZES,
    MIN_SAMPLES,
    ProbeSample,
    as_csv,
    bus_factor,
    cases,
    from_csv,
    goes_on,
    matrix_sizes,
    num_samples_for,
    product_size,
    repeats_for,
)

SAMPLE = ProbeSample("default", "all_reduce", (0, 1, 2, 3), "", True, None, 4096, 7, 2e-6)


def operations(found):
    return Counter(case.operation for case in found)


class TestCases:
    def test_gpus_are_measured_alone_and_all_at_once_and_the_second_launch_messages_only(self):
        found = cases(4, on_gpus=True, peer_copies=True)
        for operation in ("h2d", "d2h", "h2d_d2h"):
            pinned = [case.ranks for case in found if case.operation == operation and case.memory == "pinned"]
            assert pinned == [(0,), (1,), (2,), (3,), (0, 1, 2, 3)]
        assert (operations(found)["peer_copy"], operations(found)["send"]) == (4 * 3, 6)
        assert {case.captured for case in found if case.operation == "all_reduce"} == {False, True}
        found = operations(cases(4, on_gpus=True, only_messages=True))
        assert set(found) == {"send", "swap", "shift", "all_reduce"}

    @pytest.mark.parametrize(("on_gpus", "ranks"), [(True, [(0,), (1,)]), (False, [(0, 1)])])
    def test_products_are_on_each_gpu_alone_or_on_all_cores_at_once(self, on_gpus, ranks):
        without, with_products = (
            set(cases(2, on_gpus=on_gpus, with_products=each)) for each in (False, True)
        )
        added = with_products - without
        assert without < with_products
        names = ["bf16", "float32", "fp16", *(["tf32"] if on_gpus else [])]
        expected = [(f"product_{name}", each) for name in names for each in ranks]
        assert sorted((case.operation, case.ranks) for case in added) == expected
        for case in added:
            sizes = tuple(product_size(case.operation, size) for size in case.sizes_bytes)
            assert sizes == matrix_sizes(on_gpus=on_gpus)

    def test_processes_copy_in_host_memory_and_capture_nothing(self):
        found = cases(2, on_gpus=False)
        assert set(operations(found)) == {"host_copy", "host_sum", "send", "swap", "shift", "all_reduce"}
        assert not any(case.captured or case.memory for case in found)
        assert [case.ranks for case in found if case.operation == "host_copy"] == [(0, 1), (0,), (1,)]

    @pytest.mark.parametrize(("on_gpus", "memory"), [(False, ""), (True, "pinned")])
    def test_mpi_is_one_more_all_reduce_in_host_memory_once(self, on_gpus, memory):
        without, with_mpi = (set(cases(2, on_gpus=on_gpus, with_mpi=mpi)) for mpi in (False, True))
        (added,) = with_mpi - without
        assert without < with_mpi
        assert (added.operation, added.memory, added.ranks) == ("mpi_all_reduce", memory, (0, 1))
        assert added.sizes_bytes == MESSAGE_SIZES
        assert not added.captured
        assert "mpi_all_reduce" not in operations(cases(2, on_gpus=True, only_messages=True, with_mpi=True))
        assert "mpi_all_reduce" not in operations(cases(1, on_gpus=True, with_mpi=True))

    @pytest.mark.parametrize("on_gpus", [False, True])
    def test_single_rank_has_no_one_to_talk_to(self, on_gpus):
        found = operations(cases(1, on_gpus=on_gpus))
        assert not {"send", "swap", "shift", "all_reduce"} & set(found)
        assert found["host_sum"] == 2  # with all cores, and with one

    @pytest.mark.parametrize("on_gpus", [False, True])
    @pytest.mark.parametrize("world_size", [1, 2, 4])
    def test_ranks_of_a_case_are_different_ones_of_the_world(self, world_size, on_gpus):
        for case in cases(world_size, on_gpus=on_gpus, peer_copies=on_gpus):
            assert len(set(case.ranks)) == len(case.ranks)
            assert set(case.ranks) <= set(range(world_size))
            if case.operation in ("send", "swap", "peer_copy"):
                assert len(case.ranks) == 2

    def test_no_case_is_there_twice_and_sizes_ascend(self):
        found = cases(3, on_gpus=True, peer_copies=True)
        assert (len(set(found)), len({case.describe() for case in found})) == (len(found), len(found))
        for case in found:
            assert list(case.sizes_bytes) == sorted(set(case.sizes_bytes))
            assert all(size % 4 == 0 for size in case.sizes_bytes)


class TestHowOften:
    def test_repeats_and_samples_follow_the_time_within_bounds(self):
        assert repeats_for(0.0) == repeats_for(1e-9) == MAX_REPEATS
        assert (repeats_for(1e-3), repeats_for(1.0)) == (2, 1)
        assert num_samples_for(left_s=1.0, sizes_left=5, sample_s=0.019) == 10
        assert num_samples_for(left_s=-1.0, sizes_left=5, sample_s=0.02) == MIN_SAMPLES
        assert num_samples_for(left_s=100.0, sizes_left=1, sample_s=0.0) == MAX_SAMPLES

    @pytest.mark.parametrize(("done", "left_s", "once_s", "more"), [
        (0, -1, 0, True), (1, -1, 100, True), (2, 1.0, 0.01, True), (2, 1.0, 0.1, False),
    ])  # fmt: skip
    def test_two_sizes_are_always_measured_and_others_if_there_is_time(self, done, left_s, once_s, more):
        assert goes_on(done, [1024, 4096, 16384], left_s=left_s, once_s=once_s) == more


class TestSamples:
    def test_products_have_no_bandwidth(self):
        sample = replace(SAMPLE, operation="product_bf16", ranks=(0,), num_bytes=2 * 64**2)
        assert sample.product_size == 64
        (row,) = csv.DictReader(io.StringIO(as_csv([sample])))
        assert (row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]) == ("", "")
        assert from_csv(as_csv([sample])) == [sample]

    def test_table_has_a_row_a_sample_with_both_bandwidths(self):
        (row,) = csv.DictReader(io.StringIO(as_csv([SAMPLE])))
        expected = {"operation": "all_reduce", "ranks": "0 1 2 3", "captured": "True", "repeats": "7"}
        assert {name: row[name] for name in expected} == expected
        assert float(row["algbw_bytes_per_s"]) == 4096 / 2e-6
        assert float(row["busbw_bytes_per_s"]) == 1.5 * 4096 / 2e-6
        assert bus_factor("all_reduce", 4) == bus_factor("mpi_all_reduce", 4) == 1.5
        assert bus_factor("shift", 4) == bus_factor("send", 2) == 1
        assert ",0.01933112," in as_csv([replace(SAMPLE, seconds=0.019331123000000616)])

    def test_samples_are_read_back_from_the_table_and_from_json(self):
        assert ProbeSample.from_row(json.loads(json.dumps(asdict(SAMPLE)))) == SAMPLE
        samples = [SAMPLE, replace(SAMPLE, ranks=(2,), memory="pinned", captured=False, num_threads=1)]
        assert from_csv(as_csv(samples)) == samples
