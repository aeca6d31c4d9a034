"""The archived form of a results folder holds the same runs and samples, and nothing is lost on the way."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest

from scaling.errors import StoreError
from scaling.store import ResultsFolder, archive, archiving
from tests.made import contents

A, B = "0123456789ab", "ba9876543210"

SAMPLES = [
    {"iteration": 0, "warmup": True, "step_s": 0.1 + 0.2, "spans": [["forward", "main", 0.0, 1e-05]]},
    {"iteration": 1, "warmup": False, "step_s": 5e-324, "spans": []},
    {"step_s": 1.0, "iteration": 2},  # another order of the keys
    {"epoch": 1, "train_j": None, "all": 2**70, "one": 3.0, "text": "3.0", "no": "", "say": 'a "b",\n€'},
    {"sample": {"ranks": [0, 1], "facts": {"name": "x"}}},
    {"rank": 7, "step_s": 0.5},  # a key that is also one of the table's own columns
    {},
]
LONG = {"epoch": 2, "step_losses": [0.1] * 50_000}


def make(path: Path) -> ResultsFolder:
    """One run done on two ranks after an attempt that was cut off, one failed, one of another cell."""
    folder = ResultsFolder(path)
    folder.write_study({"name": "by-hand"})
    for cell_id, repeat in ((A, 0), (A, 10), (B, 2)):
        folder.plan_run(cell_id, repeat, {"kind": "own", "device": "cpu", "world_size": 2, "rate": 0.1})
    record = folder.run(A, 0)
    folder.start_run(record, {"launcher": "local"})
    folder.sample_writer(A, 0, 0)([{"iteration": 0, "step_s": 9.0}])
    folder.reset_run(record)
    folder.start_run(record, {"launcher": "local"})
    folder.sample_writer(A, 0, 1)([LONG])
    folder.sample_writer(A, 0, 0)(SAMPLES)
    folder.finish_run(record, {"bytes": 3, "share": 0.1}, ["a note"])
    folder.fail_run(folder.run(A, 10), "out of memory")
    folder.start_run(folder.run(B, 2), {})
    folder.sample_writer(B, 2, 0)([])  # a file without lines
    folder.sample_writer(B, 2, 1)(SAMPLES[:1])
    folder.finish_run(folder.run(B, 2), {})
    return folder


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "results")


def read(folder):
    """All that a caller sees of the runs; the text says types and the order of keys too."""
    runs = folder.runs()
    samples = [folder.samples(run.cell_id, run.repeat) for run in runs]
    return json.dumps(samples), runs, [folder.run(run.cell_id, run.repeat) for run in runs]


def rewritten(content: bytes, old: bytes, new: bytes) -> bytes:
    """A compressed file with other text."""
    return gzip.compress(gzip.decompress(content).replace(old, new))


def test_archive_reads_as_the_files_did_wherever_it_is_made_and_every_byte_comes_back(folder, tmp_path):
    before, files = read(folder), contents(folder.path)
    assert f"runs/{A}/0/attempt-1/rank0.jsonl" in files
    folder.archive()
    archived = contents(folder.path)
    assert set(archived) == {"study.yaml", "samples.csv.gz", "runs.jsonl.gz"}
    assert read(folder) == before == read(ResultsFolder(folder.path)), "also where it was open before"
    assert folder.samples(A, 0) == [SAMPLES, [LONG]]
    packed = folder.path / "runs.jsonl.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    with pytest.raises(StoreError, match=r"has runs\.jsonl\.gz and runs\.jsonl: move the one"):
        ResultsFolder(folder.path).runs()
    packed.unlink()  # so it is in older archives
    assert read(folder) == before == read(ResultsFolder(folder.path))
    folder.unarchive()
    assert contents(folder.path) == files
    folder.path = folder.path.rename(tmp_path / "elsewhere")
    folder.archive()
    assert contents(folder.path) == archived


def test_table_has_a_column_for_each_key_in_their_order_and_a_row_for_each_line(folder):
    folder.archive()
    csv.field_size_limit(2**31 - 1)
    with gzip.open(folder.path / "samples.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    own = [row for row in rows if (row["cell_id"], row["repeat"], row["attempt"]) == (A, "0", "")]
    assert [row["rank"] for row in own] == ["0"] * len(SAMPLES) + ["1"]
    assert [row["step_s"] for row in own][:3] == ["0.30000000000000004", "5e-324", "1.0"]
    assert json.loads(own[2]["keys"]) == ["step_s", "iteration"]
    assert [bool(row["line"]) for row in own] == [False] * 5 + [True, True, False]
    (cut_off,) = (row for row in rows if row["attempt"])
    assert (cut_off["attempt"], cut_off["step_s"]) == ("1", "9.0")
    orders = [("a", "c"), ("a", "b", "c"), ("c", "d"), ("d", "a")]
    assert archiving.columns_in_order(orders) == ["a", "b", "c", "d"]
    text = f"{A},0,,0,,,1\n{A},0,,1,,,1\n{A},0,,0,,,1\n"
    with pytest.raises(ValueError, match="do not stand together"):
        archive._places(io.BytesIO(text.encode()))


def test_compressed_samples_are_archived_as_what_they_are(folder):
    before = read(folder)
    for path in [*folder.path.glob("runs/*/*/rank*.jsonl"), *folder.path.glob("runs/*/*/*/rank*.jsonl")]:
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    folder.archive()
    assert read(folder) == before


NOT_OF_THE_STORE = [
    *(b'{"a": 1, "los', b'{"note": "\xff"}\n', b"\n", b"[1]\r\n", b'{"a":1}\n', b"{}", b"null\n"),
    *(b'{"step_s": ' + b"[" * 100_000 + b"\n", ("\ud800[" * 9).encode(errors="surrogatepass")),
]


@pytest.mark.parametrize("ending", NOT_OF_THE_STORE, ids=lambda ending: repr(ending[:12]))
def test_lines_that_the_store_did_not_write_so_are_kept_and_read_as_before(folder, ending):
    path = folder.path / "runs" / A / "0" / "rank1.jsonl"
    path.write_bytes(path.read_bytes() + ending)
    before = contents(folder.path)

    def told():
        try:
            return folder.samples(A, 0)
        except StoreError as error:
            return str(error).partition("is damaged")[2]

    expected = told(), folder.samples(A, 0, unfinished=True) if ending[:2] == b'{"' else None
    folder.archive()
    assert (told(), folder.samples(A, 0, unfinished=True) if ending[:2] == b'{"' else None) == expected
    folder.unarchive()
    assert contents(folder.path) == before


def test_missing_rank_is_an_error_in_both_forms(folder):
    (folder.path / "runs" / A / "0" / "rank0.jsonl").unlink()
    for change in (lambda: None, folder.archive):
        change()
        with pytest.raises(StoreError, match=r"samples of ranks \[1\] are there; some are missing"):
            folder.samples(A, 0)


class TestWhatIsRefused:
    @pytest.mark.parametrize("state", ["planned", "running"])
    def test_study_that_is_not_over_is_archived_only_on_request(self, folder, state):
        record = folder.run(A, 10)
        record.state = state
        folder.write_run(record)
        before, files = read(folder), contents(folder.path)
        with pytest.raises(StoreError, match=f"not finished: runs are 1 {state}; finish it.*--unfinished"):
            folder.archive()
        assert contents(folder.path) == files
        folder.archive(unfinished=True)
        assert read(folder) == before

    def test_folder_in_which_somebody_works_or_that_is_no_archive_and_writes_of_a_run_of_one(self, folder):
        with folder.lock(), pytest.raises(StoreError, match="another `scaling run`"):
            ResultsFolder(folder.path).archive()
        with pytest.raises(StoreError, match=r"is not archived: it has no runs\.jsonl\.gz"):
            folder.unarchive()
        record = folder.run(A, 0)
        folder.archive()
        before = contents(folder.path)
        for write in (
            lambda: folder.write_run(record),
            lambda: folder.start_run(record, {}),
            lambda: folder.sample_writer(A, 0, 0),
            lambda: folder.plan_run(A, 1, {}),
        ):
            with pytest.raises(StoreError, match=r"is archived: no run can be added.*--unarchive"):
                write()
        folder.plan_run(A, 10, {})  # known: nothing to write
        assert contents(folder.path) == before

    def test_damaged_archive_is_an_error_with_its_path(self, folder):
        folder.archive()
        path = folder.path / "samples.csv.gz"
        content = path.read_bytes()
        path.write_bytes(content[:-9])
        with pytest.raises(StoreError, match=r"samples\.csv\.gz is damaged"):
            ResultsFolder(folder.path).samples(A, 0)
        path.write_bytes(rewritten(content, b"9.0", b"9,0"))
        with pytest.raises(StoreError, match=r"samples\.csv\.gz is damaged: runs/.*attempt-1"):
            folder.unarchive()
        (folder.path / "runs.jsonl.gz").write_bytes(gzip.compress(b"{]\n"))
        with pytest.raises(StoreError, match=r"runs\.jsonl\.gz, line 1 is damaged"):
            folder.runs()

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("number", ["-1", "+1", "01", " 1", "1_0", "", "٣"])
    @pytest.mark.parametrize("place", [1, 3])
    def test_number_that_names_no_repeat_or_rank(self, folder, number, place):
        folder.archive()
        path = folder.path / "samples.csv.gz"
        header, first, *rest = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
        words = first.split(",")
        words[place] = number
        path.write_bytes(gzip.compress("".join([header, ",".join(words), *rest]).encode()))
        with pytest.raises(StoreError, match=r"samples\.csv\.gz is damaged: it has repeat"):
            ResultsFolder(folder.path).samples(A, 0)

    @pytest.mark.parametrize("name", ["samples.csv.gz", "runs.jsonl.gz"])
    def test_cell_id_that_names_another_place(self, folder, name):
        folder.archive()
        path = folder.path / name
        path.write_bytes(rewritten(path.read_bytes(), A.encode(), b"../../../abc"))
        before = contents(folder.path)
        with pytest.raises(StoreError, match=r"\.\./\.\./\.\./abc.* (names no run|is of no run)"):
            folder.unarchive()
        assert contents(folder.path) == before
        assert not any(folder.path.parent.rglob("*abc*"))

    def test_a_link_that_leads_out_of_the_folder(self, folder, tmp_path):
        folder.archive()
        elsewhere = tmp_path / "another" / "runs"
        elsewhere.mkdir(parents=True)
        (elsewhere.parent / "study.yaml").touch()
        (folder.path / "runs").symlink_to(elsewhere)
        with pytest.raises(StoreError, match="outside of the results folder"):
            folder.unarchive()
        assert list(elsewhere.iterdir()) == []


class TestNothingIsLost:
    def test_files_stay_where_the_archive_would_not_hold_them(self, folder, monkeypatch):
        whole = archiving.table
        before = contents(folder.path)
        monkeypatch.setattr(
            archiving, "table", lambda files: rewritten(whole(files), b"0.30000000000000004", b"0.3")
        )
        with pytest.raises(StoreError, match=r"rank0\.jsonl is not what .*samples\.csv\.gz holds"):
            folder.archive()
        assert contents(folder.path) == before

    def test_archiving_that_was_stopped_while_it_removed_files_is_taken_up_again(self, folder):
        before, files = read(folder), contents(folder.path)
        folder.archive()
        for name, content in files.items():
            if "rank1" in name or name.endswith("run.json"):
                (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
                (folder.path / name).write_bytes(content)
        with pytest.raises(StoreError, match=r"has files of runs and an archive of them.*--archive"):
            folder.runs()
        folder.archive()
        assert read(folder) == before
        assert not (folder.path / "runs").exists()

    @pytest.mark.parametrize("change", ["archive", "unarchive"])
    def test_files_that_say_something_else_are_neither_removed_nor_replaced(self, folder, change):
        folder.archive()
        other = folder.path / "runs" / A / "0" / "run.json"
        other.parent.mkdir(parents=True)
        other.write_text("{}")
        before = contents(folder.path)
        with pytest.raises(StoreError, match=r"run\.json is not what .*holds; move one of the two elsewhere"):
            getattr(folder, change)()
        assert contents(folder.path) == before

    def test_other_files_of_a_run_stay_and_an_unarchived_folder_can_be_run_again(self, folder):
        folder.checkpoints(A, 0, 0).write(b"weights")
        folder.archive()
        assert [content for _, content in folder.checkpoints(A, 0, 0).read()] == [b"weights"]
        assert not (folder.path / "runs" / B).exists()
        folder.runs()
        folder.unarchive()
        folder.plan_run(A, 11, {"kind": "own", "device": "cpu", "world_size": 2})
        record = folder.run(A, 11)
        folder.start_run(record, {})
        folder.sample_writer(A, 11, 0)([{"iteration": 0}])
        folder.finish_run(record, {})
        folder.archive()
        assert (folder.samples(A, 11), len(folder.runs())) == ([[{"iteration": 0}]], 4)
