"""Damages of files, drawn at random: of a value, of bytes, of the file as a whole."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

RAW = "@raw@"
"""What begins a text that stands in a file as it is, without quotes."""

VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 1e308, -1e308, 1e-320, 0.5, 10**19, 10**30, 2**63, 65536),
    *("", "x", "0", "1e5", "none", "../..", "a:b", "=1+1", "@SUM(A1)", "\u202e", "x" * 100_000, "é\u2028"),
    *([], {}, [[]], [None], [1, "a"], {"a": {"b": 1}}, ["x"] * 1000, [0.1] * 3),
    *(f"{RAW}NaN", f"{RAW}Infinity", f"{RAW}1e999", f"{RAW}.nan", f"{RAW}{'9' * 400}", f"{RAW}{'9' * 5000}"),
    *(f"{RAW}{'[' * number}{']' * number}" for number in (1000, 70)),
    *(f'{RAW}"\\u001b[31mred"', f'{RAW}"\\ud800"'),
    *(f'{RAW}"\\u0000"', f"{RAW}&x [*x]", f"{RAW}!!python/object/apply:os.system [x]", f"{RAW}2026-01-01"),
    *(f"{RAW}{{", f"{RAW}]", f"{RAW}'", f"{RAW}: :", f"{RAW}*none", f"{RAW}-"),
]


WORDS = (
    *["-1", "0", "-0.0", "1.5", "1e300", "1e-300", "9007199254740993", "1e400", "0x10", "1_000", "٣", "007"],
    *(
        "",
        *["x", "[red]x[/red]", "%s{0}", "{{x}}", "<script>", "../../x", "=1+1"],
        "x" * 5000,
        "\u202e",
        "&#27;[31m",
    ),
)
"""What stands in the place of a number or a quoted text, in whatever format."""


CONTROL = [b"\0", b"\x1b[2J", b"\xff\xfe", b"\x9b", b"\r", b"\xe2\x80\xa8", b"\t", b'"']
IN_PLACE = ["none", "empty", "folder", "loop", "dangling", "pipe", "other", "junk", "no parent", "spaces"]
MUTANT = "mutant"
"""The folder of the one that is being tried."""


# -- damages -------------------------------------------------------------------------------------------------


def damage(folder: Path, draw: random.Random) -> tuple[str, str]:
    """Damages one file of a folder; returns its name and what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = draw.choice(files)
    kinds = [_change_value, _change_value, _change_value, _change_word, _change_bytes, _change_file]
    for kind in draw.sample(kinds, len(kinds)):
        done = kind(path, files, draw)
        if done:
            break
    return str(path.relative_to(folder)), done or _change_bytes(path, files, draw)


def _change_value(path: Path, _: Sequence[Path], draw: random.Random) -> str | None:
    """One value or key of a document."""
    text = _text(path)
    if text is None:
        return None
    lines = text.splitlines() if path.name.endswith((".jsonl", ".jsonl.gz")) else [text]
    at = draw.randrange(len(lines)) if lines else 0
    try:
        document = yaml.safe_load(lines[at]) if path.suffix == ".yaml" else json.loads(lines[at])
    except (ValueError, IndexError, yaml.YAMLError):
        return None
    places = list(_places(document))
    if not places:
        return None
    done = _at(document, draw.choice(places), places, draw)
    changed = json.dumps(document)
    if path.suffix == ".yaml" and draw.random() < 0.5 and RAW not in changed:
        changed = yaml.safe_dump(document)
    lines[at] = unquoted(changed)
    _write(path, "\n".join(lines) + "\n")
    return done


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _at(document: Any, place: tuple[Any, ...], places: Sequence[tuple[Any, ...]], draw: random.Random) -> str:
    *above, key = place
    parent = document
    for step in above:
        parent = parent[step]
    name = ".".join(map(str, place))
    what = draw.choice(["value"] * 6 + ["remove", "rename", "twice", "other", "append"])
    if what == "remove":
        del parent[key]
        return f"{name} removed"
    if what == "rename" and isinstance(parent, dict):
        parent[draw.choice(["", "x", "schema_version", "=1", "\u202e", f"{key} "])] = parent.pop(key)
        return f"{name} renamed"
    if what == "twice" and isinstance(parent, dict):
        parent[f"{RAW}{key}"] = draw.choice([1, None, "x"])
        return f"{name} twice"
    if what == "other":
        other: Any = document
        for step in draw.choice(places):
            other = other[step]
        parent[key] = json.loads(json.dumps(other))
        return f"{name} is another value of the file"
    if what == "append" and isinstance(parent[key], list):
        parent[key].append(draw.choice(VALUES))
        return f"{name} has one more"
    parent[key] = draw.choice(VALUES)
    return f"{name} is {parent[key]!r:.60}"


def unquoted(text: str) -> str:
    """With raw texts as they are, and a key that begins with RAW under its own name, a second time."""
    parts = text.split(f'"{RAW}')
    out = [parts[0]]
    for part in parts[1:]:
        raw, end = json.JSONDecoder().raw_decode(f'"{part}')
        rest = part[end - 1 :]
        out.append(f"{json.dumps(raw)}{rest}" if rest.startswith(":") else f"{raw}{rest}")
    return "".join(out)


def _change_word(path: Path, _: Sequence[Path], draw: random.Random) -> str | None:
    """One number or quoted text."""
    text = _text(path)
    found = list(re.finditer(r'(?<![\w.])-?\d+(\.\d+)?(e-?\d+)?(?![\w.])|(?<=")[^"\\\n]+(?=")', text or ""))
    if text is None or not found:
        return None
    old, new = draw.choice(found), draw.choice(WORDS)
    _write(path, text[: old.start()] + new + text[old.end() :])
    return f"{old[0]!r:.40} at {old.start()} is {new!r:.40}"


def _change_bytes(path: Path, _: Sequence[Path], draw: random.Random) -> str:
    """Some bytes of a file, packed or as they are."""
    packed = path.suffix == ".gz" and draw.random() < 0.7
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    start = draw.randrange(len(content) + 1)
    stop = min(len(content), start + draw.choice([1, 1, 1, 2, 8, 64, 1000]))
    what = draw.choice(["flip", "remove", "junk", "cut", "repeat", "control"])
    middle = {
        "flip": bytes(byte ^ (1 << draw.randrange(8)) for byte in content[start:stop]),
        "remove": b"",
        "junk": draw.randbytes(stop - start),
        "cut": b"",
        "repeat": content[start:stop] * draw.choice([2, 3, 50]),
        "control": draw.choice(CONTROL),
    }[what]
    changed = content[:start] + middle + (b"" if what == "cut" else content[stop:])
    path.write_bytes(gzip.compress(changed) if packed else changed)
    return f"bytes {start} to {stop} {what}"


def _change_file(path: Path, files: Sequence[Path], draw: random.Random) -> str:
    """What stands in its place."""
    what = draw.choice(IN_PLACE)
    other = draw.choice(files)
    content = other.read_bytes()
    if what == "no parent" and path.parent.name != MUTANT:
        shutil.rmtree(path.parent)
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        return "its folder removed"
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)
    elif what == "dangling":
        path.symlink_to(path.with_name("nowhere"))
    elif what not in ("none", "no parent"):
        new = {"empty": b"", "other": content, "junk": draw.randbytes(2000), "spaces": b" \n" * 9}
        path.write_bytes(new[what])
    return f"{what} in its place"


def _text(path: Path) -> str | None:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    content = text.encode(errors="surrogatepass")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
