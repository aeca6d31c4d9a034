"""Which runs an attached script makes, and what is said of its files."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaling.attach import study
from scaling.attach.arms import BUCKETS, ONCE, REPEATED, bucket_mb
from scaling.attach.launch import Run
from tests.attach.made_marks import made_rank


def _runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_s: dict[str, float], **facts: Any
) -> tuple[Counter[str], list[str]]:
    """How often each arm ran of a script whose steps take so long (0.1 s otherwise), and the answer."""
    ran: Counter[str] = Counter()

    def run_arm(_: Any, arm: str, *__: Any, **___: Any) -> Run:
        ran[arm] += 1
        ranks = [made_rank(at, [steps_s.get(arm, 0.1)] * 6) for at in range(2)]
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
    assert "Other bucket sizes: not measured, because without any exchange a step is not 10% shorter." in text


def test_input_that_comes_from_no_loader_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, lines = _runs(tmp_path, monkeypatch, {}, batches=[])
    assert ran["cached_input"] == 0
    said = "With cached input: not measured, because the script draws its batches from no torch DataLoader."
    assert said in lines


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


@pytest.mark.parametrize(("num_mb", "tried"), [(40, ["buckets_2", "buckets_25"]), (1, [])])
def test_one_huge_bucket_is_compared_with_smaller_ones(
    num_mb: int, tried: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_arm(_: Any, arm: str, *__: Any, **___: Any) -> Run:
        size_mb = bucket_mb(arm) or 500
        sizes = [2**20] * num_mb if size_mb < num_mb else [num_mb * 2**20]
        more = {"bucket_bytes": sizes, "gradients": [[3]], "host": "h"}
        step_s = 0.05 if arm == "no_exchange" else 0.1
        ran.append(arm)
        return Run(arm, [{**made_rank(at, [step_s] * 6), **more} for at in range(2)])

    ran: list[str] = []
    monkeypatch.setattr(study, "run_arm", run_arm)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    plan = study.Plan(["torchrun", "train.py"], [*REPEATED, *BUCKETS], 1, 5, 2, 10.0)
    study.attach(plan, tmp_path / "out", lambda _: None)
    assert [arm for arm in ran if arm in BUCKETS] == tried


def _said(folder: Path, monkeypatch: pytest.MonkeyPatch, changes: Callable[[], None]) -> list[str]:
    """What is said of the folder's files where runs make these changes."""
    said: list[str] = []
    monkeypatch.setattr(study, "_run_all", lambda *_: changes())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(folder)
    plan = study.Plan(["torchrun", "train.py"], ["baseline"], 1, 5, 1, 10.0)
    study.attach(plan, folder / "out", said.append)
    return said


def test_files_that_a_program_has_changed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    def changes() -> None:
        (tmp_path / "mine.txt").write_text("")
        (tmp_path / "new.txt").touch()

    assert _said(tmp_path, monkeypatch, changes) == [
        "the script wrote 1 file: new.txt",
        "changed meanwhile: 1 file: mine.txt; by something other than the script's Python",
    ]


def test_logs_of_the_command_itself_are_not_changed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, tee = tmp_path / "attach.log", tmp_path / "slurm-1.out"
    own.write_text("old words")
    tee.write_text("1: baseline")
    status = own.stat()
    monkeypatch.setattr(study.os, "fstat", lambda _: status)

    def changes() -> None:
        own.write_text("")
        with tee.open("a") as log:
            log.write("2: aa")

    assert _said(tmp_path, monkeypatch, changes) == []


def test_of_too_many_files_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "MOST_FILES", 3)
    for at in range(4):
        (tmp_path / f"{at}.txt").write_text("mine")

    def changes() -> None:
        (tmp_path / "0.txt").unlink()
        (tmp_path / "new.txt").touch()

    (said,) = _said(tmp_path, monkeypatch, changes)
    assert said == "more than 3 files are here: which others appeared or changed is not known"
