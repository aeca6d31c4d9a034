"""The campaigns of one machine, one after the other: results folders 0001, 0002, ... and history.jsonl.

The latter has a line a campaign: its name, start and times, and a digest of these and its samples. Lines are
only added; what does not fit (a missing campaign, times or samples that changed, another order) is refused by
name. A file `accepted` names the campaign from which the machine is taken as it is now.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from scaling.errors import StoreError
from scaling.store.archiving import samples_of
from scaling.store.files import append_whole, listed, parsed_lines, text_of, write_whole
from scaling.store.folder import ResultsFolder
from scaling.store.schemas import validate

LINES, ACCEPTED = "history.jsonl", "accepted"
MEND = "put it back from a copy, or begin a new history in another folder"


class PastCampaign(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern=r"^\d{4,}$")]  # of its folder
    started: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT")]  # UTC, ISO 8601
    # Stream (a cell, or a link) -> its time in seconds, the launches' geometric mean.
    seconds: Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]
    hosts: list[str]  # on which it ran
    commit: str | None  # of the repository in the folder where the command ran; None: of none
    slow: list[str] = []  # hosts, or on one host `rank N`, that are slow by their ranks' own times
    digest: str = ""  # of all this and its raw samples (`digest_of`)


@dataclass(frozen=True)
class HistoryFolder:
    path: Path

    def folder(self, name: str) -> ResultsFolder:
        return ResultsFolder(self.path / name)

    def campaigns(self) -> list[PastCampaign]:
        """In their order; StoreError where one is damaged, changed, missing or out of order."""
        lines, campaigns, last = self.path / LINES, list[PastCampaign](), ""
        text = text_of(lines, MEND).splitlines() if lines.exists() else []
        for number, values in enumerate(parsed_lines(text, str(lines), unfinished=False, mend=MEND), start=1):
            where = f"{lines}, line {number}"
            validate(PastCampaign, values, where, MEND)
            campaigns.append(campaign := PastCampaign(**values))
            if int(campaign.name) != number:
                raise StoreError(f"{where}: {campaign.name} in place of {number:04d}; {MEND}")
            if campaign.started < last:
                raise StoreError(f"{where}: {campaign.name} began before the one before; {MEND}")
            folder, last = self.folder(campaign.name), campaign.started
            if not folder.exists():
                raise StoreError(f"{folder.path} is listed in {lines}, but is not there; {MEND}")
            samples = samples_digest(folder)
            if campaign.digest not in (digest_of(campaign, samples), samples):  # the latter: older versions
                changed = f"its samples or its line in {LINES} are not those that were measured"
                raise StoreError(f"{folder.path}: {changed}; {MEND}")
        for path in listed(self.path):
            if path.name.isdecimal() and int(path.name) > len(campaigns) + 1:
                raise StoreError(f"{path} is not listed in {lines}; {MEND}")
        return campaigns

    def add(self, campaign: PastCampaign) -> None:
        digest = digest_of(campaign, samples_digest(self.folder(campaign.name)))
        line = campaign.model_copy(update={"digest": digest}).model_dump_json()
        append_whole(self.path / LINES, f"{line}\n".encode())

    def accepted(self, campaigns: list[PastCampaign], newly: str | None = None) -> list[PastCampaign]:
        """From the accepted one on; `newly` accepts another. StoreError where it is none of them."""
        if not campaigns:
            raise StoreError(f"{self.path} has no campaign; `scaling history {self.path}` measures one")
        path, names = self.path / ACCEPTED, [campaign.name for campaign in campaigns]
        known = text_of(path, MEND).strip() if path.exists() else names[0]
        if (first := known if newly is None else newly) not in names:
            where = f"{path}, which can be deleted," if newly is None else "--accept"
            raise StoreError(f"{where} names {first!r}; allowed: {names[0]} to {names[-1]}")
        if newly is not None:
            write_whole(path, f"{newly}\n".encode())
        return campaigns[names.index(first) :]


def digest_of(campaign: PastCampaign, samples: str) -> str:
    """Of its line without the digest, where older ones have no slow hosts, and the digest of its samples."""
    facts = campaign.model_dump(exclude=None if campaign.slow else {"slow"}) | {"digest": ""}
    return hashlib.sha256(f"{json.dumps(facts, sort_keys=True)}\n{samples}".encode()).hexdigest()


def samples_digest(folder: ResultsFolder) -> str:
    """Of all raw samples of a results folder, archived or not, with their cells and repeats."""
    digest, known = hashlib.sha256(), {(run.cell_id, run.repeat) for run in folder.runs()}
    for file, content in sorted(samples_of(folder.path)):
        if (file.cell_id, file.repeat) in known and not file.attempt:
            digest.update(f"{file.name.removeprefix('runs/')}\n".encode() + content)
    return digest.hexdigest()
