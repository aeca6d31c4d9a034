"""Scripts that know nothing of this project run as each arm, and are stopped after their steps."""

import sys
from pathlib import Path
from typing import Any

import pytest

from scaling.attach.launch import Run, run_arm

pytestmark = pytest.mark.processes
SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def _run(folder: Path, arm: str, *words: str, command: list[str] = TORCHRUN, deadline_s: float = 60) -> Run:
    cwd = folder / "work"
    cwd.mkdir()
    script = [*command, str(SCRIPTS / words[0]), *words[1:]]
    return run_arm(script, arm, folder / "out", warmup=3, steps=10, deadline_s=deadline_s, cwd=cwd)


@pytest.mark.parametrize("arm", ["baseline", "hook_control", "cached_input", "marked"])
def test_an_arm_makes_its_steps_and_leaves_no_checkpoint(arm: str, tmp_path: Path) -> None:
    run = _run(tmp_path, arm, "plain.py")
    assert run.reason is None, run.reason
    assert [len(rank["step_s"][0]) for rank in run.ranks] == [13, 13]
    assert {name for name, _, _ in run.ranks[0]["phases"]} == (
        {"input", "backward"} if arm == "marked" else set()
    )
    assert not list((tmp_path / "work").iterdir())


def step_time_s(rank: dict[str, Any]) -> float:
    """The mean seconds of a step after the warm-up, of the optimizer that fired least."""
    marks = min(rank["step_s"], key=len)[rank["warmup"] - 1 :]
    return float((marks[-1] - marks[0]) / (len(marks) - 1))


def test_without_exchange_only_the_slow_rank_is_slow(tmp_path: Path) -> None:
    run = _run(tmp_path, "no_exchange", "plain.py", "1")
    assert run.reason is None, run.reason
    fast_s, slow_s = (step_time_s(rank) for rank in run.ranks)
    assert slow_s > 0.03 > fast_s


def test_one_worker_has_one_rank(tmp_path: Path) -> None:
    assert [rank["world_size"] for rank in _run(tmp_path, "one_worker", "plain.py").ranks] == [1]


def test_a_script_without_ddp_is_refused(tmp_path: Path) -> None:
    run = _run(tmp_path, "baseline", "without_ddp.py", command=[sys.executable])
    assert run.reason == "it makes steps without DistributedDataParallel"


def test_a_run_past_its_deadline_is_ended_and_says_so(tmp_path: Path) -> None:
    run = _run(tmp_path, "baseline", "plain.py", deadline_s=0.5)
    assert run.reason == "it did not make 13 steps in 0.5 s"
