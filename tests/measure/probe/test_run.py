"""What is started for a probe, what is kept if a launch ends too early, how the time of a case is spent."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from launchers.local import MpirunLauncher
from launchers.rank_info import LAUNCHER_VARIABLE
from scaling.errors import LaunchError
from scaling.measure.probe import ranks
from scaling.measure.probe import run as module
from scaling.measure.probe.cases import COPY_SIZES, MAX_SAMPLES, MIN_SAMPLES, ProbeCase, ProbeSample
from scaling.measure.probe.ranks import Operations, Prober
from scaling.measure.probe.run import ProbeLaunch, ProbeMeasurement, ProbeSpec, measure, read_lines, spec_for
from scaling.process_group import run_in_process

SAMPLE = ProbeSample("default", "send", (0, 1), "", True, None, 4096, 7, 2e-6)
FACTS = {"facts": {"torch": "2.11.0"}}
LINES = [FACTS, {"sample": asdict(SAMPLE)}, {"note": "too little memory"}]
DONE = {"done": True}


class TestSpec:
    def test_one_worker_a_gpu_whose_second_launch_goes_without_access_and_up_to_four_without(self):
        assert spec_for(4, 64, None, 60.0, False) == ProbeSpec(4, "cuda", 60.0, 16)
        assert spec_for(0, 2, None, 60.0, False) == ProbeSpec(2, "cpu", 60.0, 1)
        assert spec_for(0, 64, None, 60.0, False).world_size == 4
        assert spec_for(0, 2, 3, 60.0, False) == ProbeSpec(3, "cpu", 60.0, 1)
        first, second = spec_for(4, 64, None, 60.0, False).launches()
        assert first == ProbeLaunch(host_only=False, only_messages=False, seconds=first.seconds)
        assert second == ProbeLaunch(host_only=True, only_messages=True, seconds=second.seconds)
        assert first.seconds + second.seconds == 60.0

    @pytest.mark.parametrize(("arguments", "message"), [
        ((4, 64, 8, 60.0, False), "--world-size is 8, but 4 GPUs are visible"),
        ((4, 64, -1, 60.0, False), "--world-size is -1"),
        ((4, 64, 0, 60.0, False), "--world-size is 0"), ((4, 64, None, 0.0, False), "--seconds is 0"),
        ((4, 64, None, 9.0, False, "srun"), "--launcher is 'srun'; allowed: local, mpirun"),
        ((0, 2, None, 60.0, True), "--no-peer-access forbids access between GPUs"),
    ])  # fmt: skip
    def test_what_cannot_be_is_refused(self, arguments, message):
        with pytest.raises(LaunchError, match=message):
            spec_for(*arguments)

    @pytest.mark.parametrize(("num_gpus", "only_host"), [(1, False), (0, False), (4, True)])
    def test_one_launch_of_everything_is_enough_where_there_is_no_access_to_forbid(self, num_gpus, only_host):
        expected = [ProbeLaunch(host_only=only_host, only_messages=False, seconds=60.0)]
        assert spec_for(num_gpus, 64, None, 60.0, only_host).launches() == expected


class TestMeasure:
    @pytest.fixture
    def started(self, monkeypatch):
        """Puts workers in place that write these lines and exit so; returns the commands and environments."""
        calls = []

        def install(*launches):
            left = list(launches)

            def run_to_end(command, environment, output, limit_s):
                calls.append((command, environment))
                lines, code = left.pop(0)
                path = Path(command[command.index("--samples") + 1])
                path.write_text("".join(f"{json.dumps(x)}\n" for x in lines))
                output.write(b"Traceback\nRuntimeError: no luck\n")
                return code

            monkeypatch.setattr(module, "run_to_end", run_to_end)
            return calls

        return install

    def test_both_launches_are_gathered(self, started):
        calls = started(([*LINES, DONE], 0), ([*LINES, DONE], 0))
        said = []
        measured = measure(spec_for(2, 8, None, 10.0, False), said.append, {"HOME": "/home/me"})
        assert (len(measured.samples), measured.facts) == (2, FACTS["facts"])
        assert (measured.notes, measured.failures) == (["too little memory"] * 2, [])
        (first, first_environment), (second, second_environment) = calls
        assert first[first.index("-m", 3) + 1] == "scaling.measure.probe.worker"
        assert first[first.index("--device") :] == ["--device", "cuda", "--seconds", "7.0"]
        assert second[-2:] == ["--no-peer-access", "--only-messages"]
        assert "NCCL_P2P_DISABLE" not in first_environment
        assert (second_environment["NCCL_P2P_DISABLE"], second_environment["HOME"]) == ("1", "/home/me")
        assert "without access between GPUs" in said[1]

    def test_mpirun_starts_the_same_worker_and_one_that_is_missing_is_an_error(self, started, monkeypatch):
        mpirun = MpirunLauncher("/opt/bin/mpirun", "openmpi", as_root=False)
        monkeypatch.setattr(MpirunLauncher, "find", lambda: mpirun)
        calls = started(([*LINES, DONE], 0))
        measure(spec_for(0, 8, 2, 10.0, False, "mpirun"), print, {})
        ((command, environment),) = calls
        assert command[0] == "/opt/bin/mpirun"
        assert command[command.index("-np") : command.index("-np") + 2] == ["-np", "2"]
        assert "scaling.measure.probe.worker" in command
        assert environment[LAUNCHER_VARIABLE] == "openmpi"

        def none_here():
            raise ValueError("no mpirun beside this Python")

        monkeypatch.setattr(MpirunLauncher, "find", none_here)
        with pytest.raises(LaunchError, match="no mpirun beside this Python"):
            measure(spec_for(0, 8, 2, 10.0, False, "mpirun"), print, {})
        assert len(calls) == 1

    @pytest.mark.parametrize(
        ("code", "how"), [(1, "ended with exit code 1"), (None, "ran past"), (0, "exit code 0")]
    )
    def test_launch_that_ends_too_early_keeps_what_it_has_and_says_why(self, started, code, how):
        started((LINES, code), ([*LINES, DONE], 0))
        measured = measure(spec_for(2, 8, None, 10.0, False), print, {})
        assert measured.samples == [SAMPLE] * 2  # the second launch may still tell something
        (failure,) = measured.failures
        assert how in failure
        assert "RuntimeError: no luck" in failure

    def test_nothing_measured_and_an_environment_that_contradicts_are_errors(self, started):
        calls = started(([], 2))
        with pytest.raises(LaunchError, match=r"exit code 2(.|\n)*no luck"):
            measure(spec_for(0, 2, None, 10.0, False), print, {})
        with pytest.raises(LaunchError, match="NCCL_P2P_DISABLE is set; unset it, or use --no-peer-access"):
            measure(spec_for(2, 8, None, 10.0, False), print, {"NCCL_P2P_DISABLE": "1"})
        assert len(calls) == 1


def test_line_that_was_cut_off_ends_the_reading_and_samples_as_json_hold_the_facts(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in LINES) + '{"sample": {"laun')
    measured = ProbeMeasurement()
    assert not read_lines(path, measured)
    assert measured.samples == [SAMPLE]
    assert not read_lines(tmp_path / "none.jsonl", measured)
    measured = ProbeMeasurement(facts=FACTS["facts"], samples=[SAMPLE], notes=["a note"])
    loaded = json.loads(measured.samples_text(as_json=True))
    assert (loaded["facts"], ProbeSample.from_row(loaded["samples"][0])) == (FACTS["facts"], SAMPLE)
    assert measured.samples_text(as_json=False).splitlines()[1].startswith("default,send,0 1,")


COPIES = ProbeCase("host_copy", (0,), COPY_SIZES)


class OneRank:
    """A group of one rank."""

    rank, world_size = 0, 1

    def share(self, value, source=0):
        return value

    def largest(self, value):
        return value

    def barrier(self):
        pass


class Bench:
    """A prober whose samples take what `once_s` says of (size, how many samples of it there were before)."""

    def __init__(self, monkeypatch, once_s):
        self.now_s, self.rows, self.asked = 0.0, [], []
        monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.prober = Prober(
            OneRank(), torch.device("cpu"), torch.get_num_threads(), self.rows.append, host_only=False
        )
        self.prober._prepared = lambda case, size: (self.asked.append((size, [])), ("run", ""))[1]

        def sample(case, run, repeats):
            size, before = self.asked[-1]
            seconds = once_s(size, len(before))
            before.append(repeats)
            self.now_s += repeats * seconds
            return seconds

        self.prober._sample = sample

    def measure(self, budget_s, case=COPIES):
        self.prober._measure(case, list(case.sizes_bytes), budget_s)
        return [row["sample"] for row in self.rows]


def num_samples(samples):
    return {size: sum(one["num_bytes"] == size for one in samples) for size in COPY_SIZES}


def test_what_the_first_operation_sets_up_costs_no_samples_and_without_time_there_are_few(monkeypatch):
    bench = Bench(monkeypatch, lambda size, before: 1e-4 if (size, before) != (COPY_SIZES[0], 0) else 5.0)
    assert set(num_samples(bench.measure(budget_s=2.0)).values()) == {MAX_SAMPLES}
    bench = Bench(monkeypatch, lambda size, before: 1.0)
    assert list(num_samples(bench.measure(budget_s=0.0)).values()) == [MIN_SAMPLES, MIN_SAMPLES, 0, 0]


def test_samples_are_as_long_as_several_take_in_a_row_whatever_pauses(monkeypatch):
    for paused in (1, 2):
        bench = Bench(monkeypatch, lambda size, before, at=paused: 20e-6 if before != at else 50e-3)
        assert {one["repeats"] for one in bench.measure(budget_s=10.0)} == {100}
    # One alone waits for its start, which those in a row hide.
    bench = Bench(monkeypatch, lambda size, before: 200e-6 if before == 1 else 40e-6)
    assert {one["repeats"] for one in bench.measure(budget_s=10.0)} == {50}


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_hands_out_rows(rank):
    rows = []
    group = OneRank()
    group.rank = rank
    prober = Prober(group, torch.device("cpu"), torch.get_num_threads(), rows.append, host_only=True)
    prober._record(COPIES, 4096, 1, 1e-3)
    assert [row["sample"]["launch"] for row in rows] == ["host_only"] * (rank == 0)


CPU = torch.device("cpu")
KIB = 1024


def run_all(case, world_size=3):
    """Runs the case once on every rank: (took part?, bytes sent, buffers) of each."""

    def rank(group):
        operations = Operations(group, CPU)
        run = operations.prepare(case, KIB)
        for name, buffer in operations._buffers.items():
            buffer.fill_(group.rank + 1 if "other" not in name else 0)
        if run is not None:
            run()
        first = {name: float(buffer[0]) for name, buffer in operations._buffers.items()}
        assert {buffer.nbytes for buffer in operations._buffers.values()} <= {KIB}
        return run is not None, group.meter.bytes_sent, first

    return run_in_process(world_size, rank)


@pytest.mark.parametrize("operation", ["send", "swap"])
def test_pair_exchanges_and_the_third_rank_waits(operation):
    (takes_0, sent_0, at_0), (takes_1, _, _), (takes_2, sent_2, at_2) = run_all(
        ProbeCase(operation, (0, 2), (KIB,))
    )
    assert (takes_0, takes_1, takes_2, at_2["device_other"]) == (True, False, True, 1.0)
    assert at_0["device_other"] == (3.0 if operation == "swap" else 0.0)
    assert (sent_0, sent_2) == (KIB, KIB if operation == "swap" else 0)


def test_shift_brings_each_ranks_bytes_to_the_next_and_all_reduce_sums():
    results = run_all(ProbeCase("shift", (0, 1, 2), (KIB,)))
    assert [first["device_other"] for *_, first in results] == [3.0, 1.0, 2.0]
    assert [first["device"] for *_, first in run_all(ProbeCase("all_reduce", (0, 1, 2), (KIB,)))] == [6.0] * 3


def test_all_reduce_by_mpi_goes_over_the_group_that_mpi_carries_or_says_what_the_launch_lacks():
    def rank(group):
        carried = []

        class Carried:
            def all_reduce(self, tensor):
                carried.append(tensor.nbytes)
                group.all_reduce(tensor)

        group.over = {"mpi": Carried()}.__getitem__
        operations = Operations(group, CPU)
        run = operations.prepare(ProbeCase("mpi_all_reduce", (0, 1), (KIB,)), KIB)
        (buffer,) = operations._buffers.values()
        buffer.fill_(group.rank + 1)
        run()
        return carried, float(buffer[0])

    assert run_in_process(2, rank) == [([KIB], 3.0)] * 2
    with pytest.raises(LaunchError, match="mpi cannot be used by these ranks: it needs mpi4py"):
        case = ProbeCase("mpi_all_reduce", (0, 1), ())
        run_in_process(2, lambda group: Operations(group, CPU).prepare(case, 4))


@pytest.mark.parametrize("operation", ["host_copy", "host_sum"])
def test_copies_and_sums_stay_on_the_rank(operation):
    results = run_all(ProbeCase(operation, (0,), (KIB,)))
    assert [takes_part for takes_part, *_ in results] == [True, False, False]
    assert results[0][2] == {"host": 1.0, "host_other": 1.0}
    assert all(sent == 0 for _, sent, _ in results)


def test_peer_copy_writes_into_the_memory_of_the_other():
    def rank(group):
        operations = Operations(group, CPU)
        run = operations.prepare(ProbeCase("peer_copy", (2, 0), (KIB,)), KIB)
        operations._peer_memory.local.fill_(group.rank)
        group.barrier()
        if run is not None:
            run()
        group.barrier()
        return run is not None, float(operations._peer_memory.local[0])

    assert run_in_process(3, rank) == [(False, 2.0), (False, 1.0), (True, 2.0)]


def test_smaller_size_uses_the_buffer_that_is_there():
    def rank(group):
        operations = Operations(group, CPU)
        for size in (KIB, 4 * KIB, KIB):
            operations.prepare(ProbeCase("host_copy", (0,), (KIB, 4 * KIB)), size)
        return operations._buffers["host"].nbytes

    assert run_in_process(1, rank) == [4 * KIB]
