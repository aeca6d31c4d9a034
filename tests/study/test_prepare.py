"""A results folder is made ready once, and refused to everything that does not belong into it."""

import copy
from pathlib import Path
from typing import Any

import pytest

from scaling.errors import StoreError, StudyError
from scaling.store import ResultsFolder
from scaling.study import prepare as module
from scaling.study.overrides import load_study
from scaling.study.prepare import prepare
from scaling.study.resolve import resolve
from scaling.workloads.digits import Digits
from tests.made import CPU, GPUS, WORKLOAD, contents, made_study

ENVIRONMENT: dict[str, Any] = {
    **{"hostname": "here", "cpu": {"model": "A fast one", "usable_cores": 8}, "gpus": []},
    **{"versions": {"torch": "2.6.0"}, "settings": {}},
}
BASE: dict[str, Any] = {"aggregators": ["ring", "tree"], "repeats": 2, "threads": 1}


@pytest.fixture
def environment(monkeypatch) -> dict[str, Any]:
    """What `collect` finds; a test may change it."""
    found = copy.deepcopy(ENVIRONMENT)
    monkeypatch.setattr(module, "collect", lambda environ: copy.deepcopy(found))
    monkeypatch.setattr(module, "detect", lambda: {"name": "here", "devices": []})
    return found


@pytest.fixture
def folder(tmp_path: Path, environment: dict[str, Any]) -> ResultsFolder:
    return ResultsFolder(tmp_path / "results")


def prepared(folder: ResultsFolder, **changes: Any) -> ResultsFolder:
    study = made_study(**{**BASE, **changes})
    prepare(folder, study, resolve(study, CPU))
    return folder


class TestArchivedFolder:
    def archived(self, folder):
        for record in prepared(folder).runs():
            folder.finish_run(record, {})
        folder.archive()
        return contents(folder.path)

    def test_a_study_that_is_over_stays_as_it_is(self, folder):
        before = self.archived(folder)
        assert contents(prepared(folder).path) == before

    @pytest.mark.parametrize("changes", [{"repeats": 3}, {"aggregators": ["ring", "tree", "all_reduce"]}])
    def test_new_runs_are_refused_before_anything_is_written(self, folder, changes):
        before = self.archived(folder)
        with pytest.raises(StoreError, match=r"is archived: no run can be added.*export .* --unarchive"):
            prepared(folder, **changes)
        assert contents(folder.path) == before
        folder.unarchive()
        assert len(prepared(folder, **changes).runs()) > 11

    def test_planned_runs_are_refused_before_workers_start(self, folder):
        prepared(folder).archive(unfinished=True)
        with pytest.raises(StoreError, match="is archived: no run can be added or changed"):
            prepared(folder)


class TestNewFolder:
    def test_study_environment_topology_and_notes_are_written_and_every_run_is_planned(self, folder):
        assert folder.exists() is False
        prepared(folder)
        assert {"study.yaml", "environment.json", "topology.yaml"} <= set(contents(folder.path))
        assert folder.environment() == ENVIRONMENT
        study = folder.study()
        expected = ("by-hand", ["device: no GPU found, CPU processes over Gloo"])
        assert (study["name"], study["notes"]) == expected
        records = folder.runs()
        assert len(records) == 2 * (2 * 2 + 1)  # and the second of the A/A pair
        assert {(record.state, record.repeat) for record in records} == {("planned", 0), ("planned", 1)}
        cells = [record.cell for record in records]
        assert {(cell["aggregator_label"], cell["threads"]) for cell in cells} == {("ring", 1), ("tree", 1)}

    @pytest.mark.parametrize(
        "changes",
        [
            {"precision_goal": None, "max_seconds": None, "iterations": 5},
            {"step": ["eager", "overlapped"], "bucket_mb": [1, 25]},
            {"input_placement": "loader", "loader_workers": 1},
            {"noise_pair": False},
            {"aggregators": ["ring", {"name": "one_bit", "threshold": "mean"}],
             "workloads": [{"first_available": [{**WORKLOAD, "model": {"name": "mlp", "hidden": [8]}}]}]},
        ],
        ids=str,
    )  # fmt: skip
    def test_what_it_says_against_a_default_is_written_and_can_be_run_again(self, folder, changes):
        prepared(folder, **changes)
        study = load_study(str(folder.path / "study.yaml"))
        assert study == made_study(**{**BASE, **changes})
        assert {record.cell_id for record in folder.runs()} == set(resolve(study, CPU).cells)
        prepare(folder, study, resolve(study, CPU))

    def test_data_sets_are_fetched_once_each(self, folder, monkeypatch):
        fetched = []
        monkeypatch.setattr(Digits, "fetch", lambda digits: fetched.append(digits))  # noqa: PLW0108 (a method)
        prepared(folder)
        assert len(fetched) == 1

    def test_folder_with_other_files_is_refused_and_left_alone_and_hidden_files_are_no_obstacle(self, folder):
        folder.path.mkdir()
        (folder.path / "thesis.tex").write_text("text")
        with pytest.raises(StoreError, match="results is not empty and holds no study; use another --out"):
            prepared(folder)
        assert contents(folder.path) == {"thesis.tex": b"text"}
        (folder.path / "thesis.tex").rename(folder.path / ".lock")
        assert prepared(folder).exists()


class TestSameFolderAgain:
    def test_same_study_changes_nothing_nor_does_another_host_of_the_same_kind(self, folder, environment):
        record = prepared(folder).runs()[0]
        folder.start_run(record, {})
        folder.finish_run(record, {"bytes": 3})
        before = contents(folder.path)
        assert contents(prepared(folder).path) == before
        environment["hostname"] = "there"
        assert contents(prepared(folder).path) == before, "the first stays recorded"
        assert folder.run(record.cell_id, record.repeat).state == "done"

    @pytest.mark.parametrize(
        "changes",
        [
            {"aggregators": ["ring", "tree", "all_reduce"]},
            {"world_sizes": [1, 2, 4]}, {"seed": [0, 1]}, {"repeats": 5},
        ],
        ids=str,
    )  # fmt: skip
    def test_study_may_come_back_with_more(self, folder, changes):
        before = {(record.cell_id, record.repeat) for record in prepared(folder).runs()}
        prepared(folder, **changes)
        assert {(record.cell_id, record.repeat) for record in folder.runs()} > before
        key, value = next(iter(changes.items()))
        written = folder.study()["parts"][0][key]
        assert len(written) == len(value) if isinstance(value, list) else written == value

    def test_larger_world_takes_over_the_second_cell_of_the_pair(self, folder):
        prepared(folder)
        prepared(folder, world_sizes=[1, 2, 4])
        sizes = {record.cell["world_size"] for record in folder.runs() if record.cell["aa_replicate"]}
        assert sizes == {2, 4}
        prepared(folder)

    @pytest.mark.parametrize(
        "changes", [{"aggregators": ["ring"]}, {"world_sizes": [2]}, {"repeats": 1}], ids=str
    )
    def test_study_may_come_back_with_fewer_and_nothing_is_lost(self, folder, changes):
        before = [(record.cell_id, record.repeat) for record in prepared(folder).runs()]
        whole = folder.study()
        prepared(folder, **changes)
        assert [(record.cell_id, record.repeat) for record in folder.runs()] == before
        assert folder.study() == whole or "aggregators" not in changes

    @pytest.mark.parametrize(("changes", "named"), [
        ({"learning_rate": 0.5}, r"parts\.0\.learning_rate is not set there and 0\.5 here"),
        ({"threads": 2}, r"parts\.0\.threads is 1 there and 2 here"),
        ({"seed": 3}, r"parts\.0\.seed\.0 is 0 there and 3 here"),
        ({"workloads": [{"model": "mlp", "dataset": "digits", "global_batch": 32}]},
         r"parts\.0\.workloads\.0\.global_batch\.0 is 64 there and 32 here"),
        # More of one and fewer of the other is another study as well.
        ({"aggregators": ["ring", "all_reduce"]}, r"parts\.0\.aggregators\.1\.name is 'tree' there"),
    ])  # fmt: skip
    def test_another_study_is_refused_naming_the_first_difference(self, folder, changes, named):
        before = contents(prepared(folder).path)
        with pytest.raises(StoreError, match=f"results holds another study: {named}.*another --out"):
            prepared(folder, **changes)
        assert contents(folder.path) == before


class TestEnvironment:
    @pytest.mark.parametrize(("field", "value", "named"), [
        ("cpu", {"model": "A fast one", "usable_cores": 2}, r"cpu\.usable_cores was 8 and is 2"),
        ("versions", {"torch": "2.7.0"}, r"versions\.torch was '2\.6\.0' and is '2\.7\.0'"),
        ("settings", {"NCCL_ALGO": "Tree"}, r"settings\.NCCL_ALGO was None and is 'Tree'"),
    ])  # fmt: skip
    def test_another_environment_is_refused_naming_the_field(self, folder, environment, field, value, named):
        before = contents(prepared(folder).path)
        environment[field] = value
        with pytest.raises(StoreError, match=f"results was measured in another environment: {named}"):
            prepared(folder)
        assert contents(folder.path) == before


class TestSettings:
    @pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NVIDIA_TF32_OVERRIDE"])
    def test_variable_that_contradicts_the_study_is_refused_before_anything_is_written(
        self, folder, monkeypatch, name
    ):
        monkeypatch.setenv(name, "1")
        study = made_study(**BASE, device="cuda")
        with pytest.raises(StudyError, match=f"{name} is set, but the study has cells"):
            prepare(folder, study, resolve(study, GPUS))
        assert not folder.path.exists()
        prepared(folder, device="cpu")  # on a CPU they mean nothing
