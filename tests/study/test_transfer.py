"""`kind: transfer`: which keys it has, which cells, and what a plan says of them."""

import re
from pathlib import Path

import pytest
import yaml

from scaling.errors import StudyError
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.kinds import label_of
from scaling.study.kinds.transfer import TransferCell
from scaling.study.launches import remaining_launches
from scaling.study.planning import describe_plan, plan_as_dict
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study

FOUR_GPUS = AvailableMachine(num_gpus=4, num_cores=64)
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

    @pytest.mark.parametrize(
        "key", ["step", "workloads", "aggregators", "scaling", "tf32", "seed", "learning_rate"]
    )
    def test_key_of_training_is_an_error_that_names_the_rule(self, key):
        said = "kind: iteration or convergence; kind: transfer has no model and takes no step; leave it out"
        with pytest.raises(StudyError, match=f"key '{key}' belongs to {said}"):
            parse_study({**STUDY, key: "eager"}, "links.yaml")

    @pytest.mark.parametrize(("key", "value"), [("global_batch", 64), ("secondz", 3)])
    def test_unknown_key_is_an_error_with_what_is_allowed(self, key, value):
        with pytest.raises(StudyError, match=f"unknown key '{key}'.*allowed: device, kind, missing_devices"):
            parse_study({**STUDY, key: value}, "links.yaml")

    @pytest.mark.parametrize("seconds", [0, -1, True, "long"])
    def test_time_has_to_be_a_positive_number(self, seconds):
        with pytest.raises(StudyError, match=f"seconds is {seconds!r}"):
            parse_study({**STUDY, "seconds": seconds}, "links.yaml")

    def test_key_of_transfers_is_none_of_iterations(self):
        said = "key 'seconds' belongs to kind: transfer or device; leave it out"
        with pytest.raises(StudyError, match=said):
            parse_study({"name": "x", "world_sizes": 1, **MODEL, "seconds": 3}, "x.yaml")


class TestCells:
    def test_there_is_one_for_each_size_and_access_and_one_gpu_is_measured_once(self):
        found = [(cell.world_size, cell.peer_access) for cell in cells()]
        assert found == [(1, True), (2, True), (2, False), (4, True), (4, False)]

    def test_processes_have_no_access_to_forbid(self):
        found = cells(AvailableMachine(num_gpus=0, num_cores=8))
        expected = [("cpu", size, None) for size in (1, 2, 4)]
        assert [(cell.device, cell.world_size, cell.peer_access) for cell in found] == expected

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
