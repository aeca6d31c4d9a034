"""What a folder has measured is read again only where its runs have changed."""

from types import SimpleNamespace

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.summary import summary_table
from scaling.measure.probe.cases import ProbeSample, as_csv
from scaling.prediction.calibration_data import MeasuredFolder, sources_of
from scaling.prediction.measured import measured_cells
from scaling.store import ResultsFolder
from tests.made_studies import StudyFolder
from topologies.schema import load


@pytest.fixture
def study(tmp_path):
    """Two cells, of which one has its A/A replicate."""
    study = StudyFolder(tmp_path)
    study.add_steps([[0.10, 0.11, 0.12], [0.10, 0.12, 0.13]], aggregator="ring", world_size=2)
    study.add_steps([[0.12, 0.12, 0.13], [0.11, 0.12, 0.14]], aggregator="ring", world_size=2, aa_replicate=1)
    study.add_steps([[0.05, 0.06, 0.07]], aggregator="none", world_size=1)
    return study


@pytest.fixture
def read(monkeypatch):
    """The cells that were read, in order."""
    ids: list[str] = []
    samples = ResultsFolder.samples

    def counted(self, cell_id, repeat, **options):
        ids.append(cell_id)
        return samples(self, cell_id, repeat, **options)

    monkeypatch.setattr(ResultsFolder, "samples", counted)
    return ids


def from_summary(folder):
    cells = {record.cell_id: record.cell for record in folder.runs()}
    rows = [(cells[row["cell_id"]], "", row) for row in to_rows(summary_table(folder))]
    return measured_cells(rows, str(folder.path))


def test_cells_are_those_of_the_summary_with_its_noise_floor(study):
    cells = MeasuredFolder(study.folder).cells()
    assert cells == from_summary(study.folder)
    assert summary_table(study.folder).noise_floor.notna().any()
    assert [cell.world_size for cell in cells] == [1, 2, 2]
    assert max(cell.relative_sd for cell in cells) > 0.01, "of the A/A pair"


@pytest.mark.parametrize(("state", "count"), [("done", 1), ("planned", 1), ("running", 1), ("failed", 0)])
def test_a_cell_with_launches_left_to_do_tells_what_the_others_took(state, count):
    row = {"state": state, "iteration_s": 0.1}
    assert len(measured_cells([({"kind": "iteration"}, "", row)], "results")) == count


def test_new_cell_alone_is_read_and_all_are_as_if_read_at_once(study, read):
    measured = MeasuredFolder(study.folder)
    measured.cells()
    del read[:]
    assert (measured.cells(), read) == (measured.cells(), [])
    new = study.add_steps([[0.20, 0.21, 0.22]], aggregator="tree", world_size=2)
    cells = measured.cells()
    assert read == [new]
    assert cells == from_summary(study.folder)


def test_cell_of_which_another_repeat_is_done_is_read_anew(study, read):
    planned = study.add(["planned"], aggregator="tree", world_size=2)
    measured = MeasuredFolder(study.folder)
    assert len(measured.cells()) == 3
    del read[:]
    record = study.folder.run(planned, 0)
    study.folder.start_run(record, {"launcher": "local", "host": "here"})
    lines = [{"iteration": n, "warmup": False, "profiled": False, "step_s": 0.2} for n in range(3)]
    for rank in range(2):
        study.folder.sample_writer(planned, 0, rank)(lines)
    study.folder.finish_run(record, {})
    study.add([[[]]], kind="convergence", aggregator="ring", world_size=2)  # calibrates nothing
    assert (len(measured.cells()), read) == (4, [planned])


def test_cells_of_older_code_are_said_with_what_has_changed(study, monkeypatch):
    folder = MeasuredFolder(study.folder)
    folder.cells()
    assert not folder.older_code()
    change = SimpleNamespace(what="rings run otherwise")
    monkeypatch.setattr(
        "scaling.prediction.calibration_data.changes_since",
        lambda record: [change] if record.cell["aggregator"] == "ring" else [],
    )
    assert folder.older_code() == {"rings run otherwise": 2}
    _, notes = sources_of([study.folder.path], [], load("hgx-h200-4"), None)
    (note,) = [note for note in notes if "older code" in note]
    assert "2 cells were measured with older code" in note
    assert note.endswith("since then rings run otherwise")


@pytest.mark.parametrize(("operation", "num_ranks", "said"), [
    ("all_reduce", 16, "samples of 16 ranks are left out: hgx-h200-4 has 4 GPUs"),
    ("peer_copy", 2, "the samples calibrate nothing: they have no messages and no all-reduce"),
    ("all_reduce", 4, None),
])  # fmt: skip
def test_samples_that_do_not_fit_the_machine_are_said(tmp_path, operation, num_ranks, said):
    path = tmp_path / "samples.csv"
    ranks = tuple(range(num_ranks))
    path.write_text(as_csv([ProbeSample("default", operation, ranks, "", False, None, 1 << 20, 1, 1e-4)]))
    _, notes = sources_of([], [path], load("hgx-h200-4"), None)
    assert notes == ([said] if said else [])
