"""Causes built into synthetic samples: each is the first that is said, and nothing where none is."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.explain import explained, limit_of
from scaling.analysis.explain_view import Known
from scaling.analysis.periodic import comb, periodic_slowness
from scaling.analysis.rank_times import excess_s
from scaling.analysis.samples import IterationLaunch, read_cells
from scaling.measure.budget import RankStep, Span
from scaling.report.advice_text import overview
from scaling.report.text import line_of, text_of
from scaling.store import ResultsFolder

MS = 1e-3
PAIR = {"aggregator": "ring", "world_size": 2}
FOUR = {"aggregator": "ring", "world_size": 4, "step": "overlapped"}
OVERLAPPED = {**PAIR, "step": "overlapped"}


def overlapped(forward=4.0, pieces=(2.0, 2.0, 2.0, 0.0), before=0.0, stop=14.0):
    """A rank's spans of an overlapped step, in ms: backward pieces up to each bucket, and its exchange."""
    spans, now = [], before
    if before:
        spans.append(("input", "main", 0.0, before))
    spans.append(("forward", "main", now, now := now + forward))
    for number, piece in enumerate(pieces):
        spans.append(("backward", "main", now, now := now + piece))
        if number < len(pieces) - 1:
            spans.append(("communicate", "comm", now, max(now, stop - 1)))
    spans.append(("update", "main", stop - 1, stop))
    return [(phase, lane, start * MS, end * MS) for phase, lane, start, end in spans]


def eager(forward=4.0, backward=8.0, exchange=0.5, first=()):
    spans, now = [], 0.0
    for phase, length in (*first, ("forward", forward), ("backward", backward), ("communicate", exchange)):
        spans.append((phase, "main", now, now := now + length))
    return [(phase, lane, start * MS, end * MS) for phase, lane, start, end in spans]


def steps(milliseconds, count=60, launches=3):
    return [[milliseconds * MS] * count] * launches


def said_first(study, cell_id, **more):
    return limit_of(study.explained(**more)[cell_id])


def kinds(study, cell_id):
    return {one.kind for one in study.explained()[cell_id]}


def values(found, *names):
    return found.kind, *(found.values[name] for name in names)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize(("slow", "phase", "bucket"), [
    ({"forward": 7.0}, "forward", None),
    ({"pieces": (5.0, 2.0, 2.0, 0.0)}, "backward", 0),
    ({"pieces": (2.0, 2.0, 5.0, 0.0)}, "backward", 2),
    ({"pieces": (2.0, 2.0, 2.0, 3.0)}, "backward", 3),
    ({"before": 3.0}, "input", None),
])  # fmt: skip
def test_a_slow_rank_is_named_with_phase_bucket_and_what_is_lost(timed, rank, slow, phase, bucket):
    ranks = [overlapped(stop=16.0, **(slow if own == rank else {})) for own in range(4)]
    if bucket == 3:  # after the last exchange has begun nobody waits: it delays the next step alone
        for at, (name, lane, start, stop) in enumerate(ranks[rank]):
            if name == "communicate":
                ranks[rank][at] = (name, lane, start + 3 * MS, stop + 3 * MS)
    found = said_first(timed, timed.add(steps(16), spans=ranks, **FOUR))
    expected = "slow_rank", rank, phase, bucket, pytest.approx(3 * MS)
    assert values(found, "rank", "phase", "bucket", "lost_s") == expected
    assert f"rank {rank} is slow in {phase}" in text_of(found)


def test_of_two_ranks_the_slower_is_named_in_an_eager_step_but_no_root_for_its_sums_or_update(timed):
    cell = timed.add(steps(16.5), spans=[eager(exchange=4.5), eager(forward=8.0)], **PAIR)
    expected = "slow_rank", 1, "forward", pytest.approx(4 * MS)
    assert values(said_first(timed, cell), "rank", "phase", "lost_s") == expected
    root = [*eager(), ("reduce", "main", 12.5 * MS, 15 * MS), ("update", "main", 15 * MS, 16 * MS)]
    cell = timed.add(steps(16), spans=[root, eager(exchange=4.0)], aggregator="tree", world_size=2)
    assert "slow_rank" not in kinds(timed, cell)


def one_slow(slow):
    return [overlapped(stop=16.0, forward=7.0 if rank == slow else 4.0) for rank in range(4)]


@pytest.mark.parametrize(("unprofiled_ms", "is_named"), [(16.0, True), (14.0, True), (12.5, False)])
def test_a_rank_is_not_slow_where_profiling_may_have_made_it_so(timed, unprofiled_ms, is_named):
    cell = timed.add(steps(unprofiled_ms), spans=one_slow(2), split_s=16 * MS, **FOUR)
    assert ("slow_rank" in kinds(timed, cell)) is is_named


@pytest.mark.parametrize(("other", "is_named"), [(2, True), (0, False), (None, False)])
def test_a_rank_is_slow_only_if_it_is_so_in_the_replicate_of_an_a_a_pair(timed, other, is_named):
    cell = timed.add(steps(16, launches=1), spans=one_slow(2), **FOUR)
    timed.add(steps(16, launches=1), spans=one_slow(other), aa_replicate=1, **FOUR)
    assert ("slow_rank" in kinds(timed, cell)) is is_named


def test_a_rank_that_is_slow_in_one_launch_of_three_is_not_named(timed):
    even, slow = [overlapped()] * 2, [overlapped(forward=8.0, stop=18.0), overlapped(stop=18.0)]
    cell = timed.add(steps(14), spans=even, **OVERLAPPED)
    other = timed.add(steps(14), spans=slow, aggregator="tree", world_size=2, step="overlapped")
    one, three = timed.cells[-1].launches[0], timed.cells[0].launches
    timed.cells[0].launches[0] = type(one)(0, one.iterations, one.rank_steps_s, one.profiled_steps)
    assert (len(three), said_first(timed, other).kind) == (3, "slow_rank")
    assert said_first(timed, cell).kind != "slow_rank"


def on_host(*queued_and_cores):
    host = [{"window_s": 1.0, "queued_s": queued_s, "cores": cores} for queued_s, cores in queued_and_cores]
    return {"summary": {"host": host}}


def test_a_busy_core_is_named_as_what_slows_the_rank(timed):
    ranks = [overlapped(forward=8.0, stop=18.0), overlapped(stop=18.0)]
    cell = timed.add(steps(18), spans=ranks, **on_host((0.3, [0]), (0.0, [1])), **OVERLAPPED)
    found = said_first(timed, cell, num_cores=2)
    assert (found.kind, "it waits for a CPU core 30% of the time" in text_of(found)) == ("slow_rank", True)


@pytest.mark.parametrize(("queued_s", "cores", "num_cores", "kind", "told"), [
    (0.45, [3], 8, "oversubscribed", {"cores": 1, "share": pytest.approx(0.45)}),
    (0.25, [0, 1], 2, "busy_host", {}),
])  # fmt: skip
def test_other_processes_are_told_from_workers_on_one_core(timed, queued_s, cores, num_cores, kind, told):
    cell = timed.add(steps(12.5), spans=eager(), **PAIR, **on_host(*[(queued_s, cores)] * 2))
    assert values(said_first(timed, cell, num_cores=num_cores), *told) == (kind, *told.values())


def gpu(clock_hz=1.98e9, **more):
    held = {"sm_clock_after_hz": clock_hz, "sm_clock_max_hz": 1.98e9}
    return {"window_s": 1.0, **held, "throttle_reasons": [], **more}


def on_gpus(*gpus):
    return {"device": "cuda", "summary": {"gpu": list(gpus)}, **PAIR}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gpu_whose_clock_is_held_down_is_named_with_its_rank(timed, rank):
    gpus = [gpu(), gpu()]
    gpus[rank] = gpu(0.99e9, throttle_reasons=["power cap"], throttled_s={"power cap": 1.0})
    found = said_first(timed, timed.add(steps(12.5), spans=eager(), **on_gpus(*gpus)))
    lost_s = pytest.approx(0.5 * 12 * MS)  # half of forward and backward
    assert values(found, "rank", "reason", "lost_s") == ("throttled_gpu", rank, "power cap", lost_s)


def test_a_power_cap_that_takes_little_is_a_doubt_and_no_limit(timed):
    cell = timed.add(steps(12.5), spans=eager(), **on_gpus(gpu(1.9e9, throttle_reasons=["power cap"]), gpu()))
    assert (said_first(timed, cell).kind, "disturbed_gpu" in kinds(timed, cell)) == ("computation", True)


def test_another_process_on_a_gpu_is_named_with_what_the_rank_loses_if_that_was_measured(timed):
    more = on_gpus(gpu(), gpu(other_processes=1))
    guessed = timed.add(steps(12.5), spans=eager(), **more)
    measured = timed.add(steps(15.5), spans=[eager(exchange=3.5), eager(backward=11.0)], batch=128, **more)
    first = said_first(timed, guessed)
    assert values(first, "rank", "is_measured") == ("shared_gpu", 1, False)
    assert "may lose up to" in text_of(first)
    assert values(timed.explained()[measured][0], "lost_s") == ("shared_gpu", pytest.approx(3 * MS))
    assert "slow_rank" not in kinds(timed, measured), "said once"


def test_every_kth_slow_step_is_named_with_its_rank_and_phase(timed):
    slow = [overlapped(forward=34.0, stop=44.0), overlapped(stop=44.0)]
    own = [(44 if number % 10 == 3 else 14) * MS for number in range(60)]
    cell = timed.add([own] * 3, spans=[overlapped()] * 2, **OVERLAPPED)
    for launch in timed.cells[-1].launches:
        ranks = [RankStep(44 * MS, [Span(*one) for one in spans], 0.0) for spans in slow]
        launch.profiled_steps[3] = type(launch.profiled_steps[3])(launch.profiled_steps[3].iteration, ranks)
    found = said_first(timed, cell)
    expected = "periodic", 10, 0, "forward", pytest.approx(3 * MS)
    assert values(found, "period", "rank", "phase", "lost_s") == expected
    assert text_of(found).startswith("every 10th step takes 30.0 ms more, on rank 0 in forward")


class TestComb:
    @pytest.mark.parametrize("period", [3, 7, 10, 15])
    @pytest.mark.parametrize("seed", range(5))
    def test_a_period_is_found_in_noise_with_outliers(self, period, seed):
        random = np.random.default_rng(seed)
        times = random.lognormal(np.log(0.01), 0.1, 90)
        times[random.integers(90, size=3)] *= 3
        times[period - 1 :: period] += 0.02
        assert comb(times).period == period

    @pytest.mark.parametrize("spread", [0.01, 0.1, 0.5])
    def test_noise_alone_has_no_period(self, spread):
        random = np.random.default_rng(1)
        assert not any(comb(random.lognormal(np.log(0.01), spread, 80)) for _ in range(200))

    def test_slow_steps_at_random_have_none(self):
        random = np.random.default_rng(2)
        for _ in range(100):
            times = random.normal(0.01, 1e-4, 80)
            times[random.choice(80, 8, replace=False)] *= 4
            assert comb(times) is None

    def test_the_first_steps_of_blocks_are_no_period(self):
        times = np.full(80, 0.01)
        times[::10] = 0.03
        assert (comb(times).period, comb(times, range(0, 80, 10))) == (10, None)

    @pytest.mark.parametrize(("period", "block", "count"), [(7, 14, 83), (7, 10, 50), (10, 20, 99)])
    def test_stalls_in_first_steps_of_blocks_hide_no_period(self, period, block, count):
        times = np.full(count, 0.01)
        times[period - 1 :: period] = 0.05
        assert comb(times, (0, *range(block - 1, count, block))).period == period

    @pytest.mark.parametrize(("launches", "is_found"), [(1, False), (2, True), (3, True)])
    def test_launches_that_agree_need_fewer_steps_each(self, launches, is_found):
        steps_s = np.full((1, 20), 0.01)
        steps_s[:, 2::3] = 0.05
        cell = [IterationLaunch(repeat, np.arange(20), steps_s, []) for repeat in range(launches)]
        assert (periodic_slowness(cell, ()) is not None) is is_found

    @pytest.mark.quality
    @pytest.mark.parametrize(("excess", "fewest"), [(0.0, 0.0), (1.0, 0.96), (4.0, 1.0)])
    def test_a_stall_planted_into_committed_gpu_launches_is_found(self, excess, fewest):
        """Every seventh step takes so many usual steps more; launches with eight such steps."""
        launches = [launch for launch in gpu_launches() if len(launch.step_s) >= 56]
        assert len(launches) >= 396
        found = 0
        for launch in launches:
            times = launch.step_s.copy()
            times[6::7] += excess * np.median(times)
            one = comb(times, launch.blocks)
            found += one is not None and one.period == 7
        assert found >= fewest * len(launches)
        assert excess or not found


@cache
def gpu_launches():
    parts = [Path(__file__).parents[2] / part for part in ("results/reference", "benchmarks/results")]
    folders = [path.parent for part in parts for path in sorted(part.glob("*/study.yaml"))]
    cells = [cell for folder in folders for cell in read_cells(ResultsFolder(folder))]
    return [launch for cell in cells if cell.cell["device"] == "cuda" for launch in cell.launches]


def test_tiny_buckets_are_named_and_not_their_exchange_as_such(timed):
    spans = [("forward", "main", 0.0, 4 * MS)]
    for start in 4 * MS + 0.4 * MS * np.arange(20):
        ready = start + 0.1 * MS
        spans += [("backward", "main", start, ready), ("communicate", "comm", ready, ready + 0.3 * MS)]
    summary = {"wire_bytes_per_rank": [20 * 4096] * 2}
    cell = timed.add(steps(12), spans=spans, bucket_mb=0.1, summary=summary, **OVERLAPPED)
    assert values(timed.explained()[cell][0], "num_buckets") == ("tiny_buckets", 20)
    assert not {"exposed_communication", "not_hidden"} & kinds(timed, cell)


@pytest.mark.parametrize(("behind_ms", "kind"), [(0.03, "launches"), (6.0, "computation")])
def test_a_gpu_that_is_never_behind_the_host_waits_for_launches(timed, behind_ms, kind):
    cell = timed.add(steps(12.5), spans=eager(), **PAIR, device="cuda")
    for launch in timed.cells[-1].launches:
        for number, step in enumerate(launch.profiled_steps):
            behind_s = dict.fromkeys(("forward", "backward"), behind_ms * MS)
            ranks = [RankStep(one.step_s, one.spans, one.start_s, behind_s) for one in step.ranks]
            launch.profiled_steps[number] = type(step)(step.iteration, ranks)
    found = said_first(timed, cell)
    assert (found.kind, "30 us after the host" in text_of(found)) == (kind, kind == "launches")


@pytest.mark.parametrize("step", ["overlapped", "eager"])
def test_nothing_is_named_where_all_ranks_take_equally_long(timed, step):
    spans = overlapped(stop=12.0) if step == "overlapped" else eager()
    random = np.random.default_rng(3)
    launches = [list(random.lognormal(np.log(14 * MS), 0.05, 80)) for _ in range(3)]
    cell = timed.add(launches, spans=[spans] * 4, split_s=spans[-1][3], **{**FOUR, "step": step})
    assert said_first(timed, cell).kind == "computation"


def test_more_workers_are_not_advised_where_more_were_measured_and_brought_nothing(timed):
    two = timed.add(steps(12.5), spans=eager(), **PAIR)
    assert "try more workers" in line_of(said_first(timed, two))
    timed.add(steps(13.0), spans=eager(), aggregator="ring", world_size=4)
    assert "try more workers" not in line_of(said_first(timed, two))


@pytest.mark.parametrize(("mfu", "is_advised"), [(0.2, True), (0.5, False), (None, False)])
def test_compile_is_advised_where_little_of_the_matrix_rate_is_used(timed, mfu, is_advised):
    cell = timed.add(steps(12.5), spans=eager(), **PAIR, device="cuda")
    limit = limit_of(explained(Known.of(to_rows(timed.table.assign(mfu=mfu)), timed.cells))[cell])
    assert "try more GPUs" in line_of(limit)
    assert ("try compile=true" in line_of(limit)) == is_advised
    assert "; try step=captured to see whether kernel launches add to the step; " in line_of(limit)


def test_the_overview_says_first_what_the_cell_says_first_and_the_same_of_several_once(timed):
    ranks = [overlapped(stop=16.0), overlapped(forward=7.0, stop=16.0)]
    for name in ("ring", "tree", "all_reduce"):
        timed.add(steps(16), spans=ranks, **{**OVERLAPPED, "aggregator": name})
    found = timed.explained()
    text = " ".join("\n".join(overview(to_rows(timed.table), found)).split())
    assert text.count("rank 1 is slow in forward") == 1
    assert {own[0].kind for own in found.values()} == {"slow_rank"}


def test_the_excess_is_over_the_median_rank_and_of_two_over_the_other():
    shown = [excess_s(np.array([step])).tolist() for step in ([1.0, 4.0], [1.0, 4.0, 1.5])]
    assert shown == [[[-3.0, 3.0]], [[-0.5, 2.5, 0.0]]]
