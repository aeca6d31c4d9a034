"""A folder of results, read and written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from scaling.errors import DiskFullError, StoreError
from scaling.files.documents import from_json, from_yaml
from scaling.files.redaction import redacted_document
from scaling.files.texts import is_clean
from scaling.store import archiving, contents
from scaling.store.archive import Archive, is_archived, opened, runs_file
from scaling.store.code_changes import CODE_CHANGES
from scaling.store.failures import FAILURE_KIND
from scaling.store.files import (
    as_json,
    inside,
    read_document,
    run_folders,
    same_folder,
    sample_files,
    storable,
    take_number,
    text_of,
    write_checked,
    write_whole,
    writing,
)
from scaling.store.locks import is_held, locked
from scaling.store.records import (
    MAX_DEATHS,
    SCHEMA_VERSION,
    RunRecord,
    now,
    planned_in_place,
    read_run,
    record_from,
)
from scaling.store.run_samples import (
    LINES,
    Appender,
    CheckpointFiles,
    appender,
    move_aside,
    read_samples,
    shortened,
)
from scaling.store.schemas import RunModel, validate
from scaling.store.upgrades import upgraded_launch_times, upgraded_lines, upgraded_prediction, with_new_keys

ROOM_BYTES = 65_536  # more than a run's record takes


class ResultsFolder:
    """One study's results. `path`: the folder; it is not made before something is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._opened: Archive | None = None
        self._identity: tuple[int, int] | None = None

    # -- the study, the environment, the topology ------------------------------------------------------------
    def exists(self) -> bool:
        return (self.path / "study.yaml").is_file()

    def holds_foreign_files(self) -> bool:
        """Whether there is anything that no study of ours writes before its study.yaml."""
        reserved = {"environment.json", "topology.yaml", "launches"}
        return self.path.is_dir() and any(
            item.name not in reserved and not item.name.startswith(".") for item in self.path.iterdir()
        )

    def require(self) -> ResultsFolder:
        """Itself, for callers that read. Raises StoreError: it is no results folder, or cannot be read."""
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
        self.write_text("study.yaml", yaml.safe_dump(redacted_document(study), sort_keys=False))

    def study(self) -> dict[str, Any]:
        mend = f"`scaling run STUDY --out {self.path}` with the study that was measured writes it again"
        study = read_document(self.path / "study.yaml", from_yaml, contents.StudyModel, mend)
        return {**study, **({"parts": list(map(with_new_keys, study["parts"]))} if "parts" in study else {})}

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        self.write_text(
            "environment.json", json.dumps(redacted_document(storable(environment)), indent=2) + "\n"
        )

    def environment(self) -> dict[str, Any]:
        mend = (
            "restore it, or delete it: reports do without it, but nothing more can be measured in the folder"
        )
        return read_document(self.path / "environment.json", from_json, contents.EnvironmentModel, mend)

    def write_topology(self, topology: Mapping[str, Any]) -> None:
        self.write_text("topology.yaml", yaml.safe_dump(dict(topology), sort_keys=False))

    def topology_text(self) -> str | None:
        """What `write_topology` wrote, as text; None where nothing was; raises as the others do."""
        path = self.path / "topology.yaml"
        return text_of(path, "restore it, or delete it: reports do without it") if path.exists() else None

    # -- runs ------------------------------------------------------------------------------------------------
    def plan_run(self, cell_id: str, repeat: int, cell: Mapping[str, Any]) -> None:
        if not self._has_run(cell_id, repeat):
            self.write_run(RunRecord(cell_id, repeat, dict(cell)))

    def write_run(self, record: RunRecord) -> None:
        """Replaces a run's record; on a full disk a running one is planned again, in its place."""
        path = self._run_file_to_write(record.cell_id, record.repeat)
        try:
            write_checked(path, RunModel, asdict(record))
        except DiskFullError:
            if not (planned_in_place(path, record.deaths) and record.state == "planned"):
                raise

    def run(self, cell_id: str, repeat: int) -> RunRecord:
        """One run's record. Raises StoreError: it does not exist or is damaged."""
        archive = self._archive()
        if archive is None:
            return read_run(self._run_file(cell_id, repeat))
        if not self._has_run(cell_id, repeat):
            raise StoreError(f"{runs_file(self.path)} has no run {repeat} of cell {cell_id}")
        return record_from(archive.records[cell_id, repeat])

    def runs(self) -> list[RunRecord]:
        """All runs, by cell and repeat. Raises StoreError: one is damaged, or both archived and not."""
        archive = self._archive()
        if archive is not None:
            if next(archiving.plain_files(self.path), None) is not None:
                raise StoreError(
                    f"{self.path} has files of runs and an archive of them; `scaling export {self.path} "
                    "--archive` removes the files that the archive holds too"
                )
            return [record_from(values) for values in archive.records.values()]
        files = (path / "run.json" for path in run_folders(self.path))
        return [read_run(path) for path in files if os.path.lexists(path)]

    def without_record(self) -> list[tuple[str, int]]:
        """Cell id and repeat of the runs that have samples, but no run.json."""
        lost = (path for path in run_folders(self.path) if not os.path.lexists(path / "run.json"))
        return [(path.parts[-2], int(path.name)) for path in lost if sample_files(path)]

    def start_run(self, record: RunRecord, launch: Mapping[str, Any]) -> None:
        """Marks a run as running; samples of an earlier attempt that was cut off are moved aside."""
        move_aside(self._run_file_to_write(record.cell_id, record.repeat).parent)
        record.state, record.reason, record.notes, record.summary = "running", None, [], {}
        record.launch = {**launch, "started_at": now(), "code_changes": len(CODE_CHANGES)}
        self.write_run(record)

    def finish_run(self, record: RunRecord, summary: Mapping[str, Any], notes: Iterable[str] = ()) -> None:
        """Marks a run as done; as failed where its facts could not be read again."""
        record.state, record.summary = "done", dict(summary)
        record.notes = [shortened(note) for note in notes]
        record.launch["finished_at"] = now()
        try:
            values = json.loads(as_json(asdict(record)))
            validate(RunModel, values, "what was to be recorded", "please report this")
        except StoreError as error:
            self.fail_run(record, str(error))
        else:
            self.write_run(record)

    def fail_run(self, record: RunRecord, reason: str, kind: str | None = None) -> None:
        """Marks a run as failed, with its reason for people and, where it is known, its kind."""
        record.state, record.reason = "failed", shortened(reason)
        record.summary = {} if kind is None else {FAILURE_KIND: kind}
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
    def sample_writer(self, cell_id: str, repeat: int, rank: int, kind: str | None = None) -> Appender:
        """Appends a rank's samples as JSON lines to a started run, if they can be read as that kind's."""
        path = self._run_file_to_write(cell_id, repeat).parent / f"rank{rank}.jsonl"
        return appender(path, LINES.get(kind or ""))

    def samples(self, cell_id: str, repeat: int, *, unfinished: bool = False) -> list[list[dict[str, Any]]]:
        """[rank][line] of a run; `unfinished`: without a last line in part. Raises StoreError: damaged."""
        folder = self._run_file(cell_id, repeat).parent
        ranks = read_samples(folder, self._archive(), cell_id, repeat, unfinished=unfinished)
        return [upgraded_lines(lines) for lines in ranks]

    # -- the archived form -----------------------------------------------------------------------------------
    def archive(self, *, unfinished: bool = False) -> None:
        """Archives all runs; `unfinished`: planned ones too. StoreError: it is in use, or not finished."""
        with self.require().lock():
            runs = [] if unfinished or is_archived(self.path) else self.runs()
            states = Counter(run.state for run in runs if run.state in ("planned", "running"))
            if states:
                counts = ", ".join(f"{number} {state}" for state, number in states.items())
                raise StoreError(
                    f"{self.path} is not finished: runs are {counts}; finish it with `scaling run`, or "
                    "archive it as it is with --unfinished (failed runs are archived in any case)"
                )
            archiving.write_archive(self.path)

    def unarchive(self) -> None:
        """Gives every run its own files again. Raises StoreError: somebody works in the folder, say."""
        with self.require().lock():
            archiving.write_plain(self.path)

    def is_archived(self) -> bool:
        return is_archived(self.path)

    def refuse_archived(self) -> None:
        """Raises a StoreError where the folder is archived: for callers that are about to write runs."""
        if is_archived(self.path):
            raise StoreError(
                f"{self.path} is archived: no run can be added or changed; `scaling export {self.path} "
                "--unarchive` gives its runs their own files again"
            )

    def _archive(self) -> Archive | None:
        self._opened = opened(self.path, self._opened)
        return self._opened

    # -- checkpoints -----------------------------------------------------------------------------------------
    def checkpoints(self, cell_id: str, repeat: int, rank: int) -> CheckpointFiles:
        return CheckpointFiles(self._inside_run(cell_id, repeat), f"checkpoint-rank{rank}")

    def remove_checkpoints(self, cell_id: str, repeat: int) -> None:
        """Removes those of all ranks, and what was being written when one was cut off."""
        folder = self._inside_run(cell_id, repeat)
        for pattern in ("checkpoint-rank*.pt", ".checkpoint-rank*"):
            for path in folder.glob(pattern):
                with writing(path):
                    path.unlink(missing_ok=True)

    # -- what is made from them ------------------------------------------------------------------------------
    def require_room(self) -> None:
        """Raises a DiskFullError where no record of a run could be written."""
        path = self._inside(f".room-{os.getpid()}")
        write_whole(path, bytes(ROOM_BYTES))
        with writing(path):
            path.unlink()

    def write_text(self, name: str, text: str) -> Path:
        """Writes summary.csv, report.html and the like; returns the path."""
        return write_whole(self._inside(name), text.encode())

    def write_figure(self, name: str, content: bytes) -> Path:
        return write_whole(self._inside(f"figures/{name}"), content)

    def next_log_path(self) -> Path:
        """A new file for what the workers of a launch print."""
        return self.launches() / f"{take_number(self.launches(), '.log'):03d}.log"

    def launches(self) -> Path:
        """The folder of what launches leave behind, which is made: libraries may write there too."""
        with writing(folder := self._inside("launches/log").parent):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_launch_times(self, times: Mapping[str, Any], number: int | None = None) -> Path:
        """Writes where a launch's seconds went; returns the path. `number`: its log's (None: the next)."""
        if number is None:
            number = take_number(self.launches(), ".json")
        return write_checked(self._inside(f"launches/{number:03d}.json"), contents.LaunchTimesModel, times)

    def write_predictions(self, predictions: Iterable[Mapping[str, Any]]) -> Path:
        """Writes what was simulated before it was measured, a mapping a cell; returns the path."""
        rows = list(map(dict, predictions))
        content = {"schema_version": SCHEMA_VERSION, "simulated": True, "predictions": rows}
        return write_checked(self._inside("predictions.json"), contents.PredictionsModel, content)

    def predictions(self) -> list[dict[str, Any]]:
        """What `write_predictions` wrote; nothing where it never did; raises as the others do."""
        path = self.path / "predictions.json"
        if not path.exists():
            return []
        mend = "delete it: it is what was predicted before the measurement, which stays as it is"
        rows = read_document(path, from_json, contents.PredictionsModel, mend)["predictions"]
        return [upgraded_prediction(row) for row in rows]

    def write_sheet(self, name: str, sheet: Mapping[str, Any]) -> Path:
        """Writes a lossy aggregator's fidelity sheet (`scaling verify --save-to`); returns the path."""
        return write_checked(self._inside(f"sheets/{name}.json"), contents.SheetModel, sheet)

    def sheets(self) -> dict[str, dict[str, Any]]:
        """What `write_sheet` wrote, by the aggregator's name. Raises StoreError: a file is damaged."""
        sheets = {}
        for path in sorted(self.path.glob("sheets/*.json")):
            if not is_clean(path.stem):
                raise StoreError(f"{path.parent}: {path.name!r} has control characters; rename it")
            mend = f"`scaling verify {path.stem} --save-to {self.path}` writes it again"
            sheets[path.stem] = read_document(path, from_json, contents.SheetModel, mend)
        return sheets

    def launch_times(self, prefix: str = "") -> list[dict[str, Any]]:
        """What `write_launch_times` wrote, by number; with "command-" what commands wrote."""
        found = self.path.glob(f"launches/{prefix}*.json")
        numbered = {path.stem.removeprefix(prefix): path for path in found}
        files = [numbered[number] for number in sorted(filter(str.isdecimal, numbered), key=int)]
        mend, model = "delete it: it says where wall time went, and no more", contents.LaunchTimesModel
        return [upgraded_launch_times(read_document(path, from_json, model, mend)) for path in files]

    def lock(
        self, part: str = "", *, shared: bool = False, wait: bool = False
    ) -> AbstractContextManager[None]:
        """Keeps others away from the folder, or a part of it, as a suffix; launches by hand share the whole,
        and hold their world size's. `shared`, `wait`, StoreError: see `locked`."""
        refusal = f"another `scaling run` or launch works in {self.path}; wait for it, or use another --out"
        return locked(self._inside(f".lock{part}"), refusal, shared=shared, wait=wait)

    def is_locked(self, part: str = "") -> bool:
        """Whether somebody on this host holds `part` alone, as `lock` names it."""
        return is_held(self.path / f".lock{part}")

    def _run_file(self, cell_id: str, repeat: int) -> Path:
        return self.path / "runs" / cell_id / str(repeat) / "run.json"

    def _run_file_to_write(self, cell_id: str, repeat: int) -> Path:
        self.refuse_archived()
        return self._inside_run(cell_id, repeat) / "run.json"

    def _inside_run(self, cell_id: str, repeat: int) -> Path:
        return self._inside(f"runs/{cell_id}/{repeat}/run.json").parent

    def _inside(self, name: str) -> Path:
        self._identity = same_folder(self.path, self._identity)
        return inside(self.path, name)

    def _has_run(self, cell_id: str, repeat: int) -> bool:
        if archive := self._archive():
            return (cell_id, repeat) in archive.records
        return self._run_file(cell_id, repeat).exists()


class Snapshot(ResultsFolder):
    """Shows the runs as they were when they were first asked for; nobody may change what it gives."""

    @classmethod
    def of(cls, folder: ResultsFolder) -> Snapshot:
        """Of a folder; itself where it is one."""
        return folder if isinstance(folder, cls) else cls(folder.path)

    @cached_property
    def _runs(self) -> list[RunRecord]:
        return super().runs()

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return super().environment()

    def runs(self) -> list[RunRecord]:
        return list(self._runs)

    def environment(self) -> dict[str, Any]:
        return self._environment
