"""`kind: transfer`: its keys, cells and plan; a kind of a user's own, that of docs/how-to/own-parts.md."""

import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from scaling.errors import StudyError
from scaling.report import write_report
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.kinds import KINDS, label_of
from scaling.study.kinds.transfer import TransferCell
from scaling.study.launches import estimate_seconds, remaining_launches
from scaling.study.planning import describe_plan, plan_as_dict
from scaling.study.prepare import prepare
from scaling.study.rank.launch import CellRunner
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study
from tests.study.test_run_cell import group  # noqa: F401

FOUR_GPUS = AvailableMachine(num_gpus=4, num_cores=64)
NO_GPUS = AvailableMachine(num_gpus=0, num_cores=4)
STUDY = {"name": "links", "kind": "transfer", "world_sizes": [1, 2, 4], "peer_access": [True, False]}
FCN = {"model": "fcn-r", "dataset": "synthetic", "global_batch": 16}
MODEL = {"kind": "iteration", "workloads": [FCN], "aggregators": ["none", "ring"], "scaling": "strong"}


def cells(machine=FOUR_GPUS, **keys):
    return list(resolve(parse_study({**STUDY, **keys}, "links.yaml"), machine).cells.values())


class TestKeys:
    def test_every_key_that_it_has_is_taken(self):
        keys = {"device": "cuda", "missing_devices": "drop", "repeats": 3, "seconds": 7, "threads": 2}
        (part,) = parse_study({**STUDY, **keys}, "links.yaml").parts
        assert (part.kind, part.seconds, part.repeats, part.threads) == ("transfer", 7.0, 3, 2)
        assert parse_study(STUDY, "links.yaml").parts[0].seconds == 20.0

    @pytest.mark.parametrize(("keys", "said"), [
        *(({key: "eager"}, f"key '{key}' belongs to kind: iteration or convergence; kind: transfer has no "
           "model and takes no step; leave it out")
          for key in ("step", "workloads", "aggregators", "scaling", "tf32", "seed", "learning_rate")),
        *(({key: 3}, f"unknown key '{key}'.*allowed: device, kind, missing_devices")
          for key in ("global_batch", "secondz")),
        *(({"seconds": value}, f"seconds is {value!r}") for value in (0, -1, True, "long")),
        ({**MODEL, "seconds": 3}, "key 'seconds' belongs to kind: transfer or device; leave it out"),
    ])  # fmt: skip
    def test_what_is_wrong_names_the_key_and_the_rule(self, keys, said):
        with pytest.raises(StudyError, match=said):
            parse_study({**STUDY, **keys}, "links.yaml")


class TestCells:
    def test_there_is_one_for_each_size_and_access_and_one_gpu_is_measured_once(self):
        found = [(cell.world_size, cell.peer_access) for cell in cells()]
        assert found == [(1, True), (2, True), (2, False), (4, True), (4, False)]
        processes = [(cell.device, cell.world_size, cell.peer_access) for cell in cells(NO_GPUS)]
        assert processes == [("cpu", size, None) for size in (1, 2, 4)], "they have no access to forbid"

    def test_all_that_decides_the_result_is_in_the_identity(self):
        one = TransferCell(world_size=2, device="cuda", threads=4, peer_access=True, seconds=20.0)
        changes = {"world_size": 4, "device": "cpu", "threads": 5, "peer_access": False, "seconds": 5.0}
        ids = {TransferCell(**{**one.__dict__, key: value}).id for key, value in changes.items()}
        assert len({one.id, *ids}) == 1 + len(changes)
        assert one.to_dict()["kind"] == "transfer"

    def test_missing_gpus_are_an_error_or_dropped_as_for_other_kinds(self):
        with pytest.raises(StudyError, match="world size 8 needs 8 GPUs"):
            cells(world_sizes=[4, 8])
        assert {cell.world_size for cell in cells(world_sizes=[4, 8], missing_devices="drop")} == {4}

    def test_cells_with_and_without_a_model_share_a_launch(self, tmp_path):
        study = {"name": "both", "world_sizes": [2], "parts": [MODEL, {"kind": "transfer", "seconds": 5}]}
        resolved = resolve(parse_study(study, "both.yaml"), FOUR_GPUS)
        (launch,) = remaining_launches(ResultsFolder(tmp_path), resolved)
        assert sum(isinstance(cell, TransferCell) for cell in launch.cells) == 1
        assert len(launch.cells) == len(resolved.trained) + 1
        labels = {"transfer", "iteration fcn-r, none", "iteration fcn-r, ring"}
        assert {label_of(cell.to_dict()) for cell in launch.cells} == labels


def test_plan_has_its_time_and_no_parameters(tmp_path):
    resolved = resolve(parse_study({**STUDY, "seconds": 100, "world_sizes": 4}, "links.yaml"), FOUR_GPUS)
    plan = plan_as_dict(resolved, tmp_path)
    assert [cell["num_parameters"] for cell in plan["cells"]] == [None, None]
    assert all(100 <= launch["estimated_seconds"] <= 200 for launch in plan["launches"])
    text = describe_plan(resolved, tmp_path)
    assert "transfer, 4 on cuda, without access between GPUs, 100 s" in text


def test_study_of_the_documents_is_valid():
    text = (Path(__file__).parents[2] / "docs" / "background" / "measuring.md").read_text()
    (study,) = re.findall(r"```yaml\n(name: links\n.*?)```", text, re.DOTALL)
    (part,) = parse_study(yaml.safe_load(study), "measuring.md").parts
    assert part.kind == "transfer"


BARRIERS = {"name": "barriers", "kind": "barrier", "world_sizes": [1, 2], "device": "cpu", "count": 5}


@pytest.fixture
def barrier(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "own-parts.md").read_text(encoding="utf-8")
    _, _, source = text.partition("# my_kind.py\n")
    (tmp_path / "my_kind.py").write_text(source.partition("```")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import my_kind

    monkeypatch.setitem(KINDS, "barrier", my_kind.BarrierKind())
    yield
    del sys.modules["my_kind"]


@pytest.mark.usefixtures("barrier")
def test_its_keys_are_checked_as_those_of_every_kind():
    (part,) = parse_study(BARRIERS, "s").parts
    assert (part.kind, part.count, part.repeats) == ("barrier", 5, 1)
    with pytest.raises(StudyError, match=r"unknown key 'counts'; did you mean 'count'\?"):
        parse_study({**BARRIERS, "counts": 3}, "s")
    with pytest.raises(StudyError, match="key 'count' belongs to kind: barrier"):
        parse_study({**BARRIERS, "kind": "transfer"}, "s")


@pytest.mark.usefixtures("barrier")
def test_plan_has_its_cells_and_its_estimate(tmp_path):
    resolved = resolve(parse_study(BARRIERS, "s"), NO_GPUS)
    assert "5 barriers of 2 workers on cpu" in describe_plan(resolved, tmp_path / "none")
    launches = remaining_launches(ResultsFolder(tmp_path), resolved)
    assert [launch.settings.world_size for launch in launches] == [1, 2]
    more = resolve(parse_study({**BARRIERS, "count": 1005}, "s"), NO_GPUS)
    (first, *_) = remaining_launches(ResultsFolder(tmp_path), more)
    assert estimate_seconds(first, {}, 4) == pytest.approx(estimate_seconds(launches[0], {}, 4) + 1.0)


@pytest.mark.usefixtures("barrier")
def test_its_cell_is_run_recorded_reported_and_read_back(tmp_path, group):  # noqa: F811
    study = parse_study({**BARRIERS, "world_sizes": 1}, "s")
    resolved, folder = resolve(study, NO_GPUS), ResultsFolder(tmp_path / "out")
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


@pytest.mark.usefixtures("barrier")
def test_folder_is_read_where_its_kind_is_not_known(tmp_path, monkeypatch):
    study = parse_study(BARRIERS, "s")
    folder = ResultsFolder(tmp_path / "out")
    prepare(folder, study, resolve(study, NO_GPUS))
    monkeypatch.delitem(KINDS, "barrier")
    assert label_of(folder.runs()[0].cell) == "barrier"
    assert write_report(folder).table["state"].tolist() == ["planned", "planned"]
