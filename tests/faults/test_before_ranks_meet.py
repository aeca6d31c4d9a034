"""A rank that goes wrong before the ranks have met, when no watcher knows it yet."""

import os

import pytest
import yaml

from tests.faults.commands import ENOUGH_S, HERE, command_in, in_general, line_with, study_of

pytestmark = pytest.mark.processes

JOIN_TIMEOUT_S = 6


@pytest.fixture
def planted(tmp_path, draw):
    """planted(fault, launcher): runs a study of two ranks, one of which goes wrong so."""

    def run(fault, launcher):
        rank, once = draw.randrange(2), tmp_path / "once"
        command = command_in(tmp_path)
        command.study.write_text(yaml.safe_dump(study_of()))
        path = os.pathsep.join([str(HERE / "early"), command.environment["PYTHONPATH"]])
        outcome = command.run(
            *("--launcher", launcher),
            PYTHONPATH=path,
            PLANTED=f"{fault} {rank} {once}",
            SCALING_JOIN_TIMEOUT_S=str(JOIN_TIMEOUT_S),
        )
        print(outcome.stderr)
        assert "Traceback" not in outcome.stderr
        assert outcome.returncode == 0, "the launch was tried once more"
        assert set(command.states().values()) == {"done"}
        took_s = (command.out / "launches" / "001.log").stat().st_mtime - once.stat().st_mtime
        return rank, outcome.stderr, took_s

    return run


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_rank_that_exits_without_a_word_before_the_ranks_have_met(planted, launcher, found):
    rank, said, took_s = planted("0", launcher)
    line = line_with(said, f": rank {rank} left first", "before the ranks had met")
    assert took_s < ENOUGH_S
    found(in_general(line), "nothing: the launch is tried once more")


def test_rank_that_is_stopped_before_the_ranks_have_met(planted, found):
    rank, said, _ = planted("stop", "local")
    line = line_with(said, f": rank {rank} is behind", "stopped by a signal, before the ranks had met")
    found(in_general(line), "nothing: the launch is tried once more")
