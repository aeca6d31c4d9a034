"""Which runs an attached script makes, and what is said of its files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scaling.attach import study
from scaling.attach.arms import ONCE, REPEATED
from scaling.attach.launch import Run
from tests.attach.test_answer import _rank


def _runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_s: dict[str, float], **facts: Any
) -> tuple[Counter[str], list[str]]:
    """How often each arm ran of a script whose steps take so long (0.1 s otherwise), and the answer."""
    ran: Counter[str] = Counter()

    def run_arm(_: Any, arm: str, *__: Any, **___: Any) -> Run:
        ran[arm] += 1
        ranks = [_rank(at, [steps_s.get(arm, 0.1)] * 6) for at in range(2)]
        more = {
            "bucket_bytes": [2**20] * (1 if arm == "buckets_200" else 9),
            "gradients": [[3]],
            "host": "h",
            **facts,
        }
        return Run(arm, [{**rank, **more} for rank in ranks])

    monkeypatch.setattr(study, "run_arm", run_arm)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    plan = study.Plan(["torchrun", "train.py"], [*REPEATED, *ONCE], 1, 5, 3, 10.0)
    return ran, study.attach(plan, tmp_path / "out", lambda _: None)


def test_runs_that_can_tell_nothing_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_input = [("input", 0.0, 0.001)]
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.098}, phases=quick_input)
    repeated = dict.fromkeys(("baseline", "aa", "no_exchange", "hook_control"), 3)
    assert ran == {**repeated, "clock": 1, "marked": 1, "one_worker": 1}
    text = "\n".join(lines)
    assert "With cached input: not measured, because drawing a batch takes 0.0% of a step" in text
    assert "Other buckets: not measured, because without any exchange a step is not 10% shorter." in text


def test_other_buckets_that_were_faster_once_are_measured_next_to_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05, "buckets_200": 0.06})
    assert (ran["baseline"], ran["buckets_2"], ran["buckets_200"]) == (5, 1, 3)
    assert lines[-1] == "Next: bucket_cap_mb=200."


def test_tiny_buckets_are_tried_whatever_the_exchange_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, _ = _runs(tmp_path, monkeypatch, {"no_exchange": 0.098}, bucket_bytes=[2**10] * 9)
    assert ran["buckets_2"] == 1


def test_files_that_a_program_has_changed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    said: list[str] = []

    def changes(*_: Any) -> None:
        (tmp_path / "mine.txt").write_text("another text")
        (tmp_path / "new.txt").touch()

    monkeypatch.setattr(study, "_run_all", changes)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    study.attach(
        study.Plan(["torchrun", "train.py"], ["baseline"], 1, 5, 1, 10.0), tmp_path / "out", said.append
    )
    assert said[0] == "the script wrote 1 file: new.txt"
    assert said[1].startswith("it has deleted or changed 1 file: mine.txt")
