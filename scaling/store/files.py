"""Files as the store keeps them: replaced in one piece; errors say what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from scaling.errors import DiskFullError, StoreError
from scaling.files.documents import (
    DocumentError,
    UnreadableError,
    decoded,
    gunzipped,
    json_samples,
    read_bytes,
    read_text,
)
from scaling.files.redaction import redacted, redacted_document
from scaling.files.texts import clean
from scaling.store.schemas import validate

GONE = "its folder is gone, removed or unmounted while in use; nothing is made anew; start the command again"


REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of disk space is used up",
    errno.EFBIG: "the limit of the size of a file is reached (ulimit -f)",
}

MARK = "cannot be written: "


def disk_full(path: Path, error: OSError, num_bytes: int | None = None) -> DiskFullError | None:
    """What is wrong and what to do, where a full disk kept `num_bytes` from being written; else None."""
    reason = REASONS.get(error.errno or 0)
    if reason is None:
        return None
    return DiskFullError(
        f"{path}: {MARK}{reason}{_room(path, num_bytes)}; free some space there (launches/*.log and "
        "runs/*/*/attempt-* of a results folder are not needed), and the same command goes on; or use "
        "another folder. What was measured before is complete and can be read"
    )


def _room(path: Path, num_bytes: int | None) -> str:
    """What is needed and what is free, in brackets; empty where neither is known."""
    there = next((parent for parent in (path, *path.absolute().parents) if parent.exists()), None)
    needed = "" if num_bytes is None else f"{_size(num_bytes)} needed"
    try:
        status = os.statvfs(there) if there else None
    except OSError:
        status = None
    free = ""
    if status is not None:
        no_files = status.f_files and not status.f_favail
        free = (
            "no further files are possible"
            if no_files
            else f"{_size(status.f_bavail * status.f_frsize)} free"
        )
    figures = ", ".join(filter(None, [needed, free]))
    return f" ({figures})" if figures else ""


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.1f} kB"


@contextmanager
def writing(path: Path, num_bytes: int | None = None) -> Iterator[None]:
    """Turns what the system says of a path into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise StoreError(f"{path}: {GONE}") from error
        if error.errno == errno.EEXIST:
            raise StoreError(f"{error.filename} is no folder; use another one") from error
        if error.errno == errno.EISDIR:
            raise StoreError(f"{path} is a folder; a file is to be written there: move it away") from error
        raise disk_full(path, error, num_bytes) or StoreError(
            f"{path}: cannot be written: {error.strerror}; make its folder writable, or use another one "
            "(a copy of one that is there)"
        ) from error


def write_whole(path: Path, content: bytes) -> Path:
    """Replaces a file in one piece: written to a temporary file, synced, renamed; returns its path."""
    with writing(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666
        )  # less what the umask says
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)  # on a full disk its part would take the last space
            raise
    return path


def overwrite(path: Path, content: bytes) -> bool:
    """Writes a text again in place, filled with spaces; False, and nothing is done, where it is too small."""
    with writing(path), os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        if len(content) > length:
            return False
        file.write(content.ljust(length))
        os.fsync(file.fileno())
    return True


def append_whole(path: Path, content: bytes) -> None:
    """Adds to a file, which is made, but not its folder; nothing where not all of it can be written."""
    with writing(path, len(content)):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # the file itself is no link
        with os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0) as file:
            length = file.tell()
            try:
                unwritten = memoryview(content)
                while unwritten:
                    unwritten = unwritten[file.write(unwritten) :]
            except OSError:
                file.truncate(length)
                raise


def redact_file(path: Path) -> None:
    """Redacts a text file; bytes that are no text stay."""
    with writing(path):
        lines = path.read_bytes().decode(errors="surrogateescape").splitlines(keepends=True)
    changed = [redacted(line) for line in lines]
    if changed != lines:
        write_whole(path, "".join(changed).encode(errors="surrogateescape"))


def same_folder(folder: Path, before: tuple[int, int] | None) -> tuple[int, int] | None:
    """What the system knows a folder by; raises a StoreError where it was another one before."""
    try:
        found = os.stat(folder)
    except OSError:
        now = None
    else:
        now = (found.st_dev, found.st_ino)
    if before not in (None, now):
        raise StoreError(f"{folder}: {GONE}")
    return now


def inside(folder: Path, name: str) -> Path:
    """The path of what is written or removed in a results folder; it, and its `runs`, may be links to another
    disk. Raises StoreError: another link or a name leads out of it, or `runs` to another results folder."""
    path = folder / name
    roots = [Path(os.path.realpath(folder))]
    _require_apart(roots[0])
    runs = folder / "runs"
    if runs.is_symlink() and not _is_anothers(runs):
        roots.append(Path(os.path.realpath(runs)))
    parent = Path(os.path.realpath(path.parent))
    if not any(parent.is_relative_to(root) for root in roots):
        raise StoreError(
            f"{path} is outside of the results folder: a link in the folder or a name in its results "
            "leads there, and nothing is written; remove the link or correct the name"
        )
    return path


OWN_FOLDERS = ("runs", "launches", "figures", "sheets")  # of a results folder's own files


def _require_apart(folder: Path) -> None:
    if _is_results(folder):  # it was made there: what is made from it, as a report, is written
        return
    for path in (folder, *folder.parents):
        if path.name in OWN_FOLDERS and _is_results(path.parent):
            raise StoreError(
                f"{folder} is in {path.name} of the results folder {path.parent}, which keeps its own files "
                "there; use another folder, as --out"
            )


def _is_results(folder: Path) -> bool:
    """Whether it is a results folder; a `study.yaml` alone may be anybody's."""
    return all((folder / name).exists() for name in ("study.yaml", "environment.json"))


def _is_anothers(runs: Path) -> bool:
    """Whether a link leads to a part of another results folder, at once or by links of that one."""
    for _ in range(40):  # as many links as the system follows
        if not runs.is_symlink():
            return False
        runs = runs.parent / os.readlink(runs)
        parent = Path(os.path.realpath(runs.parent))
        above = (one for one in parent.parents if (one / "environment.json").exists())
        if any((one / "study.yaml").exists() for one in (parent, *above)):
            return True
    return True


def part_of(folder: Path, name: str) -> Path:
    """The path of a folder in another one, in which is written; raises as `inside` does."""
    return inside(folder, f"{name}/study.yaml").parent


def read_document(
    path: Path, parse: Callable[[str], Any], model: type[BaseModel], mend: str
) -> dict[str, Any]:
    """The mapping that a file holds, read by `parse` and checked by `model`; `mend`: what to do about one
    that is wrong. Raises StoreError: it cannot be read, or holds something else."""
    text = text_of(path, mend)
    try:
        value = parse(text)
    except DocumentError as error:
        raise damaged(path, error, mend) from None
    validate(model, value, path, mend, text)
    return dict(value)


def text_of(path: Path, mend: str) -> str:
    """The text of a file, packed or not. Raises StoreError: there is none, or it cannot be read."""
    try:
        return decoded(gunzipped(read_bytes(path))) if path.suffix == ".gz" else read_text(path)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {mend}") from None
    except DocumentError as error:
        raise damaged(path, error, mend) from None


def damaged(where: object, error: DocumentError, mend: str) -> StoreError:
    if isinstance(error, UnreadableError):
        return StoreError(f"{where}: {error.problem}; {mend}")
    return StoreError(f"{where} is damaged: {error}; {mend}")


@contextmanager
def fitting(where: object, mend: str) -> Iterator[None]:
    """Turns what allowed values that do not fit together lead to into a StoreError of their file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        what = clean(f"{type(error).__name__}: {error}")
        raise StoreError(f"{where}: values do not fit together ({what:.200}); {mend}") from error


def run_folders(folder: Path) -> list[Path]:
    """Those of runs with files of their own, `runs/<cell>/<repeat>`, by cell and repeat; else StoreError."""
    if os.path.lexists(folder / "runs") and not os.path.isdir(folder / "runs"):
        raise StoreError(f"{folder / 'runs'} is no folder; put it back, or remove what stands in its place")
    folders = [path for cell in listed(folder / "runs") for path in listed(cell)]
    runs = [path for path in folders if path.name.isascii() and path.name.isdecimal()]
    return sorted(runs, key=lambda path: (path.parts[-2], int(path.name)))


def take_number(folder: Path, suffix: str) -> int:
    """The first number of which the folder has no file `<number><suffix>`, which is made: others look too."""
    number = 1
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                (folder / f"{number:03d}{suffix}").touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return number


def storable(value: Any) -> Any:
    """`value` as readers take it: NaN and infinities are null, control characters in texts are escapes."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(redacted_document(storable(value)), indent=1) + "\n").encode()


def write_checked(path: Path, model: type[BaseModel], value: Mapping[str, Any]) -> Path:
    """Writes a file of facts that can be read again. Raises StoreError: its model does not allow it."""
    content = as_json(value)
    validate(model, json.loads(content), f"what was to be written to {path}", "please report this")
    return write_whole(path, content)


_SAMPLES = re.compile(r"rank(0|[1-9]\d{0,6})\.jsonl(\.gz)?", re.ASCII)


def sample_files(run: Path) -> list[Path]:
    """Those of a run's folder, by rank, compressed or not."""
    return sorted((path for path in listed(run) if _SAMPLES.fullmatch(path.name)), key=rank_of)


def rank_of(samples: Path) -> int:
    match = _SAMPLES.fullmatch(samples.name)
    assert match, samples
    return int(match[1])


def listed(folder: Path) -> list[Path]:
    """What a folder holds, by name; [] where there is none. Raises StoreError: it cannot be read."""
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{folder}: cannot be read: {error.strerror}; check its permissions") from error


MEND_SAMPLES = "delete its run's folder, and `scaling run` measures it again"


def json_lines(path: Path, *, unfinished: bool = False) -> list[dict[str, Any]]:
    """A file's lines, compressed or not. `unfinished`: a damaged last one is left out. Raises StoreError."""
    try:
        content = read_bytes(path)
        if path.suffix == ".gz":
            content = gunzipped(content)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {MEND_SAMPLES}") from None
    except DocumentError as error:
        raise damaged(path, error, MEND_SAMPLES) from None
    # A byte that is no UTF-8 becomes \xff, which is no JSON either.
    lines = content.decode("utf-8", errors="backslashreplace").split("\n")
    return parsed_lines(lines[:-1] if lines[-1] == "" else lines, str(path), unfinished=unfinished)


def parsed_lines(
    lines: Sequence[str], where: str, *, unfinished: bool, mend: str = MEND_SAMPLES
) -> list[dict[str, Any]]:
    """What the lines of the file `where` say; see `json_lines`. Raises StoreError: a line is damaged."""
    samples = []
    for number, line in enumerate(lines, 1):
        try:
            sample = json_samples(line)
            if not isinstance(sample, dict):
                raise DocumentError("it should be an object, as {...}")
        except DocumentError as error:
            if unfinished and number == len(lines):
                break
            raise StoreError(f"{where}, line {number} is damaged: {error.problem}; {mend}") from None
        samples.append(sample)
    return samples
