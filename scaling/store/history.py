"""The campaigns of one machine, one after the other: a folder of results folders and history.jsonl.

    <folder>/
      history.jsonl   one line a campaign: its name, when it began, its times, a digest of its raw samples
      0001/ 0002/     ordinary results folders
      accepted.json   the campaign from which the machine is taken as it is now

Lines are only added. What does not fit (a missing folder, samples that changed, another order) is refused by
name: a watch that left something out would be calm about what it did not see.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from scaling.errors import StoreError
from scaling.files.documents import from_json
from scaling.store.archive import Archive, opened
from scaling.store.archiving import content_of, file_content
from scaling.store.files import (
    append_whole,
    as_json,
    parsed_lines,
    read_document,
    sample_files,
    text_of,
    write_whole,
)
from scaling.store.folder import ResultsFolder
from scaling.store.schemas import validate

LINES, ACCEPTED = "history.jsonl", "accepted.json"
MEND = "put it back from a copy, or begin a new history in another folder"


@dataclass(frozen=True)
class Campaign:
    """One campaign.

    Attributes:
        name: of its folder.
        started: when, UTC, ISO 8601.
        seconds: stream (a cell, or a link) -> its time in seconds, the launches' geometric mean.
        hosts: on which it ran.
        commit: of the repository in the folder where the command ran; None: of none.
        digest: of its raw samples.
    """

    name: str
    started: str
    seconds: Mapping[str, float]
    hosts: tuple[str, ...]
    commit: str | None
    digest: str


class _CampaignModel(BaseModel):
    """A line of history.jsonl."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^\d{4,}$")]
    started: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT")]
    seconds: Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]
    hosts: list[str]
    commit: str | None
    digest: str


class _AcceptedModel(BaseModel):
    """What accepted.json holds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    begins: str


class HistoryFolder:
    """The folder of a machine's campaigns.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def campaigns(self) -> list[Campaign]:
        """All of them, in their order; [] where there is none yet.

        Raises:
            StoreError: a line is damaged or out of order, a folder lacks, or its samples changed.
        """
        lines = self.path / LINES
        if not lines.exists():
            return []
        campaigns: list[Campaign] = []
        text = text_of(lines, MEND).splitlines()
        for number, values in enumerate(parsed_lines(text, str(lines), unfinished=False), start=1):
            validate(_CampaignModel, values, f"{lines}, line {number}", MEND)
            campaigns.append(Campaign(**{**values, "hosts": tuple(values["hosts"])}))
        for before, after in pairwise(campaigns):
            if not (before.name < after.name and before.started <= after.started):
                raise StoreError(
                    f"{lines}: {after.name} of {after.started} stands behind {before.name} of "
                    f"{before.started}; {MEND}"
                )
        for campaign in campaigns:
            self._require_unchanged(campaign)
        return campaigns

    def _require_unchanged(self, campaign: Campaign) -> None:
        folder = self.folder(campaign.name)
        if not folder.exists():
            raise StoreError(f"{folder.path} is listed in {self.path / LINES}, but is not there; {MEND}")
        if samples_digest(folder) != campaign.digest:
            raise StoreError(f"{folder.path}: the raw samples are not those that were measured; {MEND}")

    def folder(self, name: str) -> ResultsFolder:
        """The results of a campaign."""
        return ResultsFolder(self.path / name)

    def next_name(self, campaigns: list[Campaign]) -> str:
        """Of the campaign that is measured next, or goes on if it was interrupted."""
        return f"{int(campaigns[-1].name) + 1 if campaigns else 1:04d}"

    def add(self, campaign: Campaign) -> None:
        """Adds its line."""
        content = json.dumps({**asdict(campaign), "hosts": list(campaign.hosts)}).encode()
        append_whole(self.path / LINES, content + b"\n")

    def accepted(self) -> str | None:
        """The first campaign of the machine as it is now; None: all are."""
        path = self.path / ACCEPTED
        if not path.exists():
            return None
        begins = read_document(path, from_json, _AcceptedModel, "delete it: then all campaigns count")[
            "begins"
        ]
        return str(begins)

    def accept(self, name: str) -> None:
        """From that campaign on the machine is taken as it is."""
        write_whole(self.path / ACCEPTED, as_json({"begins": name}))


def samples_digest(folder: ResultsFolder) -> str:
    """Of all raw samples of a results folder, archived or not, with their cells and repeats."""
    digest, archive = hashlib.sha256(), opened(folder.path, None)
    for record in folder.runs():
        for name, content in _samples(folder, archive, record.cell_id, record.repeat):
            digest.update(f"{record.cell_id}/{record.repeat}/{name}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _samples(
    folder: ResultsFolder, archive: Archive | None, cell_id: str, repeat: int
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a run's files of samples, by rank."""
    if archive is None:
        for path in sample_files(folder.path / "runs" / cell_id / str(repeat)):
            yield path.name.removesuffix(".gz"), content_of(path)
        return
    for file in sorted(archive.files):
        if (file.cell_id, file.repeat, file.attempt) == (cell_id, repeat, 0):
            yield f"rank{file.rank}.jsonl", file_content(archive, file)
