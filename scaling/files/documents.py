"""Reads YAML and JSON that others wrote, as plain values; whatever is wrong is one error with its place.

A document is null, booleans, numbers, texts, lists and mappings with texts as keys. Refused, before anything
is made of it: a file that is none or too large, bytes that are no text, a key that stands twice, aliases that
expand to too much or into themselves, deep nesting, NaN and infinities, huge numbers, control characters in
texts, and values that only YAML has (dates, sets, tags).
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import yaml

from scaling.files.texts import is_clean

MAX_YAML_BYTES = 2 << 20  # a second's work for the parser; the largest machine file known has 8 KiB
MAX_BYTES = 1 << 30
LEAST_PIECE_BYTES = 512
MAX_DEPTH = 64
MAX_VALUES = 200_000  # of a YAML document, aliases expanded
MAX_BITS = 1000  # of a whole number: one that is no longer a float cannot be computed with

Key = str | int

_ZEROS = re.compile(rb"\0*")  # padding behind a member


class DocumentError(ValueError):
    """What is wrong with a document, on which line if that is known; the caller says which document."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"{problem} (line {line})")
        self.problem = problem
        self.line = line


class UnreadableError(DocumentError):
    """There is no text to be judged: what is there is no file, is too large, or may not be read."""


# -- files ---------------------------------------------------------------------------------------------------


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file. FileNotFoundError: there is none; UnreadableError: it is no such."""
    try:
        # A pipe that nobody writes to would keep us waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableError("cannot be read: it is no regular file")
            if status.st_size > max_bytes:
                raise UnreadableError(f"has {status.st_size} bytes; at most {max_bytes} are read")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a folder" if error.errno == errno.EISDIR else error.strerror
        raise UnreadableError(f"cannot be read: {reason}") from error


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file; raises as `read_bytes` does."""
    return decoded(read_bytes(path, max_bytes))


def decoded(content: bytes) -> str:
    """The text of UTF-8 bytes. Raises DocumentError: they are none."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError("it is no UTF-8 text", line) from error


def gunzipped(content: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """What gzip has packed. Raises DocumentError: it is damaged, ends early, or is larger unpacked."""
    if not content:
        raise DocumentError("it is empty")
    parts, at, total = [], 0, 0
    while at < len(content):
        unpacker, num_bytes = zlib.decompressobj(16 + zlib.MAX_WBITS), LEAST_PIECE_BYTES
        while not unpacker.eof:
            piece = content[at : at + num_bytes]
            if not piece:
                raise DocumentError("it ends early")
            try:
                part = unpacker.decompress(piece, max_bytes - total + 1)
            except zlib.error as error:
                raise DocumentError(f"it cannot be unpacked ({error})") from error
            total += len(part)
            if total > max_bytes:
                raise DocumentError(f"it unpacks to more than {max_bytes} bytes")
            parts.append(part)
            # What is behind the end of a member is copied: pieces are small where members are.
            at, num_bytes = at + len(piece), 2 * num_bytes
        at = _ZEROS.match(content, at - len(unpacker.unused_data)).end()  # type: ignore[union-attr]
    return b"".join(parts)


# -- JSON ----------------------------------------------------------------------------------------------------


def from_json(text: str) -> Any:
    """The value of a JSON document. Raises DocumentError: it is damaged, or has what no document may have."""
    value = _loaded(text)
    if not _is_plain(value, has_clean_texts=not _may_be_escaped(text)):
        require_plain(value)
    return value


def _may_be_escaped(text: str) -> bool:
    """Whether there may be characters in its texts that no document may have."""
    return "\\" in text or not text.isascii() or "\x7f" in text


def json_samples(text: str) -> Any:
    """`from_json` for very many samples, whose reader checks the numbers that it takes."""
    return from_json(text) if _may_be_escaped(text) else _loaded(text)


def _loaded(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise DocumentError(f"values are nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        problem = f"no JSON: {_lowered(error.msg)} (column {error.colno})"
        raise DocumentError(problem, error.lineno) from None
    except DocumentError:
        raise
    except ValueError as error:  # a number of more digits than Python reads
        raise DocumentError(f"no JSON: {_lowered(str(error).partition(';')[0])}") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise DocumentError(f"key {next(name for name, count in counts.items() if count > 1)!r} stands twice")
    return values


def _no_constant(name: str) -> None:
    raise DocumentError(f"{name} is no value; a number is finite, and null stands for none")


_DECODER = json.JSONDecoder(object_pairs_hook=_mapping, parse_constant=_no_constant)


# -- YAML ----------------------------------------------------------------------------------------------------

_SafeLoader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]  # of two classes the one that is there
    """Refuses a key that stands twice in a mapping; YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise DocumentError(f"key {key.value!r} stands twice", key.start_mark.line + 1)
                seen.add(key.value)
        self.flatten_mapping(node)
        pairs = [(self.construct_object(key, deep=True), value) for key, value in node.value]
        for key, value in pairs:
            if not isinstance(key, str):
                raise DocumentError(f"key {key!r} is no text; put it in quotes", value.start_mark.line + 1)
        return {key: self.construct_object(value, deep=deep) for key, value in pairs}


def from_yaml(text: str) -> Any:
    """The value of a YAML document. Raises DocumentError: it is damaged, or has what no document may have."""
    if len(text) > MAX_YAML_BYTES:
        raise DocumentError(f"has {len(text)} characters; at most {MAX_YAML_BYTES} are read")
    try:
        _require_small(yaml.parse(text, Loader=_SafeLoader))
        value = yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be read"
        raise DocumentError(
            f"no valid YAML: {problem}", mark.line + 1 if mark is not None else None
        ) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"no valid YAML: {_lowered(str(error).splitlines()[0])}") from None
    except DocumentError:
        raise
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DocumentError(f"no valid YAML: {_lowered(str(error).partition(';')[0])}") from None
    require_plain(value)
    return value


def _require_small(events: Iterable[yaml.Event]) -> None:
    """Follows the parser without making anything: counts levels, and values with aliases expanded."""
    sizes: dict[str, int | None] = {}  # None: not at its end yet
    open_: list[tuple[str | None, int]] = []
    total = 0
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.CollectionStartEvent):
            if event.anchor:
                sizes[event.anchor] = None
            open_.append((event.anchor, total))
            if len(open_) > MAX_DEPTH:
                raise DocumentError(f"values are nested deeper than {MAX_DEPTH} levels", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor or "", 1)
            if size is None:
                raise DocumentError(f"alias *{event.anchor} stands in what it is the name of", line)
            total += size
        if total > MAX_VALUES:
            raise DocumentError(f"has more than {MAX_VALUES} values, aliases counted as what they name", line)


# -- what both may hold --------------------------------------------------------------------------------------


def require_plain(value: Any) -> None:
    """Raises DocumentError, with the keys that lead there, where a value is none that a document may have."""
    if _is_plain(value):
        return
    left: list[tuple[tuple[Key, ...], Any]] = [((), value)]
    while left:
        path, value = left.pop()
        if problem := _problem(value):
            raise DocumentError(f"{shown_path(path) or 'the document'} {problem}")
        if len(path) > MAX_DEPTH:
            raise DocumentError(f"values are nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            for key, item in value.items():
                if not is_clean(key):
                    where = shown_path(path) or "the document"
                    raise DocumentError(f"{where} has the key {key!r}; a key has no control characters")
                left.append(((*path, key), item))
        elif isinstance(value, list):
            left.extend(((*path, index), item) for index, item in enumerate(value))


def _is_plain(value: Any, *, has_clean_texts: bool = False) -> bool:
    """Whether all is allowed: found quickly, level by level; False also where that is not sure."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if not (has_clean_texts or all(map(_is_plain_text, item))):
                    return False
                inner.extend(item.values())
            elif kind is list:
                inner.extend(item)
            elif kind is str:
                if not (has_clean_texts or _is_plain_text(item)):
                    return False
            elif kind is float:
                if not math.isfinite(item):
                    return False
            elif kind is int:
                if item.bit_length() > MAX_BITS:
                    return False
            elif item is not None and kind is not bool and _problem(item) is not None:
                return False
        level, depth = inner, depth + 1
    return not level


def _is_plain_text(value: Any) -> bool:
    return type(value) is str and (value.isprintable() or is_clean(value))


def _problem(value: Any) -> str | None:
    if value is None or isinstance(value, bool | dict | list):
        return None
    if isinstance(value, str):
        return None if is_clean(value) else f"is {value!r:.60}; a text has no control characters"
    if isinstance(value, int):
        return None if value.bit_length() <= MAX_BITS else "is too large a number"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}; it should be a finite number"
    return f"is {value!s:.60}, a {type(value).__name__}; put it in quotes to make it a text"


def shown_path(path: Sequence[object]) -> str:
    """`parts.0.workloads`."""
    return ".".join(map(str, path))


def line_of(text: str, path: Sequence[object]) -> int | None:
    """The line, from 1, of the value in a text that keys and indices lead to as far as they do, or None."""
    try:
        node = yaml.compose(text, _SafeLoader) if len(text) <= MAX_YAML_BYTES else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    for step in path:
        inner = _child(node, step)
        if inner is None:
            break
        node = inner
    return node.start_mark.line + 1 if node is not None else None


def _child(node: Any, step: object) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if getattr(key, "value", None) == str(step)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
