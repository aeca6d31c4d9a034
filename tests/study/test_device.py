"""`kind: device`: which keys it has, which cells, which launches, and what a plan says of them."""

from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml

from scaling.device_studies.base import Budget, Experiment, LeftOutError
from scaling.errors import StudyError
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.kinds import label_of
from scaling.study.kinds.device import DeviceCell
from scaling.study.launches import remaining_launches
from scaling.study.planning import describe_plan
from scaling.study.prepare import prepare
from scaling.study.rank.device import measure_point
from scaling.study.resolve import job_shape, resolve
from scaling.study.schema import parse_study
from tests.made import ABSENT

DOCUMENT = Path(__file__).parents[2] / "docs" / "background" / "device-studies.md"
ONE_GPU = AvailableMachine(num_gpus=1, num_cores=16)
NO_GPU = AvailableMachine(num_gpus=0, num_cores=2)
SMALL = {
    **{"name": "small-networks", "width": 10, "batch": 1, "widths": [10, 20], "batches": [1], "depths": [2]},
    **{"input_sizes": [64], "equal_parameters": []},
}
STUDY = {"name": "small", "kind": "device", "experiment": SMALL}


def resolved(machine=ONE_GPU, **keys):
    return resolve(parse_study({**STUDY, **keys}, "small.yaml"), machine)


def cells(machine=ONE_GPU, **keys):
    return list(resolved(machine, **keys).cells.values())


class TestKeys:
    def test_experiment_is_a_name_or_a_name_with_parameters(self):
        (part,) = parse_study({**STUDY, "experiment": "small-networks"}, "s").parts
        assert (part.experiment.name, part.experiment.parameters) == ("small-networks", {})
        assert (part.devices, part.seconds, part.repeats) == (["cpu", "cuda"], 1.0, 1)
        (part,) = parse_study(STUDY, "s").parts
        assert part.experiment.parameters["widths"] == [10, 20]
        assert parse_study({**STUDY, "devices": "cpu"}, "s").parts[0].devices == ["cpu"], "without a list"

    @pytest.mark.parametrize(("keys", "said"), [
        *(({key: 1}, f"key '{key}' belongs to kind: .*kind: device runs an experiment")
          for key in ("world_sizes", "workloads", "aggregators", "device", "threads")),
        *(({key: value}, key) for key, value in
          (("devices", ["tpu"]), ("seconds", 0), ("limit_seconds", -1), ("devices", []))),
        ({"experiment": ABSENT}, "key 'experiment' is missing"),
    ])  # fmt: skip
    def test_key_of_other_kinds_wrong_value_and_missing_experiment_are_errors(self, keys, said):
        study = {key: value for key, value in {**STUDY, **keys}.items() if value is not ABSENT}
        with pytest.raises(StudyError, match=said):
            parse_study(study, "s")

    def test_keys_beside_the_parts_are_for_the_parts_that_know_them(self):
        parts = [{"kind": "device", "experiment": SMALL}]
        raw = {"name": "two", "world_sizes": [1, 2], "repeats": 2, "parts": parts}
        (part,) = parse_study(raw, "s").parts
        assert part.repeats == 2

    def test_study_that_was_written_can_be_run_again(self):
        study = parse_study({**STUDY, "seconds": 0.5}, "s")
        assert parse_study(yaml.safe_load(yaml.safe_dump(study.model_dump(mode="json"))), "again") == study


class TestCells:
    def test_every_point_has_a_cell_on_each_device_that_it_is_for(self):
        found = [(c.device, c.threads, c.point["step"], c.point["width"]) for c in cells()]
        one_width = [("cpu", 1, "eager"), ("cpu", 4, "eager"), ("cpu", 16, "eager")]
        one_width += [("cuda", 12, "eager"), ("cuda", 12, "captured")]
        assert sorted(found) == sorted((*arm, width) for arm in one_width for width in (10, 20))

    @pytest.mark.parametrize(("experiment", "threads", "note"), [
        (SMALL, [1, 2], "threads: 4 dropped: 2 cores can be used here"),
        # Twice the cores is its question.
        ("cpu-threads", [1, 2, 4],
         "128 dropped: 2 cores can be used here, and no more than 2 threads a core"),
    ])  # fmt: skip
    def test_without_a_gpu_its_cells_and_threads_above_the_cores_are_left_out_with_notes(
        self, experiment, threads, note
    ):
        study = resolved(NO_GPU, experiment=experiment)
        found = sorted({(cell.device, cell.threads) for cell in study.cells.values()})
        assert found == [("cpu", number) for number in threads]
        assert [one.endswith(note) for one in study.notes if one.startswith("threads: ")] == [True]
        # An experiment that has nothing for a GPU misses none.
        assert any("no GPU that torch can use" in one for one in study.notes) == (experiment is SMALL)

    def test_study_of_gpus_alone_where_there_is_none_and_an_unknown_experiment_are_errors(self):
        with pytest.raises(StudyError, match="nothing to measure on cuda: there is no GPU"):
            resolved(NO_GPU, devices="cuda")
        with pytest.raises(StudyError, match="unknown experiment 'smal-networks'"):
            resolved(experiment="smal-networks")

    def test_identity_is_that_of_the_point_and_of_what_decides_the_result_not_of_the_machine(self):
        ids = {cell.id for cell in cells()}
        here = {cell.id for cell in cells() if cell.threads == 1}
        there = {cell.id for cell in cells(AvailableMachine(1, 64)) if cell.threads == 1}
        assert (here, len(ids)) == (there, 10)
        for change in ({"seconds": 2.0}, {"limit_seconds": 3.0}, {"experiment": {**SMALL, "width": 20}}):
            assert not ids & {cell.id for cell in cells(**change)}


class TestLaunches:
    def test_a_launch_a_device_whatever_the_threads_and_a_batch_job_needs_one_gpu(self, tmp_path):
        launches = remaining_launches(ResultsFolder(tmp_path), resolved(repeats=2))
        found = [(one.repeat, one.settings.device, one.settings.threads, len(one.cells)) for one in launches]
        assert sorted(found) == [(0, "cpu", 16, 6), (0, "cuda", 12, 4), (1, "cpu", 16, 6), (1, "cuda", 12, 4)]
        shape = job_shape(parse_study(STUDY, "s"))
        assert (shape.world_sizes, shape.nodes, shape.gpus_per_node) == ([1], 1, 1)
        assert job_shape(parse_study({**STUDY, "devices": "cpu"}, "s")).gpus_per_node == 0

    def test_what_is_done_is_not_run_again(self, tmp_path):
        study, folder = resolved(NO_GPU), ResultsFolder(tmp_path)
        prepare(folder, parse_study(STUDY, "s"), study)
        first = next(iter(study.cells.values()))
        record = folder.run(first.id, 0)
        folder.start_run(record, {})
        folder.finish_run(record, {})
        (launch,) = remaining_launches(folder, study)
        assert first.id not in {cell.id for cell in launch.cells}
        assert len(launch.cells) == len(study.cells) - 1

    def test_tf32_that_the_environment_forces_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
        with pytest.raises(StudyError, match="NVIDIA_TF32_OVERRIDE is set"):
            prepare(ResultsFolder(tmp_path), parse_study(STUDY, "s"), resolved(NO_GPU))


def test_plan_and_label_name_the_experiment(tmp_path):
    text = describe_plan(resolved(), tmp_path / "none")
    assert "device small-networks on cpu, 4 threads: network mlp" in text
    assert "2 launches left" in text
    cell = next(one for one in cells() if isinstance(one, DeviceCell))
    assert label_of(cell.to_dict()) == f"device small-networks on {cell.device}"


def test_shipped_studies_are_listed_with_their_question():
    from scaling.cli.listing import studies

    listed = {entry["name"]: entry["description"] for entry in studies()}
    for name in ("small-networks", "cpu-threads", "batch-sizes"):
        assert "?" in listed[name]


@pytest.mark.usefixtures("named_by_a_study")
def test_examples_of_the_documents_are_an_experiment_and_a_study(tmp_path, monkeypatch):
    text = DOCUMENT.read_text(encoding="utf-8")
    source = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_experiments.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = cells(NO_GPU, experiment={"name": "my_experiments:MatrixProduct", "sizes": [3]})
    assert [(cell.device, cell.threads, cell.point) for cell in found] == [("cpu", 2, {"size": 3})]
    rows: list[dict[str, object]] = []
    cell, budget = found[0], Budget(found[0].seconds, limit_s=found[0].limit_s)
    measure_point(cell.experiment, cell.parameters, cell.point, budget, torch.device("cpu"), rows.extend)
    assert sum(row.get("phase") == "step" for row in rows) >= 6
    study = parse_study(yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0]), "docs")
    assert resolve(study, ONE_GPU).cells


CPU = torch.device("cpu")
CUDA_MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB"
ALLOCATOR = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"


FAULTS = {
    "left out": LeftOutError("it would take too long"),
    "memory": MemoryError("no room for 9 GB"),
    "cuda memory": torch.OutOfMemoryError(f"{CUDA_MEMORY}. GPU 0 has a total of"),
    "allocator": RuntimeError(ALLOCATOR),
    "bug": RuntimeError("a bug"),
}


@dataclass(frozen=True)
class Faulty(Experiment):
    """Yields one sample, then does what its point says."""

    name = "faulty"

    def points(self):
        return [{"fault": "none"}]

    def measure(self, point, device, budget):
        yield {"phase": "step", "seconds": 0.5}
        fault = point["fault"]
        if fault == "hidden memory":
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            except torch.OutOfMemoryError:
                raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
        if fault in FAULTS:
            raise FAULTS[fault]


def rows_of(fault):
    cell = DeviceCell("faulty", {}, {"fault": fault}, "cpu", 1, 0.1, 1.0, 1)
    rows = []
    with mock.patch("scaling.study.rank.device.create", return_value=Faulty()):
        budget = Budget(cell.seconds, limit_s=cell.limit_s)
        measure_point(cell.experiment, cell.parameters, cell.point, budget, CPU, rows.extend)
    return rows


def test_samples_are_handed_out_with_the_load_before():
    rows = rows_of("none")
    assert {"phase": "step", "seconds": 0.5} in rows
    assert [row["fact"] for row in rows if "fact" in row] == ["load_average"]


@pytest.mark.parametrize(("fault", "reason"), [
    ("left out", "it would take too long"), ("memory", "out of memory: no room for 9 GB"),
    ("cuda memory", f"out of memory: {CUDA_MEMORY}"), ("allocator", f"out of memory: {ALLOCATOR}"),
    ("hidden memory", "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB"),
])  # fmt: skip
def test_point_that_is_left_out_or_does_not_fit_is_a_result_with_its_reason(fault, reason):
    assert [row["value"] for row in rows_of(fault) if row.get("fact") == "left_out"] == [reason]
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        rows_of("bug")  # any other error fails the cell
