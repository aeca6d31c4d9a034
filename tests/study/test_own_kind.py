"""A kind of a user's own: the module of docs/how-to/own-parts.md, and one line in the table of kinds."""

import sys
from pathlib import Path

import pytest
import torch

from scaling.errors import StudyError
from scaling.report import write_report
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.kinds import KINDS, label_of
from scaling.study.launches import estimate_seconds, remaining_launches
from scaling.study.planning import describe_plan
from scaling.study.prepare import prepare
from scaling.study.rank.launch import CellRunner
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study
from tests.study.test_run_cell import group  # noqa: F401

STUDY = {"name": "barriers", "kind": "barrier", "world_sizes": [1, 2], "device": "cpu", "count": 5}
MACHINE = AvailableMachine(num_gpus=0, num_cores=4)


@pytest.fixture(autouse=True)
def kind(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "own-parts.md").read_text(encoding="utf-8")
    _, _, source = text.partition("# my_kind.py\n")
    (tmp_path / "my_kind.py").write_text(source.partition("```")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import my_kind

    monkeypatch.setitem(KINDS, "barrier", my_kind.BarrierKind())
    yield
    del sys.modules["my_kind"]


def test_its_keys_are_checked_as_those_of_every_kind():
    (part,) = parse_study(STUDY, "s").parts
    assert (part.kind, part.count, part.repeats) == ("barrier", 5, 1)
    with pytest.raises(StudyError, match=r"unknown key 'counts'; did you mean 'count'\?"):
        parse_study({**STUDY, "counts": 3}, "s")
    with pytest.raises(StudyError, match="key 'count' belongs to kind: barrier"):
        parse_study({**STUDY, "kind": "transfer"}, "s")


def test_plan_has_its_cells_and_its_estimate(tmp_path):
    resolved = resolve(parse_study(STUDY, "s"), MACHINE)
    assert "5 barriers of 2 workers on cpu" in describe_plan(resolved, tmp_path / "none")
    launches = remaining_launches(ResultsFolder(tmp_path), resolved)
    assert [launch.settings.world_size for launch in launches] == [1, 2]
    more = resolve(parse_study({**STUDY, "count": 1005}, "s"), MACHINE)
    (first, *_) = remaining_launches(ResultsFolder(tmp_path), more)
    assert estimate_seconds(first, {}, 4) == pytest.approx(estimate_seconds(launches[0], {}, 4) + 1.0)


def test_its_cell_is_run_recorded_reported_and_read_back(tmp_path, group):  # noqa: F811
    study = parse_study({**STUDY, "world_sizes": 1}, "s")
    resolved, folder = resolve(study, MACHINE), ResultsFolder(tmp_path / "out")
    prepare(folder, study, resolved)
    (cell,) = resolved.cells.values()
    record = folder.run(cell.id, 0)
    assert label_of(record.cell) == "barrier"
    folder.start_run(record, {"launcher": "test"})
    summary = CellRunner(torch.device("cpu")).run(cell, group, folder.sample_writer(cell.id, 0, 0))
    folder.finish_run(record, KINDS["barrier"].summary([summary]))
    (rank,) = folder.samples(cell.id, 0)
    assert [row["barrier"] for row in rank] == [0, 1, 2, 3, 4]
    table = write_report(folder).table
    assert table[["kind", "world_size", "state"]].to_numpy().tolist() == [["barrier", 1, "done"]]
    assert remaining_launches(folder, resolved) == []


def test_folder_is_read_where_its_kind_is_not_known(tmp_path, monkeypatch):
    study = parse_study(STUDY, "s")
    folder = ResultsFolder(tmp_path / "out")
    prepare(folder, study, resolve(study, MACHINE))
    monkeypatch.delitem(KINDS, "barrier")
    assert label_of(folder.runs()[0].cell) == "barrier"
    assert write_report(folder).table["state"].tolist() == ["planned", "planned"]
