"""Large valid and damaged files take time in proportion to their size: held by counts of what is done."""

import gzip
import zlib
from types import SimpleNamespace

import pytest

from scaling.analysis import control
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.files import documents
from scaling.files.documents import DocumentError, from_json, gunzipped
from tests.made_studies import StudyFolder


class Name(str):
    """A key that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_key_that_stands_twice_is_found_by_comparing_each_key_a_few_times():
    number = 2000
    pairs = [(Name(f"k{n}"), n) for n in range(number)]
    pairs += [(Name(f"k{n}"), n) for n in reversed(range(number // 2))]
    Name.compared = 0
    with pytest.raises(DocumentError, match="key 'k0' stands twice"):
        documents._mapping(pairs)
    assert Name.compared <= 4 * number


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "b": 3, "a": 4}', '{"x": {"a": 1, "a": 1}}'])
def test_first_key_that_stands_twice_is_named(text):
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


def test_zeros_behind_members_are_no_content():
    packed = gzip.compress(b"abc")
    assert gunzipped(packed + bytes(5000) + packed + bytes(3)) == b"abcabc"


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_damage_is_found_in_any_member(cut):
    packed = gzip.compress(bytes(range(256)) * 20)
    with pytest.raises(DocumentError, match="ends early"):
        gunzipped(packed + packed[:-cut])
    with pytest.raises(DocumentError, match="cannot be unpacked"):
        gunzipped(packed + b"x" + packed)
    with pytest.raises(DocumentError, match="more than 5200 bytes"):
        gunzipped(packed + packed, 5200)


def compared(monkeypatch, path, num_models):
    """How often the summary of so many models asks whether two cells belong together; and the speedups."""
    asked = []
    for name in ("is_baseline_of", "_controls"):
        function = getattr(control, name)
        monkeypatch.setattr(control, name, lambda *a, function=function: asked.append(1) or function(*a))
    study = StudyFolder(path)
    for number in range(num_models):
        for size, aggregator in ((1, "none"), (2, "none"), (2, "ring")):
            names = {"aggregator": aggregator, "aggregator_label": aggregator, "model_label": f"m{number}"}
            study.add_steps([[0.01, 0.01]], world_size=size, model_parameters={"hidden": [number]}, **names)
    table = build_table("x", read_cells(study.folder))
    monkeypatch.undo()
    return len(asked), list(table["speedup"].dropna())


def test_summary_compares_each_cell_with_its_own_group(monkeypatch, tmp_path):
    few, of_few = compared(monkeypatch, tmp_path / "few", 3)
    many, of_many = compared(monkeypatch, tmp_path / "many", 12)
    assert (len(of_few), len(of_many)) == (9, 36)
    assert many <= 4 * few
