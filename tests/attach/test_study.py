"""Which runs an attached script makes, and what is said of its files."""

from collections import Counter

import pytest

from scaling.attach import files, study
from scaling.attach.inside.arms import ARMS, BUCKETS, NO_SWITCH
from scaling.attach.launch import Run
from tests.attach.made_marks import made_switched, pair


def _runs(tmp_path, monkeypatch, steps_s, *, arms=ARMS, sizes=None, **facts):
    """How often each arm ran of a script whose steps take so long (0.1 s otherwise), and the answer."""
    ran: Counter[str] = Counter()

    def run_arm(_, arm, *__, blocks=None, **___):
        arms = blocks.arms if blocks else (arm,)
        ran.update(arms)
        reason = (facts.get("apart") if blocks else None) or (
            facts.get("breaks") if "no_collectives" in arms else None
        )
        if reason:
            return Run(arm, reason=reason, arms=arms)
        by_arm = {name: steps_s.get(name, 0.1) for name in arms}
        ranks = made_switched(by_arm) if blocks else pair([by_arm[arm]] * 6)
        bucket_bytes = sizes(arm) if sizes else [2**20] * (1 if arm == "buckets_200" else 9)
        more = {"bucket_bytes": bucket_bytes, "gradients": [[3]], "host": "h", **facts}
        return Run(arm, [{**rank, **more} for rank in ranks], arms=arms)

    monkeypatch.setattr(study, "run_arm", run_arm)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    plan = study.Plan(["torchrun", "train.py"], list(arms), 1, 5, 2, 10.0)
    return ran, study.attach(plan, tmp_path / "out", lambda _: None)[0]


def test_runs_that_can_tell_nothing_are_left_out(tmp_path, monkeypatch):
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.098}, phases=[("input", 0.0, 0.001)])
    once = {"timed": 1, "clock": 1, "one_worker": 1}
    assert ran == {"baseline": 2, "aa": 2, "no_exchange": 2, "cached_input": 2, **once}
    text = "\n".join(lines)
    assert "Other bucket sizes: not measured, because without any exchange a step is not 10% shorter." in text


def test_launches_that_agree_are_two_and_others_get_a_third(tmp_path, monkeypatch):
    ran, _ = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05})
    assert ran["baseline"] == 2
    monkeypatch.setattr(study._Session, "_is_open", lambda _: True)
    (tmp_path / "again").mkdir()
    assert _runs(tmp_path / "again", monkeypatch, {})[0]["baseline"] == 3


def test_a_launch_that_an_arm_breaks_is_made_again_without_it(tmp_path, monkeypatch):
    reason = "rank 0 ended by itself after 51 steps, and others went on"
    collectives = {"all_reduce": 99}
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05}, breaks=reason, collectives=collectives)
    assert (ran["no_collectives"], ran["baseline"]) == (1, 3)
    assert "Without the exchange a step would be 50.0% \u00b1 0.0% shorter." in lines


def test_what_seems_faster_in_the_second_launch_is_confirmed_by_a_third(tmp_path, monkeypatch):
    ran, lines = _runs(tmp_path, monkeypatch, {"no_collectives": 0.05}, collectives={"all_reduce": 99})
    assert (ran["no_collectives"], ran["baseline"]) == (2, 3)
    assert lines[-1].startswith("Next: call the script's own collectives")


def test_where_arms_cannot_be_switched_each_is_a_process_and_the_answer_says_why(tmp_path, monkeypatch):
    reason = f"{NO_SWITCH}its model has a static graph"
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.06}, apart=reason)
    assert (ran["aa"], ran["no_exchange"]) == (4, 4)  # once in the launch that failed
    assert f"Each arm was a process of its own, which is less exact: {reason}." in lines
    assert lines[0].startswith("A step takes 100 ms (with its marks 100 ms,")
    assert "Without the exchange a step would be 40.0% \u00b1 0.0% shorter." in lines


def test_input_that_comes_from_no_loader_is_not_cached_again(tmp_path, monkeypatch):
    ran, lines = _runs(tmp_path, monkeypatch, {}, batches=[], has_cached_input=False)
    assert ran["cached_input"] == 1
    said = "With cached input: not measured, because the script draws its batches from no torch DataLoader."
    assert said in lines


def test_other_buckets_that_were_faster_once_are_measured_again(tmp_path, monkeypatch):
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05, "buckets_200": 0.06})
    assert (ran["clock"], ran["buckets_2"], ran["buckets_200"]) == (2, 1, 2)
    assert lines[-1] == "Next: bucket_cap_mb=200."


def test_tiny_buckets_are_tried_whatever_the_exchange_shows(tmp_path, monkeypatch):
    ran, _ = _runs(tmp_path, monkeypatch, {"no_exchange": 0.098}, bucket_bytes=[2**10] * 9)
    assert ran["buckets_2"] == 1


@pytest.mark.parametrize(("num_mb", "tried"), [(40, ["buckets_2", "buckets_25"]), (1, [])])
def test_one_huge_bucket_is_compared_with_smaller_ones(num_mb, tried, tmp_path, monkeypatch):
    def sizes(arm):
        is_less = arm in BUCKETS and ARMS[arm].bucket_mb < num_mb
        return [2**20] * num_mb if is_less else [num_mb * 2**20]

    arms = ["baseline", "aa", "no_exchange", *BUCKETS]
    ran, _ = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05}, arms=arms, sizes=sizes)
    assert [arm for arm in ran if arm in BUCKETS] == tried


def _said(folder, monkeypatch, changes):
    """What is said of the folder's files where runs make these changes."""
    said: list[str] = []
    monkeypatch.setattr(study._Session, "run", lambda _: changes())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(folder)
    plan = study.Plan(["torchrun", "train.py"], ["baseline"], 1, 5, 1, 10.0)
    study.attach(plan, folder / "out", said.append)
    return said


def test_files_that_a_program_has_changed_are_named(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("mine")

    def changes():
        (tmp_path / "mine.txt").write_text("")
        (tmp_path / "new.txt").touch()

    assert _said(tmp_path, monkeypatch, changes) == [
        "the script wrote 1 file: new.txt",
        "changed meanwhile: 1 file: mine.txt; by something other than the script's Python",
    ]


def test_logs_of_the_command_itself_are_not_changed_files(tmp_path, monkeypatch):
    own, tee = tmp_path / "attach.log", tmp_path / "slurm-1.out"
    own.write_text("old words")
    tee.write_text("1: baseline")
    status = own.stat()
    monkeypatch.setattr(files.os, "fstat", lambda _: status)

    def changes():
        own.write_text("")
        with tee.open("a") as log:
            log.write("2: aa")

    assert _said(tmp_path, monkeypatch, changes) == []


def test_of_too_many_files_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_FILES", 3)
    for at in range(4):
        (tmp_path / f"{at}.txt").write_text("mine")

    def changes():
        (tmp_path / "0.txt").unlink()
        (tmp_path / "new.txt").touch()

    (said,) = _said(tmp_path, monkeypatch, changes)
    assert said == "more than 3 files are here: which others appeared or changed is not known"
