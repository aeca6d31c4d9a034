"""Where checkpoints lie, and which of them a cut leaves."""

import os

import pytest

from scaling.store import ResultsFolder


@pytest.fixture
def folder(tmp_path):
    return ResultsFolder(tmp_path / "results")


def names(folder: ResultsFolder) -> list[str]:
    return sorted(path.name for path in folder.path.rglob("*") if path.is_file())


def test_last_two_are_kept_the_last_one_first(folder):
    files = folder.checkpoints("cell", 0, 3)
    assert files.read() == []
    for content in (b"one", b"two", b"three"):
        files.write(content)
    assert [content for _, content in files.read()] == [b"three", b"two"]
    assert names(folder) == ["checkpoint-rank3.before.pt", "checkpoint-rank3.pt"]


def test_cut_between_two_files_leaves_the_one_before(folder, monkeypatch):
    files = folder.checkpoints("cell", 0, 0)
    files.write(b"one")
    real = os.replace

    def cut(source, target):
        if not str(target).endswith("before.pt"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        files.write(b"two")
    assert [content for _, content in files.read()] == [b"one"]


def test_ranks_repeats_and_cells_have_their_own(folder):
    folder.checkpoints("cell", 0, 0).write(b"one")
    for other in (("cell", 0, 1), ("cell", 1, 0), ("other", 0, 0)):
        assert folder.checkpoints(*other).read() == []


def test_all_of_a_run_are_removed_with_what_was_being_written(folder):
    for rank in (0, 1):
        files = folder.checkpoints("cell", 0, rank)
        files.write(b"one")
        files.write(b"two")
    (folder.path / "runs/cell/0/.checkpoint-rank1.pt.x7y").write_bytes(b"part")
    (folder.path / "runs/cell/0/rank0.jsonl").write_text("{}\n")
    folder.checkpoints("cell", 1, 0).write(b"of another run")
    folder.remove_checkpoints("cell", 0)
    assert names(folder) == ["checkpoint-rank0.pt", "rank0.jsonl"]
    folder.remove_checkpoints("cell", 0)  # again: nothing is there


def test_cleared_ones_are_gone(folder):
    files = folder.checkpoints("cell", 0, 0)
    files.write(b"one")
    files.clear()
    assert files.read() == []


def test_folder_in_a_files_place_is_read_as_nothing_and_replaced(folder):
    files = folder.checkpoints("cell", 0, 0)
    (folder.path / "runs/cell/0/checkpoint-rank0.pt").mkdir(parents=True)
    assert [content for _, content in files.read()] == [None]
    files.write(b"one")
    assert [content for _, content in files.read()] == [b"one"]
