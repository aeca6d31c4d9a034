"""The folder of campaigns: what was measured, in its order, and nothing else."""

import json
import re

import pytest

from scaling.errors import StoreError
from scaling.store.history import Campaign, HistoryFolder, samples_digest


@pytest.fixture
def history(tmp_path):
    """Three campaigns, each with the samples of one run."""
    folder = HistoryFolder(tmp_path)
    for number in range(1, 4):
        results = folder.folder(f"{number:04d}")
        results.write_study({"name": "s", "parts": []})
        results.plan_run("0123456789ab", 0, {"kind": "own", "device": "cpu", "world_size": 1})
        results.sample_writer("0123456789ab", 0, 0)([{"step": number}])
        started = f"2026-01-0{number}T00:00:00+00:00"
        digest = samples_digest(results)
        folder.add(Campaign(f"{number:04d}", started, {"a": 1.0}, ("h",), None, digest))
    return folder


def lines_of(history):
    return (history.path / "history.jsonl").read_text().splitlines()


def write_lines(history, lines):
    (history.path / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_campaigns_are_read_as_they_were_added(history):
    assert [one.name for one in history.campaigns()] == ["0001", "0002", "0003"]
    assert history.next_name(history.campaigns()) == "0004"


def test_a_new_folder_has_none(tmp_path):
    assert HistoryFolder(tmp_path).campaigns() == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda lines: [lines[0], lines[1][:20], lines[2]], "line 2"),
        (lambda lines: [lines[1], lines[0], lines[2]], "0001 .* stands behind 0002"),
        (lambda lines: [lines[0], json.dumps({**json.loads(lines[1]), "seconds": {}}), lines[2]], "line 2"),
        (
            lambda lines: [lines[0], json.dumps({**json.loads(lines[1]), "digest": "x"}), lines[2]],
            "0002: the raw",
        ),
    ],
    ids=["cut", "reordered", "emptied", "other digest"],
)
def test_damaged_lines_are_refused_by_name(history, harm, said):
    write_lines(history, harm(lines_of(history)))
    with pytest.raises(StoreError, match=said):
        history.campaigns()


def test_a_folder_that_is_gone_is_refused_by_name(history):
    (history.path / "0002").rename(history.path / "elsewhere")
    with pytest.raises(StoreError, match=re.escape(f"{history.path / '0002'} is listed")):
        history.campaigns()


def test_two_folders_in_each_others_place_are_refused(history):
    for here, there in (("0001", "x"), ("0002", "0001"), ("x", "0002")):
        (history.path / here).rename(history.path / there)
    with pytest.raises(StoreError, match="0001: the raw samples are not those"):
        history.campaigns()


def test_samples_that_were_edited_are_refused(history):
    (samples,) = (history.path / "0003").rglob("rank0.jsonl")
    samples.write_text('{"step": 9}\n')
    with pytest.raises(StoreError, match="0003: the raw samples"):
        history.campaigns()


def test_an_archived_campaign_is_the_same(history):
    before = history.campaigns()
    history.folder("0002").archive(unfinished=True)
    assert history.campaigns() == before


def test_accepted_is_kept(history):
    assert history.accepted() is None
    history.accept("0002")
    assert history.accepted() == "0002"
