"""The folder of campaigns: what was measured, in its order, and nothing else."""

import gzip
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
        folder.add(
            Campaign(name=f"{number:04d}", started=started, seconds={"a": 1.0}, hosts=["h"], commit=None)
        )
    return folder


def lines_of(history):
    return (history.path / "history.jsonl").read_text().splitlines()


def write_lines(history, lines):
    (history.path / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_campaigns_are_read_as_they_were_added(history):
    assert [one.name for one in history.campaigns()] == ["0001", "0002", "0003"]


def test_a_new_folder_has_none(tmp_path):
    assert HistoryFolder(tmp_path).campaigns() == []


def changed(line, **values):
    return json.dumps({**json.loads(line), **values})


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda lines: [lines[0], lines[1][:20], lines[2]], "line 2 .*put it back from a copy"),
        (lambda lines: [lines[1], lines[0], lines[2]], "line 1: 0002 in place of 0001"),
        (lambda lines: [lines[0], lines[2]], "line 2: 0003 in place of 0002"),
        (lambda lines: [lines[1], lines[2]], "line 1: 0002 in place of 0001"),
        (lambda lines: [*lines, lines[2]], "line 4: 0003 in place of 0004"),
        (lambda lines: [lines[0], changed(lines[1], seconds={}), lines[2]], "line 2"),
        (
            lambda lines: [lines[0], changed(lines[1], seconds={"a": 1.1}), lines[2]],
            "0002: its samples or its",
        ),
        (lambda lines: [lines[0], changed(lines[1], commit="b" * 40), lines[2]], "0002: its samples or its"),
        (lambda lines: [lines[0], changed(lines[1], hosts=["i"]), lines[2]], "0002: its samples or its"),
        (lambda lines: [lines[0], changed(lines[1], digest="x"), lines[2]], "0002: its samples or its"),
        (
            lambda lines: [lines[0], changed(lines[1], started="2027-01-02T00:00:00+00:00"), lines[2]],
            "0002: its samples or its",
        ),
        (
            lambda lines: [lines[0], changed(lines[1], started="2025-01-02T00:00:00+00:00"), lines[2]],
            "line 2: 0002 began before",
        ),
        (lambda lines: [lines[0], '{"name": "0002", "name": "0002"}', lines[2]], "line 2"),
        (lambda lines: [lines[0], changed(lines[1], more=1), lines[2]], "line 2"),
    ],
    ids=lambda value: None if callable(value) else value,
)
def test_damaged_lines_are_refused_by_name(history, harm, said):
    write_lines(history, harm(lines_of(history)))
    with pytest.raises(StoreError, match=said):
        history.campaigns()


def test_a_folder_that_is_gone_is_refused_by_name(history):
    (history.path / "0002").rename(history.path / "elsewhere")
    with pytest.raises(StoreError, match=re.escape(f"{history.path / '0002'} is listed")):
        history.campaigns()


@pytest.mark.parametrize("left", [0, 1])
def test_campaigns_that_are_not_listed_are_refused(history, left):
    write_lines(history, lines_of(history)[:left])
    with pytest.raises(StoreError, match=f"000{left + 2} is not listed"):
        history.campaigns()


def test_the_last_campaign_may_not_be_listed_yet(history):
    write_lines(history, lines_of(history)[:2])
    assert len(history.campaigns()) == 2


def test_two_folders_in_each_others_place_are_refused(history):
    for here, there in (("0001", "x"), ("0002", "0001"), ("x", "0002")):
        (history.path / here).rename(history.path / there)
    with pytest.raises(StoreError, match="0001: its samples or its line"):
        history.campaigns()


def test_samples_that_were_edited_are_refused(history):
    (samples,) = (history.path / "0003").rglob("rank0.jsonl")
    samples.write_text('{"step": 9}\n')
    with pytest.raises(StoreError, match="0003: its samples or its line"):
        history.campaigns()


@pytest.mark.parametrize(("harm", "said"), [(None, "its samples or its line"), ("{", "is damaged")])
def test_a_campaign_that_lost_a_run_s_record_is_refused(history, harm, said):
    (record,) = (history.path / "0003").rglob("run.json")
    record.unlink() if harm is None else record.write_text(harm)
    with pytest.raises(StoreError, match=said):
        history.campaigns()


def test_an_archived_campaign_is_the_same(history):
    before = history.campaigns()
    history.folder("0002").archive(unfinished=True)
    assert history.campaigns() == before


def test_a_campaign_whose_files_were_compressed_is_the_same(history):
    (samples,) = (history.path / "0002").rglob("rank0.jsonl")
    samples.with_name("rank0.jsonl.gz").write_bytes(gzip.compress(samples.read_bytes()))
    samples.unlink()
    assert len(history.campaigns()) == 3


def test_a_digest_of_samples_alone_is_of_an_earlier_version(history):
    lines = [
        changed(line, digest=samples_digest(history.folder(json.loads(line)["name"])))
        for line in lines_of(history)
    ]
    write_lines(history, lines)
    assert len(history.campaigns()) == 3


def test_accepted_is_kept(history):
    campaigns = history.campaigns()
    assert history.accepted(campaigns) == campaigns
    assert history.accepted(campaigns, "0002") == campaigns[1:]
    assert history.accepted(campaigns) == campaigns[1:]


def test_what_is_no_campaign_is_not_accepted(history):
    campaigns = history.campaigns()
    with pytest.raises(StoreError, match="--accept names '0004'; allowed: 0001 to 0003"):
        history.accepted(campaigns, "0004")
    assert history.accepted(campaigns) == campaigns
    (history.path / "accepted").write_text("0009\n")
    with pytest.raises(StoreError, match="accepted, which can be deleted, names '0009'"):
        history.accepted(campaigns)
