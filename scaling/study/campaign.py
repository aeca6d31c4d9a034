"""Two environments in one campaign: their launches take turns.

1. Both have a results folder: A is the command's environment, B the other one. The cells are the same.
2. Of each launch (repeat, world size, start-up settings) one environment's is run right after the other's.
   Which goes first is drawn for every second repeat; in the one that follows the other goes first.
3. Once both are over, the records of their runs get the campaign's id: `compare` takes them as pairs.
4. A pair that was cut in two (Ctrl-C, a failed run that is tried again) is measured again in both: what was
   measured at different times is no pair.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass

from scaling.errors import StoreError
from scaling.store import ResultsFolder, RunRecord
from scaling.study.launches import Launch
from scaling.study.run import ProgressListener, StudyRun

SIDES = ("a", "b")
"""Names of the folders, in the order in which `compare` takes them."""

THIS = "this environment"
"""What is recorded of the runs of A."""


@dataclass(frozen=True)
class Campaign:
    """The folders of both environments. `a`, `b`: of the command's environment and of the other one; `id`:
    equal in the records of all pairs; `other`: name of the environment of b."""

    a: ResultsFolder
    b: ResultsFolder
    id: str
    other: str

    @classmethod
    def of(cls, a: ResultsFolder, b: ResultsFolder, other: str) -> Campaign:
        """That which the folders hold, or a new one. Raises StoreError: they hold one with another
        environment."""
        marks = {
            (record.launch["campaign"], record.launch.get("environment"))
            for record in b.runs()
            if "campaign" in record.launch
        }
        for _, name in marks:
            if name != other:
                raise StoreError(
                    f"{b.path} was measured in {name}, and --against names {other}; use another --out"
                )
        return cls(a, b, min(marks)[0] if marks else secrets.token_hex(6), other)

    def measure_halves_again(self) -> int:
        """Plans runs again that are done in one environment and left to do in the other; returns how many.
        Where one has failed the other one stays; it goes when the failed one is tried again."""
        folders = (self.a, self.b)
        records = [
            {(record.cell_id, record.repeat): record for record in folder.runs()} for folder in folders
        ]
        again = []
        for key in {**records[0], **records[1]}:
            pair = [(folder, runs[key]) for folder, runs in zip(folders, records, strict=True) if key in runs]
            states = [record.state for _, record in pair]
            is_whole = states == ["done", "done"] and all(self._is_marked(record) for _, record in pair)
            if not is_whole and "failed" not in states:
                again += [(folder, record) for folder, record in pair if record.state == "done"]
        for folder, record in again:
            folder.reset_run(record)
        return len(again)

    def mark(self) -> None:
        """Marks what is done in both folders as this campaign's."""
        for folder, name in ((self.a, THIS), (self.b, self.other)):
            for record in folder.runs():
                if record.state == "done" and not self._is_marked(record):
                    record.launch |= {"campaign": self.id, "environment": name}
                    folder.write_run(record)

    def _is_marked(self, record: RunRecord) -> bool:
        return bool(record.launch.get("campaign") == self.id)


def run_campaign(a: StudyRun, b: StudyRun, campaign: Campaign) -> None:
    """Runs what is left in both environments, launch by launch. Raises KeyboardInterrupt, LaunchError: see
    `StudyRun.run`."""
    for run in (a, b):
        run.begin()
    while launches := sorted([*a.launches(), *b.launches()], key=lambda launch: launch.repeat):
        first = launches[0]
        for run in (b, a) if other_goes_first(a.study.name, first) else (a, b):
            while to_run := [launch for launch in run.launches() if _same(launch, first)]:
                for side in (a, b):
                    side.zygotes.wait_until_imported()  # nothing is imported while something is timed
                run.run(to_run[0])
        campaign.mark()


def _same(launch: Launch, other: Launch) -> bool:
    return (launch.settings, launch.repeat) == (other.settings, other.repeat)


def other_goes_first(study: str, launch: Launch) -> bool:
    """Whether B's launch comes before A's: drawn for even repeats, the other way in the odd one after it."""
    block = launch.repeat // 2
    drawn = random.Random(f"{study} {block} {launch.settings}").random() < 0.5
    return drawn != bool(launch.repeat % 2)


@dataclass(frozen=True)
class SideProgress:
    """What one environment tells of how far both are. `other`: folder of the other one."""

    shown: ProgressListener
    name: str
    other: ResultsFolder

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        num_over += sum(record.state in ("done", "failed") for record in self.other.runs())
        self.shown.update(num_over, 2 * num_runs, f"{self.name}, {current}")

    def say(self, message: str) -> None:
        self.shown.say(f"{self.name}: {message}")
