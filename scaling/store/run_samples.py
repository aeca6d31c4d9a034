"""The files of one run besides its record: samples of each rank, in files or the archive, and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import NotRequired, TypedDict

from scaling.axes import LARGEST_WORLD
from scaling.errors import StoreError
from scaling.files.documents import DocumentError, read_bytes
from scaling.files.redaction import redacted
from scaling.store.archive import Archive
from scaling.store.files import (
    MEND_SAMPLES,
    append_whole,
    json_lines,
    rank_of,
    sample_files,
    storable,
    write_whole,
    writing,
)
from scaling.store.schemas import Count, Finite, OpenModel, Scalar, Seconds, Size, explain, optional, required

MAX_TEXT = 4096  # bytes of an error or a note that a record and a table keep


def shortened(text: str) -> str:
    """A text for a record: a model's error may be of megabytes, and goes into tables and pages."""
    text = redacted(text)
    content = text.encode(errors="surrogatepass")
    if len(content) <= MAX_TEXT:
        return text
    pointer = " [%d more characters are in the log: launches/*.log]"
    kept = content[: MAX_TEXT - len(pointer % len(text))].decode(errors="ignore")
    return kept + pointer % (len(text) - len(kept))


Appender = Callable[[Iterable[Mapping[str, Any]]], None]


def appender(path: Path, line: Any = None) -> Appender:
    """A function that appends samples to a file; NaN and infinity become null. `line`: what is checked."""

    def append(rows: Iterable[Mapping[str, Any]]) -> None:
        values = [storable(row) for row in rows]
        if line is not None:
            validate_lines(line, values, f"what was to be written to {path}")
        append_whole(path, "".join(json.dumps(one, allow_nan=False) + "\n" for one in values).encode())

    return append


def move_aside(folder: Path) -> None:
    """Samples of an attempt that was cut off go to a folder of their own, attempt-1, attempt-2, ..."""
    files = sample_files(folder)
    if not files:
        return
    attempt = next(path for n in count(1) if not (path := folder / f"attempt-{n}").exists())
    with writing(attempt):
        attempt.mkdir()
        for path in files:
            path.rename(attempt / path.name)


def read_samples(
    folder: Path, archive: Archive | None, cell_id: str, repeat: int, *, unfinished: bool
) -> list[list[dict[str, Any]]]:
    """[rank][line], of the run's folder or of the archive. Raises StoreError: one is missing or damaged."""
    files = sample_files(folder)
    archived = archive.ranks(cell_id, repeat) if archive else []
    ranks = [file.rank for file in archived] if archive else [rank_of(path) for path in files]
    if ranks != list(range(len(ranks))):
        raise StoreError(
            f"{folder}: samples of ranks {ranks!s:.60} are there; some are missing; {MEND_SAMPLES}"
        )
    if archive:
        return [archive.samples(file, unfinished=unfinished) for file in archived]
    return [json_lines(path, unfinished=unfinished) for path in files]


Rank = Annotated[int, Field(ge=0, lt=LARGEST_WORLD)]
Loss = Finite | None  # None where it was not finite, which JSON does not know

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None


class _Line(TypedDict):
    """Of many lines, as typed dictionaries are checked five times as fast as models."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]


Span = Annotated[tuple[str, str, Seconds, Seconds], Field(strict=False)]  # phase, lane, start, stop (s)


_PHASES = (
    *("input", "h2d", "forward", "backward", "encode", "d2h", "communicate", "reduce", "decode", "clip"),
    *("update", "h2d_result", "wait"),
)
_PhaseTimes: Any = TypedDict("_PhaseTimes", {f"{name}_s": NotRequired[Seconds] for name in _PHASES})  # type: ignore[misc]


class IterationLine(_Line, _PhaseTimes):
    """A step of a timed cell, or several as one: `steps`; older folders have `<phase>_s`, not `spans`."""

    iteration: Count
    warmup: bool
    step_s: Seconds
    steps: NotRequired[Size]
    profiled: NotRequired[bool]
    start_s: NotRequired[Seconds | None]
    spans: NotRequired[list[Span]]
    behind_s: NotRequired[dict[str, Finite] | None]


class NoiseSquares(_Line):
    """Squared norms of gradients of two batch sizes in some steps (`scaling.training.noise_probe`)."""

    small_batch: Size
    big_batch: Size
    steps: list[Count]
    small: list[Finite]
    big: list[Finite]


class ConvergenceLine(_Line):
    """An epoch of a training; what is the same on all ranks is in the lines of rank 0 alone."""

    epoch: Count
    train_s: Seconds
    train_j: NotRequired[Seconds | None]
    bytes_sent: NotRequired[Count]
    samples: NotRequired[Count]
    learning_rate: NotRequired[Finite]
    step_losses: NotRequired[list[Loss]]
    train_loss: NotRequired[Loss]
    test_loss: NotRequired[Loss]
    train_accuracy: NotRequired[Share]
    test_accuracy: NotRequired[Share]
    noise: NotRequired[NoiseSquares]
    preconditioned_noise: NotRequired[NoiseSquares]


class TransferSampleModel(BaseModel):
    """`scaling.measure.probe.cases.Sample`, after JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    launch: str
    operation: Annotated[str, Field(min_length=1)]
    ranks: Annotated[list[Rank], Field(min_length=1)]
    memory: str
    captured: bool
    num_threads: Size | None
    num_bytes: Annotated[int, Field(ge=1, lt=2**62)]
    repeats: Annotated[int, Field(ge=1, lt=2**62)]
    seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _RankFactsModel(OpenModel):
    name: str | None = None
    uuid: str | None = None
    peers: list[Rank] = []


_DetectedModel = required(
    (str, "name description"), (dict[str, Any], "device_types link_types"), (list[Any], "devices links")
)
_FoundModel = required(
    (str, "device torch date"),
    (Annotated[list[_RankFactsModel], Field(min_length=1)], "ranks"),
    (_DetectedModel, "detected"),
    (list[str], "gpu_ids missing"),
)
TransferFactsModel = optional((str, "nccl mpi"), base=_FoundModel)  # what the workers of a probe found
TransferLineModel = optional((TransferSampleModel, "sample"), (TransferFactsModel, "facts"))


class DeviceLineModel(OpenModel):
    """A line of an experiment's: a sample of a phase, or a fact with a value or a point of a curve."""

    phase: str | None = None
    seconds: Seconds | None = None
    fact: str | None = None
    value: Scalar | list[Any] | dict[str, Any] = None
    x: Scalar | list[Scalar] = None
    y: Scalar | list[Scalar] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> DeviceLineModel:
        if self.fact is None and (self.phase is None or self.seconds is None):
            raise ValueError("is neither a sample nor a fact")
        return self


TRAINED_LINES = {"iteration": IterationLine, "attached": IterationLine, "convergence": ConvergenceLine}
"""Kind of cells that train -> a line of its samples."""

LINES: dict[str, Any] = {**TRAINED_LINES, "transfer": TransferLineModel, "device": DeviceLineModel}
"""The same of all built-in kinds."""


@cache
def _lines_of(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(list[model])


def validate_lines(model: Any, lines: Sequence[Mapping[str, Any]], where: str) -> None:
    """Checks a rank's samples. Raises StoreError: naming the first line that is wrong, and its key."""
    try:
        _lines_of(model).validate_python(lines)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        number, *path = first["loc"]
        problem = explain({**first, "loc": tuple(path)}, None)
        raise StoreError(f"{where}, line {int(number) + 1} is damaged: {problem}; {MEND_SAMPLES}") from None


@dataclass(frozen=True)
class CheckpointFiles:
    """The last two checkpoints of a rank: cut off in between, another has the one before alone."""

    folder: Path
    stem: str

    @property
    def _last(self) -> Path:
        return self.folder / f"{self.stem}.pt"

    @property
    def _before(self) -> Path:
        return self.folder / f"{self.stem}.before.pt"

    def read(self) -> list[tuple[Path, bytes | None]]:
        """The files that there are, the last first, with their contents; None where one cannot be read."""
        contents: list[tuple[Path, bytes | None]] = []
        for path in (self._last, self._before):
            try:
                contents.append((path, read_bytes(path)))
            except FileNotFoundError:
                continue
            except DocumentError:
                contents.append((path, None))
        return contents

    def write(self, content: bytes) -> None:
        """A new one; of those before, the last is kept."""
        if self._last.is_file():
            with writing(self._before):
                _make_room(self._before)
                os.replace(self._last, self._before)
        with writing(self._last):
            _make_room(self._last)
        write_whole(self._last, content)

    def clear(self) -> None:
        for path in (self._last, self._before):
            with writing(path):
                _make_room(path)
                path.unlink(missing_ok=True)


def _make_room(path: Path) -> None:
    """Removes a folder that stands in a file's place, which no file replaces."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
