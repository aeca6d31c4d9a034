"""The only reader and writer of results.

    <folder>/
      study.yaml  environment.json  topology.yaml       written before the first step
      runs/<cell>/<repeat>/rank<r>.jsonl  run.json       raw samples of every rank; state and summary
      runs/<cell>/<repeat>/checkpoint-rank<r>.pt         while a training is under way, and .before.pt
      launches/<number>.log  <number>.json               what a launch's workers printed; where its time went
      summary.csv  report.html  figures/                 made from the above, at any time again
      transfers.csv  probed.yaml                         likewise, where there are transfer cells
      sheets/<aggregator>.json                           honesty sheets of `scaling verify NAME --into DIR`
      predictions.json                                   simulated before a launch that measures it

Every file is replaced in one piece (written beside, synced, renamed) or appended to by one process. Raw
samples are never edited; those of a run that was cut off move to `runs/<cell>/<repeat>/attempt-<n>/`. The
samples of a study that is kept may be compressed (`gzip runs/*/*/rank*.jsonl`): they are read as well.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any, Literal

import yaml

from scaling.errors import StoreError

SCHEMA_VERSION = 1

State = Literal["planned", "running", "done", "failed"]
MAX_DEATHS = 2
"""A run is tried again after a worker's death, and fails at this many."""


@dataclass
class RunRecord:
    """What run.json holds: one execution of a cell.

    Attributes:
        cell_id: hash of all that decides the result.
        repeat: 0, 1, ...: which of the study's repeats.
        cell: the cell's independent variables, by name.
        state: planned, running, done or failed.
        reason: why it failed, for people.
        deaths: how often a worker's death has cut it off.
        launch: launcher, host, job id, position in the launch, times.
        notes: warnings that belong beside the numbers.
        summary: per-run facts that are not samples (bytes per rank, counts, checksums).
    """

    cell_id: str
    repeat: int
    cell: dict[str, Any]
    state: State = "planned"
    reason: str | None = None
    deaths: int = 0
    launch: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


def now() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class ResultsFolder:
    """One study's results.

    Args:
        path: the folder; it is not made before something is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # -- the study, the environment, the topology ------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a study was written here."""
        return (self.path / "study.yaml").is_file()

    def holds_foreign_files(self) -> bool:
        """Whether there is anything that no study of ours writes before its study.yaml."""
        own = {"environment.json", "topology.yaml", "launches"}
        return self.path.is_dir() and any(
            item.name not in own and not item.name.startswith(".") for item in self.path.iterdir()
        )

    def require(self) -> ResultsFolder:
        """Itself, for callers that read.

        Raises:
            StoreError: there is no such folder, it holds no study, or it cannot be read.
        """
        if not self.path.is_dir():
            raise StoreError(f"no results folder {self.path}; `scaling run STUDY` makes results/<name>")
        if not os.access(self.path, os.R_OK | os.X_OK):
            raise StoreError(f"results folder {self.path} cannot be read; check its permissions")
        if not self.exists():
            raise StoreError(
                f"{self.path} is no results folder: it has no study.yaml; name one that `run` made"
            )
        return self

    def write_study(self, study: Mapping[str, Any]) -> None:
        """Writes the resolved study."""
        self._write("study.yaml", yaml.safe_dump(dict(study), sort_keys=False))

    def study(self) -> dict[str, Any]:
        """The resolved study, as written."""
        return self._read_mapping("study.yaml", yaml.safe_load)

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Writes where and with what the study is run."""
        self._write("environment.json", json.dumps(_finite(environment), indent=2) + "\n")

    def environment(self) -> dict[str, Any]:
        """What `write_environment` wrote."""
        return self._read_mapping("environment.json", json.loads)

    def write_topology(self, topology: Mapping[str, Any]) -> None:
        """Writes the machine's devices."""
        self._write("topology.yaml", yaml.safe_dump(dict(topology), sort_keys=False))

    def topology_text(self) -> str | None:
        """What `write_topology` wrote, as text; None where nothing was.

        Raises:
            StoreError: it cannot be read.
        """
        path = self.path / "topology.yaml"
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{path}: cannot be read: {error}") from error

    # -- runs ------------------------------------------------------------------------------------------------

    def plan_run(self, cell_id: str, repeat: int, cell: Mapping[str, Any]) -> None:
        """Records a run as planned, unless it is known already."""
        if not self._run_file(cell_id, repeat).exists():
            self.write_run(RunRecord(cell_id, repeat, dict(cell)))

    def write_run(self, record: RunRecord) -> None:
        """Replaces a run's record."""
        path = self._run_file(record.cell_id, record.repeat)
        self._write(str(path.relative_to(self.path)), json.dumps(_finite(asdict(record)), indent=1) + "\n")

    def run(self, cell_id: str, repeat: int) -> RunRecord:
        """One run's record.

        Raises:
            StoreError: it does not exist or is damaged.
        """
        return self._parse_run(self._run_file(cell_id, repeat))

    def runs(self) -> list[RunRecord]:
        """All runs, by cell and repeat."""
        files = [path for path in self.path.glob("runs/*/*/run.json") if path.parts[-2].isdecimal()]
        files.sort(key=lambda path: (path.parts[-3], int(path.parts[-2])))
        return [self._parse_run(path) for path in files]

    def start_run(self, record: RunRecord, launch: Mapping[str, Any]) -> None:
        """Marks a run as running; samples of an earlier attempt that was cut off are moved aside."""
        folder = self._run_file(record.cell_id, record.repeat).parent
        left_over = sorted(folder.glob("rank*.jsonl"))
        if left_over:
            attempt = next(path for n in count(1) if not (path := folder / f"attempt-{n}").exists())
            with _writing(attempt):
                attempt.mkdir()
                for path in left_over:
                    path.rename(attempt / path.name)
        record.state, record.reason, record.notes, record.summary = "running", None, [], {}
        record.launch = {**launch, "started_at": now()}
        self.write_run(record)

    def finish_run(self, record: RunRecord, summary: Mapping[str, Any], notes: Iterable[str] = ()) -> None:
        """Marks a run as done."""
        record.state, record.summary, record.notes = "done", dict(summary), list(notes)
        record.launch["finished_at"] = now()
        self.write_run(record)

    def fail_run(self, record: RunRecord, reason: str) -> None:
        """Marks a run as failed, with its reason."""
        record.state, record.reason = "failed", reason
        record.launch["finished_at"] = now()
        self.write_run(record)

    def reset_run(self, record: RunRecord, *, died: str | None = None) -> None:
        """Puts a run back to planned, or fails it where `died` says how a worker died once too often."""
        if died is not None:
            record.deaths += 1
            if record.deaths >= MAX_DEATHS:
                self.fail_run(record, f"a worker died {record.deaths} times, last: {died}")
                return
        record.state = "planned"
        self.write_run(record)

    # -- samples ---------------------------------------------------------------------------------------------

    def sample_writer(
        self, cell_id: str, repeat: int, rank: int
    ) -> Callable[[Iterable[Mapping[str, Any]]], None]:
        """A function that appends one rank's samples as JSON lines; NaN and infinity become null."""
        path = self._run_file(cell_id, repeat).parent / f"rank{rank}.jsonl"

        def append(rows: Iterable[Mapping[str, Any]]) -> None:
            with _writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows)

        return append

    def samples(self, cell_id: str, repeat: int) -> list[list[dict[str, Any]]]:
        """The samples of a finished run: [rank][line].

        Raises:
            StoreError: a file is missing or damaged.
        """
        folder = self._run_file(cell_id, repeat).parent
        files = sorted([*folder.glob("rank*.jsonl"), *folder.glob("rank*.jsonl.gz")], key=_rank_of)
        ranks = [_rank_of(path) for path in files]
        if ranks != list(range(len(ranks))):
            raise StoreError(f"{folder}: samples of ranks {ranks} are there; some are missing")
        return [list(_json_lines(path)) for path in files]

    # -- checkpoints -----------------------------------------------------------------------------------------

    def checkpoints(self, cell_id: str, repeat: int, rank: int) -> CheckpointFiles:
        """Those of one rank of a run that is under way."""
        return CheckpointFiles(self, f"runs/{cell_id}/{repeat}/checkpoint-rank{rank}")

    def remove_checkpoints(self, cell_id: str, repeat: int) -> None:
        """Removes those of all ranks, and what was being written when one was cut off."""
        folder = self._run_file(cell_id, repeat).parent
        for pattern in ("checkpoint-rank*.pt", ".checkpoint-rank*"):
            for path in folder.glob(pattern):
                with _writing(path):
                    path.unlink(missing_ok=True)

    # -- what is made from them ------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> Path:
        """Writes summary.csv, report.html and the like; returns the path."""
        return self._write(name, text)

    def figure_path(self, name: str) -> Path:
        """Where a figure goes; its folder is made."""
        path = self.path / "figures" / name
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def next_log_path(self) -> Path:
        """A new file for what the workers of a launch print."""
        return self.path / "launches" / f"{self._free_launch_number('.log'):03d}.log"

    # -- launches --------------------------------------------------------------------------------------------

    def launches(self) -> Path:
        """The folder of what launches leave behind, which is made: libraries may write there too."""
        folder = self.path / "launches"
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_launch_times(self, times: Mapping[str, Any], number: int | None = None) -> Path:
        """Writes where a launch's wall time went, in seconds; returns the path.

        Args:
            times: world_size, repeat, settings, start_up_s, total_s, and cells: a list of cell_id, setup_s,
                warmup_s, unsplit_s, split_s, other_s.
            number: that of the launch's log; None: the next one that is free.
        """
        if number is None:
            number = self._free_launch_number(".json")
        text = json.dumps(_finite(times), indent=1) + "\n"
        return self._write(f"launches/{number:03d}.json", text)

    def write_predictions(self, predictions: Iterable[Mapping[str, Any]]) -> Path:
        """Writes what was simulated before it was measured, a mapping a cell; returns the path."""
        rows = [_finite(dict(one)) for one in predictions]
        content = {"schema_version": SCHEMA_VERSION, "simulated": True, "predictions": rows}
        return self._write("predictions.json", json.dumps(content, indent=1) + "\n")

    def predictions(self) -> list[dict[str, Any]]:
        """What `write_predictions` wrote; nothing where it never did.

        Raises:
            StoreError: the file is damaged.
        """
        if not (self.path / "predictions.json").is_file():
            return []
        found = self._read_mapping("predictions.json", json.loads).get("predictions")
        if not isinstance(found, list):
            raise StoreError(f"{self.path / 'predictions.json'} is damaged: it has no list of predictions")
        return found

    def write_sheet(self, name: str, sheet: Mapping[str, Any]) -> Path:
        """Writes a lossy aggregator's honesty sheet (`scaling verify NAME --into DIR`); returns the path."""
        return self._write(f"sheets/{name}.json", json.dumps(_finite(sheet), indent=1) + "\n")

    def sheets(self) -> dict[str, dict[str, Any]]:
        """What `write_sheet` wrote, by the aggregator's name.

        Raises:
            StoreError: a file is damaged.
        """
        files = sorted(self.path.glob("sheets/*.json"))
        return {path.stem: self._read_mapping(f"sheets/{path.name}", json.loads) for path in files}

    def launch_times(self) -> list[dict[str, Any]]:
        """What `write_launch_times` wrote of every launch, by number.

        Raises:
            StoreError: a file is damaged.
        """
        files = [path for path in self.path.glob("launches/*.json") if path.stem.isdecimal()]
        files.sort(key=lambda path: int(path.stem))
        return [self._read_mapping(f"launches/{path.name}", json.loads) for path in files]

    def _free_launch_number(self, suffix: str) -> int:
        """A number that is taken with it: launches of several world sizes may work at the same time."""
        folder, number = self.path / "launches", 1
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    (folder / f"{number:03d}{suffix}").touch(exist_ok=False)
                except FileExistsError:
                    number += 1
                else:
                    return number

    @contextmanager
    def lock(self, part: str = "", *, shared: bool = False, wait: bool = False) -> Iterator[None]:
        """Keeps others away from the folder.

        `scaling run` holds it alone; launches started by hand share it, and each holds its world size's part.

        Args:
            part: what of the folder, as a suffix; "" is the whole.
            shared: with others that share it.
            wait: until it is free.

        Raises:
            StoreError: somebody else holds it.
        """
        path = self.path / f".lock{part}"
        with _writing(path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            try:
                kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another `scaling run` or launch works in {self.path}; wait for it, or use another --out"
                ) from None
            except OSError:
                pass  # a file system without locks: nothing to hold
            yield

    def _run_file(self, cell_id: str, repeat: int) -> Path:
        return self.path / "runs" / cell_id / str(repeat) / "run.json"

    def _parse_run(self, path: Path) -> RunRecord:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            version = values.get("schema_version")
            if version != SCHEMA_VERSION:
                raise StoreError(f"{path}: schema version {version}; this program reads {SCHEMA_VERSION}")
            return RunRecord(**values)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, AttributeError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"{path} is damaged ({error}); delete its folder to run this cell again"
            ) from error

    def _read_mapping(self, name: str, parse: Any) -> dict[str, Any]:
        path = self.path / name
        try:
            value = parse(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, yaml.YAMLError) as error:
            raise StoreError(f"{path} is damaged: {error}") from error
        if not isinstance(value, dict):
            raise StoreError(f"{path} is damaged: it should be a mapping")
        return value

    def _write(self, name: str, text: str) -> Path:
        return self._write_bytes(name, text.encode())

    def _write_bytes(self, name: str, content: bytes) -> Path:
        path = self.path / name
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        return path


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints of one rank in one run: the last one, and the one before.

    A rank may be cut off when it has written and another has not: the one before is what both have.

    Attributes:
        folder: of the study.
        stem: of the files' names, from there.
    """

    folder: ResultsFolder
    stem: str

    @property
    def _last(self) -> Path:
        return self.folder.path / f"{self.stem}.pt"

    @property
    def _before(self) -> Path:
        return self.folder.path / f"{self.stem}.before.pt"

    def read(self) -> list[bytes]:
        """Those that there are, the last one first.

        Raises:
            StoreError: one cannot be read.
        """
        contents = []
        for path in (self._last, self._before):
            try:
                contents.append(path.read_bytes())
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        return contents

    def write(self, content: bytes) -> None:
        """A new one; of those before, the last is kept."""
        if self._last.exists():
            with _writing(self._before):
                os.replace(self._last, self._before)
        self.folder._write_bytes(self._last.relative_to(self.folder.path).as_posix(), content)

    def clear(self) -> None:
        """Removes them."""
        for path in (self._last, self._before):
            with _writing(path):
                path.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}; choose another --out") from error


def _finite(value: Any) -> Any:
    """`value` without NaN and infinities, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _rank_of(samples: Path) -> int:
    return int(samples.name.split(".")[0].removeprefix("rank"))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        # A byte that is no UTF-8 becomes \xff, which is no JSON either.
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", errors="backslashreplace") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise StoreError(f"{path}, line {number} is damaged: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{path}: cannot be read: {reason}") from error
