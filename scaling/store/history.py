"""The campaigns of one machine, one after the other: a folder of results folders and history.jsonl.

    <folder>/
      history.jsonl   one line a campaign: its name, start and times, a digest of these and its samples
      0001/ 0002/     ordinary results folders
      accepted        the name of the campaign from which the machine is taken as it is now

Lines are only added. What does not fit (a missing campaign, times or samples that changed, another order) is
refused by name: a watch that left something out would be calm about what it did not see.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from scaling.errors import StoreError
from scaling.store.archive import Archive, opened
from scaling.store.archiving import content_of, file_content
from scaling.store.files import (
    append_whole,
    listed,
    parsed_lines,
    sample_files,
    text_of,
    write_whole,
)
from scaling.store.folder import ResultsFolder
from scaling.store.schemas import validate

LINES, ACCEPTED = "history.jsonl", "accepted"
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
        digest: of all this and its raw samples (`digest_of`).
    """

    name: str
    started: str
    seconds: Mapping[str, float]
    hosts: tuple[str, ...]
    commit: str | None
    digest: str = ""


class _CampaignModel(BaseModel):
    """A line of history.jsonl."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^\d{4,}$")]
    started: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT")]
    seconds: Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]
    hosts: list[str]
    commit: str | None
    digest: str


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
            StoreError: a line is damaged, changed or out of order, or a folder lacks or has changed samples.
        """
        lines = self.path / LINES
        campaigns: list[Campaign] = []
        text = text_of(lines, MEND).splitlines() if lines.exists() else []
        for number, values in enumerate(parsed_lines(text, str(lines), unfinished=False, mend=MEND), start=1):
            validate(_CampaignModel, values, f"{lines}, line {number}", MEND)
            campaigns.append(Campaign(**{**values, "hosts": tuple(values["hosts"])}))
        for number, campaign in enumerate(campaigns, start=1):
            if int(campaign.name) != number:
                raise StoreError(f"{lines}, line {number}: {campaign.name} in place of {number:04d}; {MEND}")
            if campaign.started < campaigns[max(number - 2, 0)].started:
                raise StoreError(
                    f"{lines}, line {number}: {campaign.name} began before the one before; {MEND}"
                )
            self._require_unchanged(campaign)
        for folder in listed(self.path):
            if folder.name.isdecimal() and int(folder.name) > len(campaigns) + 1:
                raise StoreError(f"{folder} is not listed in {lines}; {MEND}")
        return campaigns

    def _require_unchanged(self, campaign: Campaign) -> None:
        folder = self.folder(campaign.name)
        if not folder.exists():
            raise StoreError(f"{folder.path} is listed in {self.path / LINES}, but is not there; {MEND}")
        samples = samples_digest(folder)
        if campaign.digest not in (digest_of(campaign, samples), samples):  # the latter: of earlier versions
            raise StoreError(
                f"{folder.path}: its samples or its line in {LINES} are not those that were measured; {MEND}"
            )

    def folder(self, name: str) -> ResultsFolder:
        """The results of a campaign."""
        return ResultsFolder(self.path / name)

    def next_name(self, campaigns: list[Campaign]) -> str:
        """Of the campaign that is measured next, or goes on if it was interrupted."""
        return f"{int(campaigns[-1].name) + 1 if campaigns else 1:04d}"

    def add(self, campaign: Campaign) -> None:
        """Adds its line, with the digest."""
        digest = digest_of(campaign, samples_digest(self.folder(campaign.name)))
        content = json.dumps({**_facts(campaign), "digest": digest}).encode()
        append_whole(self.path / LINES, content + b"\n")

    def accepted(self, campaigns: list[Campaign], newly: str | None = None) -> list[Campaign]:
        """Those of the machine as it is now: all, or from the accepted one on; `newly` accepts another.

        Raises:
            StoreError: what was accepted is none of them.
        """
        path, names = self.path / ACCEPTED, [campaign.name for campaign in campaigns]
        is_new, kept = newly is not None, path.exists()
        begins = newly if is_new else text_of(path, MEND).strip() if kept else names[0]
        if begins not in names:
            where = "--accept" if is_new else f"{path}, which can be deleted,"
            raise StoreError(f"{where} names {begins!r}; allowed: {names[0]} to {names[-1]}")
        if is_new:
            write_whole(path, f"{newly}\n".encode())
        return campaigns[names.index(begins) :]


def _facts(campaign: Campaign) -> dict[str, Any]:
    return {**asdict(campaign), "hosts": list(campaign.hosts), "digest": ""}


def digest_of(campaign: Campaign, samples: str) -> str:
    """Of its line and the digest of its raw samples."""
    line = json.dumps(_facts(campaign), sort_keys=True)
    return hashlib.sha256(f"{line}\n{samples}".encode()).hexdigest()


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
