"""A rank that goes wrong before the ranks have met, when no watcher knows it yet."""

import os

import pytest
import yaml

from tests.faults.commands import HERE, command_in, in_general, line_with, study_of

pytestmark = pytest.mark.processes

JOIN_TIMEOUT_S = 20
"""This time has to pass where a rank is stopped; ranks that are forked meet sooner."""


@pytest.fixture
def planted(tmp_path, draw):
    """planted(fault, launcher): runs a study of two ranks, one of which goes wrong so."""

    def run(fault, launcher):
        rank, once = draw.randrange(2), tmp_path / "once"
        command = command_in(tmp_path)
        command.study.write_text(yaml.safe_dump(study_of()))
        path = os.pathsep.join([str(HERE / "early"), command.environment["PYTHONPATH"]])
        # In a zygote it is planted as that starts.
        run_command = command.run if launcher == "local" else command.run_here
        outcome = run_command(
            *("--launcher", launcher),
            PYTHONPATH=path,
            PLANTED=f"{fault} {rank} {once}",
            **({"SCALING_JOIN_TIMEOUT_S": str(JOIN_TIMEOUT_S)} if fault == "stop" else {}),
        )
        print(outcome.stderr)
        assert "Traceback" not in outcome.stderr
        assert outcome.returncode == 0, "the launch was tried once more"
        assert set(command.states().values()) == {"done"}
        return rank, outcome.stderr

    return run


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_rank_that_exits_without_a_word_before_the_ranks_have_met(planted, launcher, found):
    rank, said = planted("0", launcher)
    line = line_with(said, f": rank {rank} left first", "before the ranks had met")
    found(in_general(line), "nothing: the launch is tried once more")


def test_rank_that_is_stopped_before_the_ranks_have_met(planted, found):
    rank, said = planted("stop", "local")
    line = line_with(said, f": rank {rank} is behind", "stopped by a signal, before the ranks had met")
    found(in_general(line), "nothing: the launch is tried once more")
