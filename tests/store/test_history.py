"""The folder of campaigns: what was measured, in its order, and nothing else."""

import gzip
import json

import pytest

from scaling.errors import StoreError
from scaling.store.history import HistoryFolder, PastCampaign, samples_digest


@pytest.fixture
def history(tmp_path):
    """Three campaigns, each with the samples of one run."""
    folder = HistoryFolder(tmp_path)
    for name in ("0001", "0002", "0003"):
        results = folder.folder(name)
        results.write_study({"name": "s", "parts": []})
        results.plan_run("0123456789ab", 0, {"kind": "own", "device": "cpu", "world_size": 1})
        results.sample_writer("0123456789ab", 0, 0)([{"step": int(name)}])
        started = f"2026-01-{name[2:]}T00:00:00+00:00"
        folder.add(PastCampaign(name=name, started=started, seconds={"a": 1.0}, hosts=["h"], commit=None))
    return folder


def lines_of(history):
    return (history.path / "history.jsonl").read_text().splitlines()


def write_lines(history, lines):
    (history.path / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_campaigns_are_read_as_they_were_added_and_the_last_may_not_be_listed_yet(history, tmp_path):
    assert [one.name for one in history.campaigns()] == ["0001", "0002", "0003"]
    assert HistoryFolder(tmp_path / "new").campaigns() == []
    write_lines(history, lines_of(history)[:2])
    assert len(history.campaigns()) == 2


def changed(line, **values):
    return json.dumps({**json.loads(line), **values})


@pytest.mark.parametrize(("order", "said"), [
    ([1, 0, 2], "line 1: 0002 in place of 0001"), ([0, 2], "line 2: 0003 in place of 0002"),
    ([1, 2], "line 1: 0002 in place of 0001"), ([0, 1, 2, 2], "line 4: 0003 in place of 0004"),
    ([0], "0003 is not listed"), ([], "0002 is not listed"),
])  # fmt: skip
def test_lines_in_another_order_or_too_few_are_refused_by_name(history, order, said):
    lines = lines_of(history)
    write_lines(history, [lines[at] for at in order])
    with pytest.raises(StoreError, match=said):
        history.campaigns()


@pytest.mark.parametrize(("harm", "said"), [
    (lambda line: line[:20], "line 2 .*put it back from a copy"), ({"seconds": {}}, "line 2"),
    ({"started": "2025-01-02T00:00:00+00:00"}, "line 2: 0002 began before"),
    (lambda line: '{"name": "0002", "name": "0002"}', "line 2"), ({"more": 1}, "line 2"),
    *((harm, "0002: its samples or its") for harm in (
     {"seconds": {"a": 1.1}}, {"commit": "b" * 40}, {"hosts": ["i"]}, {"digest": "x"},
     {"started": "2027-01-02T00:00:00+00:00"})),
])  # fmt: skip
def test_line_that_was_damaged_or_changed_is_refused_by_name(history, harm, said):
    first, second, third = lines_of(history)
    write_lines(history, [first, changed(second, **harm) if isinstance(harm, dict) else harm(second), third])
    with pytest.raises(StoreError, match=said):
        history.campaigns()


def exchange(path):
    for here, there in (("0001", "x"), ("0002", "0001"), ("x", "0002")):
        (path / here).rename(path / there)


def only(path, name):
    (found,) = (path / "0003").rglob(name)
    return found


@pytest.mark.parametrize(("harm", "said"), [
    (lambda path: (path / "0002").rename(path / "elsewhere"), "0002 is listed"),
    (exchange, "0001: its samples or its line"),
    (lambda path: only(path, "rank0.jsonl").write_text('{"step": 9}\n'), "0003: its samples or its line"),
    (lambda path: only(path, "run.json").unlink(), "its samples or its line"),
    (lambda path: only(path, "run.json").write_text("{"), "is damaged"),
], ids=["gone", "exchanged", "edited", "lost", "damaged"])  # fmt: skip
def test_folder_that_is_gone_exchanged_or_changed_is_refused_by_name(history, harm, said):
    harm(history.path)
    with pytest.raises(StoreError, match=said):
        history.campaigns()


def test_a_campaign_that_was_archived_compressed_or_digested_by_an_earlier_version_is_the_same(history):
    before = history.campaigns()
    history.folder("0002").archive(unfinished=True)
    assert history.campaigns() == before
    (samples,) = (history.path / "0001").rglob("rank0.jsonl")
    samples.with_name("rank0.jsonl.gz").write_bytes(gzip.compress(samples.read_bytes()))
    samples.unlink()
    assert history.campaigns() == before
    lines = [
        changed(line, digest=samples_digest(history.folder(json.loads(line)["name"])))
        for line in lines_of(history)
    ]
    write_lines(history, lines)
    assert len(history.campaigns()) == 3


def test_accepted_is_kept_and_what_is_no_campaign_is_not_accepted(history):
    campaigns = history.campaigns()
    assert history.accepted(campaigns) == campaigns
    with pytest.raises(StoreError, match="--accept names '0004'; allowed: 0001 to 0003"):
        history.accepted(campaigns, "0004")
    assert history.accepted(campaigns) == campaigns
    assert history.accepted(campaigns, "0002") == campaigns[1:]
    assert history.accepted(campaigns) == campaigns[1:]
    (history.path / "accepted").write_text("0009\n")
    with pytest.raises(StoreError, match="accepted, which can be deleted, names '0009'"):
        history.accepted(campaigns)
