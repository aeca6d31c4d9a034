"""Large files take time in proportion to their size; numbers that no machine has are refused in few calls."""

import gzip
import os
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from scaling.analysis.candidates import TIME, workloads
from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.summary import read_study
from scaling.files import documents
from scaling.files.documents import DocumentError, from_json, gunzipped
from scaling.report import write
from scaling.store import ResultsFolder
from tests.faults.mutants import MOST_CALLS, complaint, run
from tests.faults.valid_inputs import PREDICTED
from tests.made_studies import StudyFolder, epoch, iteration, split


class Name(str):
    """A key that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_first_key_that_stands_twice_is_found_by_comparing_each_key_a_few_times():
    number = 2000
    pairs = [(Name(f"k{n}"), n) for n in range(number)]
    pairs += [(Name(f"k{n}"), n) for n in reversed(range(number // 2))]
    Name.compared = 0
    with pytest.raises(DocumentError, match="key 'k0' stands twice"):
        documents._mapping(pairs)
    assert Name.compared <= 4 * number
    for text in ('{"a": 1, "b": 2, "b": 3, "a": 4}', '{"x": {"a": 1, "a": 1}}'):
        with pytest.raises(DocumentError, match="key 'a' stands twice"):
            from_json(text)


@pytest.fixture
def unpacked(monkeypatch):
    """The bytes that were given to zlib, and those that it copied behind the ends of members."""
    seen = SimpleNamespace(given=0, copied=0)

    class Counting:
        def __init__(self, wbits):
            self._one = zlib.decompressobj(wbits)

        def decompress(self, piece, most):
            seen.given += len(piece)
            part = self._one.decompress(piece, most)
            self.eof, self.unused_data = self._one.eof, self._one.unused_data
            seen.copied += len(self.unused_data)
            return part

        eof = False

    names = {"error": zlib.error, "MAX_WBITS": zlib.MAX_WBITS, "decompressobj": Counting}
    monkeypatch.setattr(documents, "zlib", SimpleNamespace(**names))
    return seen


@pytest.mark.parametrize("size", [0, 1, 700, 100_000])
def test_members_of_gzip_are_read_once(unpacked, size):
    member = gzip.compress(bytes(n * n % 251 for n in range(size)))
    number = 2000 if size < 1000 else 5
    content = member * number
    assert gunzipped(content) == gzip.decompress(member) * number
    assert unpacked.given <= 3 * len(content) + 1024 * number
    assert unpacked.copied <= 2 * len(content) + 1024 * number


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_damage_is_found_in_any_member_and_zeros_behind_are_no_content(cut):
    packed = gzip.compress(bytes(range(256)) * 20)
    with pytest.raises(DocumentError, match="ends early"):
        gunzipped(packed + packed[:-cut])
    with pytest.raises(DocumentError, match="cannot be unpacked"):
        gunzipped(packed + b"x" + packed)
    with pytest.raises(DocumentError, match="more than 5200 bytes"):
        gunzipped(packed + packed, 5200)
    packed = gzip.compress(b"abc")
    assert gunzipped(packed + bytes(5000) + packed + bytes(3)) == b"abcabc"


def many_runs(path, num_models, num_buckets):
    """A folder of timed and trained cells, lossy ones too: of several models, each with sizes of buckets."""
    study = StudyFolder(path)
    for number in range(num_models * num_buckets):
        model, bucket = divmod(number, num_buckets)
        for size, aggregator in ((1, "none"), (2, "none"), (2, "ring"), (2, "one_bit")):
            names = {"aggregator": aggregator, "aggregator_label": aggregator, "model_label": f"m{model}"}
            names |= {"model_parameters": {"hidden": [model]}, "bucket_mb": bucket + 1.0}
            names["lossy"] = "bit" in aggregator
            spans = [split(step, 0.01, ("backward", "compute", 0.0, 0.005 + size / 1e3)) for step in (3, 4)]
            runs = [
                [[*(iteration(step, step_s, profiled=False) for step in (0, 1)), *spans]] * size
                for step_s in (0.01 + number / 1e5, 0.011)
            ]
            study.add(runs, world_size=size, **names)
        study.add([[[epoch(0, 1.0, 0.5, 0.9)]] * 2], kind="convergence", world_size=2, seed=number, **names)
    return study.folder.path


class Row(dict):
    """A cell of a table that counts how often it is looked at."""

    looked_at = 0

    def __getitem__(self, name):
        Row.looked_at += 1
        return dict.__getitem__(self, name)


@pytest.mark.parametrize("names", [["model"], ["local_batch", "global_batch"]], ids=["models", "batches"])
def test_each_cell_is_looked_at_as_often_in_a_study_of_many_workloads(tmp_path, names):
    study = read_study(ResultsFolder(many_runs(tmp_path, 1, 1)))
    original, counts = to_rows(study.table), []
    for times in (4, 40):
        rows, cells = [], []
        for number in range(1, times + 1):
            other = dict.fromkeys(names, f"m{number}" if names == ["model"] else number)
            rows += [Row({**row, **other, "cell_id": f"{number}{row['cell_id']}"}) for row in original]
            cells += [replace(cell, cell_id=f"{number}{cell.cell_id}") for cell in study.cells]
        Row.looked_at = 0
        assert len(workloads(TIME, rows, cells)) == times
        assert len(group_rows(rows)) >= times
        counts.append(Row.looked_at)
    assert counts[1] <= 11 * counts[0], counts


@pytest.mark.quality
@pytest.mark.parametrize("shape", [(1, 2), (2, 1)], ids=["one model", "many models"])
def test_commands_on_ten_times_the_runs_make_at_most_eleven_times_the_calls(monkeypatch, tmp_path, shape):
    monkeypatch.setattr(write, "draw_figures", lambda *_: ([], []))  # of so many cells as MOST_DRAWN says
    monkeypatch.setattr(os, "fsync", lambda _: None)
    few = many_runs(tmp_path / "few", *shape)
    many = many_runs(tmp_path / "many", *(10 * size if size > 1 else size for size in shape))
    for verb in ("status", "recommend", "report", "compare"):
        calls = []
        for folder in (few, few, many):  # the first also imports and makes templates
            ended = run([verb, folder, *([folder] if verb == "compare" else [])])
            assert not ended.traceback
            calls.append(ended.num_calls)
        assert calls[2] <= 11 * calls[1], (verb, calls)


def test_plan_of_ten_times_the_cells_makes_at_most_eleven_times_the_calls(tmp_path):
    calls = []
    for number in (30, 30, 300):
        study = tmp_path / f"{number}.yaml"
        study.write_text(
            "name: many\nworkloads: [{model: fcn-r, dataset: synthetic, global_batch: "
            f"{[64 * (n + 1) for n in range(number)]}}}]\naggregators: [all_reduce, ring]\n"
            "world_sizes: [2]\nscaling: strong\ndevice: cpu\n"
        )
        ended = run(["plan", study])
        assert ended.code == 0, ended.err
        calls.append(ended.num_calls)
    assert calls[2] <= 11 * calls[1], calls


STUDY = {**yaml.safe_load(PREDICTED), "device": "cpu"}

MANY = list(range(20_001))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"threads": 10**6}, "threads is 1000000: "),
        ({"repeats": 300_000}, "repeats is 300000: "),
        ({"seed": 10**26}, f"seed.0 is {10**26}: "),
        ({"seed": MANY}, "cells; at most 20000 are planned"),
        ({"world_sizes": [2, 10**9]}, "world_sizes.1 is 1000000000: "),
        ({"stall_timeout": 1e300}, "stall_timeout is 1e+300: "),
        ({"world_sizes": ["auto", 10**9]}, "world_sizes"),
        ({"iterations": 10**30}, "iterations is "),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_number_that_no_machine_has_is_refused_in_few_calls(tmp_path, keys, said):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **keys}))
    words = ("plan", path)
    ended = run(words)
    assert complaint(words, ended, tmp_path) is None
    assert ended.code == 2, ended.err
    assert said in ended.err


def test_grid_that_is_large_and_allowed_is_planned_in_few_calls(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "seed": MANY[:100]}))
    words = ("plan", path, "--json")
    ended = run(words)
    assert (ended.code, complaint(words, ended, tmp_path)) == (0, None)


@pytest.mark.parametrize(
    ("aggregator", "world_size", "said"),
    [
        ("all_reduce", 1024, None),
        ("host_parallel", 256, "it does not run there; ask for up to 8 ranks"),
        ("one_bit", 1024, "1047552 messages in one step; up to 400000 are priced"),
        ("mpi_one_bit", 1024, "messages of MPI in one step; up to 100000 are priced"),
        ("mxnet_tree", 1024, "the trees of up to 256 are searched"),
    ],
)
def test_prediction_of_many_ranks_is_made_or_refused_in_few_calls(tmp_path, aggregator, world_size, said):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(PREDICTED), "aggregators": [aggregator]}))
    machine = ("--topology", "hgx-h200-x16-infiniband", "--what-if", "nodes=128")
    words = ("predict", path, *machine, "--world-sizes", world_size)
    ended = run(words)
    assert ended.num_calls < MOST_CALLS
    assert ended.code == (2 if said else 0), ended.err
    if said:
        assert said in " ".join(ended.out.split())


@pytest.mark.parametrize("world_size", [1025, 10**6, 10**26])
def test_schedule_of_more_ranks_than_are_proven_is_not_exported(tmp_path, world_size):
    ended = run(("schedule", "export", "ring", "--world-size", world_size, "--out", tmp_path / "x.xml"))
    assert ended.code == 2
    assert "less than or equal to 1024" in " ".join(ended.err.replace("│", " ").split())
