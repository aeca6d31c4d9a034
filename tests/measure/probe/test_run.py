"""What is started for a probe, and what is kept of a launch that ends too early."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from launchers.local import MpirunLauncher
from launchers.rank_info import LAUNCHER_VARIABLE
from scaling.errors import LaunchError
from scaling.measure.probe import run as module
from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.run import ProbeLaunch, ProbeMeasurement, ProbeSpec, measure, read_lines, spec_for

SAMPLE = ProbeSample("default", "send", (0, 1), "", True, None, 4096, 7, 2e-6)
FACTS = {"facts": {"torch": "2.11.0"}}
LINES = [FACTS, {"sample": asdict(SAMPLE)}, {"note": "too little memory"}]
DONE = {"done": True}


class TestSpec:
    def test_one_worker_a_gpu_with_its_share_of_the_cores_and_without_up_to_four_processes(self):
        assert spec_for(4, 64, None, 60.0, False) == ProbeSpec(4, "cuda", 60.0, 16)
        assert spec_for(0, 2, None, 60.0, False) == ProbeSpec(2, "cpu", 60.0, 1)
        assert spec_for(0, 64, None, 60.0, False).world_size == 4
        assert spec_for(0, 2, 3, 60.0, False) == ProbeSpec(3, "cpu", 60.0, 1)

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

    def test_second_launch_goes_without_access_between_gpus_and_measures_messages(self):
        first, second = spec_for(4, 64, None, 60.0, False).launches()
        assert first == ProbeLaunch(host_only=False, only_messages=False, seconds=first.seconds)
        assert second == ProbeLaunch(host_only=True, only_messages=True, seconds=second.seconds)
        assert first.seconds + second.seconds == 60.0

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
                Path(command[command.index("--samples") + 1]).write_text(
                    "".join(f"{json.dumps(x)}\n" for x in lines)
                )
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


def test_line_that_was_cut_off_ends_the_reading(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in LINES) + '{"sample": {"laun')
    measured = ProbeMeasurement()
    assert not read_lines(path, measured)
    assert measured.samples == [SAMPLE]
    assert not read_lines(tmp_path / "none.jsonl", measured)


def test_samples_as_json_hold_the_facts():
    measured = ProbeMeasurement(facts=FACTS["facts"], samples=[SAMPLE], notes=["a note"])
    loaded = json.loads(measured.samples_text(as_json=True))
    assert (loaded["facts"], ProbeSample.from_row(loaded["samples"][0])) == (FACTS["facts"], SAMPLE)
    assert measured.samples_text(as_json=False).splitlines()[1].startswith("default,send,0 1,")
