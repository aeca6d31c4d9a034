"""What rank 0 writes of a run that every rank has finished."""

from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from launchers.rank_info import RankInfo
from scaling.runtime.workers import CellOutcome, failure_kind
from scaling.store import ResultsFolder, RunRecord
from scaling.study.rank.context import IN_HOST_MEMORY, RankSummary
from scaling.study.rank.launch import _record, plan_record
from tests.made import cell_of

TRAINED = cell_of(kind="convergence", aggregator="all_reduce", device="cuda", epochs=1)


def recorded(tmp_path, *in_memory, notes=()):
    """The record in the file, from what each rank says of its data."""
    folder, record = ResultsFolder(tmp_path), RunRecord(TRAINED.id, 0, TRAINED.to_dict())
    folder.write_run(record)
    said = [RankSummary(10, 40, notes=list(notes), data_in_host_memory=there) for there in in_memory]
    info = RankInfo(0, 0, len(said), len(said), "test")
    _record(folder, record, TRAINED, info, CellOutcome(None, True, [asdict(one) for one in said]))
    return folder.run(TRAINED.id, 0)


@pytest.mark.parametrize(("ranks", "said"), [
    ([False, True], ["(on 1 of 2 ranks)"]),
    ([True, False, False, True], ["(on 2 of 4 ranks)"]),
    ([True], ["(on 1 of 1 rank)"]), ([False, False], []),
])  # fmt: skip
def test_data_in_host_memory_are_noted_from_any_rank_with_the_number_of_ranks(tmp_path, ranks, said):
    record = recorded(tmp_path, *ranks)
    assert record.notes == [f"{IN_HOST_MEMORY} {count}" for count in said]
    assert record.summary["data_in_host_memory"] == ranks


def test_notes_of_rank_0_and_the_plan_of_the_exchange_are_recorded_or_why_there_is_none(tmp_path):
    record = recorded(tmp_path, False, False, notes=["buckets: 2"])
    assert record.notes == ["buckets: 2"]
    (exchange,) = record.summary["plan"]
    assert (exchange["schedule"], exchange["native"]) == ("ring", True)
    (num_bytes,) = exchange["bytes"]
    assert exchange["bytes"][num_bytes] == "0>1 1>0"
    assert "nowhere" in plan_record(replace(TRAINED, aggregator="nowhere:Mine"), "1000")["plan_unknown"]


@pytest.mark.parametrize(("error", "reported", "device", "kind"), [
    (torch.OutOfMemoryError("2 GiB"), None, "cuda", "out_of_memory"),
    (MemoryError(), None, "cpu", "out_of_memory"),
    (RuntimeError("an illegal memory access"), RuntimeError("the same again"), "cuda", "device_lost"),
    (RuntimeError("CUDA error: too many resources requested"), None, "cuda", "error"),
    (ValueError("no such algorithm"), None, "cpu", "error"),
])  # fmt: skip
def test_a_failure_is_recorded_with_its_kind(tmp_path, monkeypatch, error, reported, device, kind):
    """`reported`: what the driver answers to the next call."""
    stream = SimpleNamespace(query=Mock(side_effect=reported))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: stream)
    folder = ResultsFolder(tmp_path)
    record = RunRecord("a" * 12, 0, {"kind": "own", "device": "cpu", "world_size": 1})
    folder.fail_run(record, str(error), failure_kind(error, torch.device(device)))
    assert folder.run("a" * 12, 0).summary == {"failure_kind": kind}
