"""`scaling history`: a machine compared with its own past, one short campaign a call."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, Overrides, note
from scaling.cli.run import measured
from scaling.errors import ScalingError, StudyError
from scaling.files.texts import folded

if TYPE_CHECKING:
    from scaling.analysis.history import Watch
    from scaling.store.history import Campaign, HistoryFolder


def history(
    directory: Annotated[Path, Argument(metavar="DIR", help="A folder of campaigns; made if new.")],
    study: Annotated[str | None, Argument(help="Of the first call: a study (default: watch).")] = None,
    overrides: Overrides = None,
    launcher: Annotated[str, Option(help="As of `scaling run`.")] = "local",
    no_run: Annotated[bool, Option("--no-run", help="Measure nothing; read what is there.")] = False,
    rate: Annotated[
        float, Option("--runs-per-false-alarm", min=2, max=10**6, help="Without a change, so many an alarm.")
    ] = 100,
    accept: Annotated[
        str | None, Option(metavar="CAMPAIGN", help="Count from this one on; measure nothing.")
    ] = None,
    bisect: Annotated[bool, Option("--bisect", help="Find the slow commit of this repository.")] = False,
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown, for a message.")] = False,
    as_json: AsJson = False,
) -> None:
    """Is it slower than it was? Each call measures a campaign; exit code 3 is an alarm."""
    from scaling.analysis.history import watch
    from scaling.report.history import markdown as as_markdown
    from scaling.report.history import page, sentences
    from scaling.store.files import write_whole
    from scaling.store.history import HistoryFolder
    from scaling.store.locks import locked

    folder = HistoryFolder(directory)
    measures = not (no_run or bisect or accept is not None)
    if measures:
        directory.mkdir(parents=True, exist_ok=True)
    elif not directory.is_dir():
        raise ScalingError(f"{directory} has no campaign; `scaling history {directory}` measures one")
    with locked(directory / ".lock", f"{directory}: another `scaling history` is at work there"):
        campaigns = folder.campaigns()
        if measures:
            campaigns = [*campaigns, _measure(folder, campaigns, study, overrides or [], launcher)]
        if not campaigns:
            raise ScalingError(f"{directory} has no campaign; `scaling history {directory}` measures one")
        said = watch(folder.accepted(campaigns, accept), rate)
        lines = sentences(said, folder)
        write_whole(directory / "history.html", page(said, lines).encode())
    if bisect:
        _bisect(folder, said)
    elif as_json:
        typer.echo(json.dumps(_as_dict(said, lines), indent=1))
    elif markdown:
        typer.echo(as_markdown(said, lines), nl=False)
    else:
        for line in lines:
            typer.echo(folded("", line, indent=2))
        note(f"page: {directory / 'history.html'}")
    if said.alarm is not None:
        raise typer.Exit(3)


def _measure(
    folder: HistoryFolder, campaigns: list[Campaign], study: str | None, overrides: list[str], launcher: str
) -> Campaign:
    """One more campaign, of the first one's study with its batches; it counts when all of it is done."""
    import os

    from launchers.zygote import Zygotes
    from scaling.analysis.history import campaign_of
    from scaling.store.files import part_of
    from scaling.study.overrides import load_study
    from scaling.study.scope import scope_for
    from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS

    name = folder.next_name(campaigns)
    if campaigns:
        first = folder.folder(campaigns[0].name).path / "study.yaml"
        if study is not None and load_study(study, overrides).name != load_study(str(first), []).name:
            raise StudyError(f"{folder.path} is a history of the study in {first}; use another folder")
        study, overrides = str(first), []
    with closing(Zygotes(IMPORTED_BEFORE_FORKS)) as zygotes:
        scope = scope_for(launcher, None, None, os.environ)
        outcome = measured(study or "watch", overrides, part_of(folder.path, name), scope, zygotes)
    for line in outcome.rest():
        note(line)
    if outcome.is_failure:
        note(f"the campaign {name} is not whole and does not count; the same command goes on with it")
        raise typer.Exit(1)
    campaign = campaign_of(outcome.folder, name, _commit())
    folder.add(campaign)
    return campaign


def _git(*words: str) -> str:
    made = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    if made.returncode:
        raise ScalingError(f"git {' '.join(words)}: {made.stderr.strip() or 'failed'}")
    return made.stdout.strip()


def _commit() -> str | None:
    """Of the current folder's repository; None: there is none, or no git."""
    with suppress(ScalingError, OSError):
        return _git("rev-parse", "HEAD")
    return None


def _bisect(folder: HistoryFolder, said: Watch) -> None:
    """Halves the commits between the campaigns around the change; each is measured in turns with this one."""
    if said.change is None:
        raise ScalingError(f"{folder.path} has no alarm: there is no slow commit to find")
    ends = (max(said.change.earliest - 1, 0), said.change.latest)
    good, bad = (said.campaigns[at].commit for at in ends)
    if not good or not bad or good == bad:
        raise ScalingError("the campaigns around the change name no two commits of a repository")
    if _commit() != (newest := said.campaigns[-1].commit):
        raise ScalingError(f"commits are compared with the newest campaign's: check out {newest} first")
    commits = _git("rev-list", "--reverse", "--first-parent", f"{good}..{bad}").split()
    if not commits:
        raise ScalingError(f"{bad[:12]} does not follow {good[:12]} in this folder's repository")
    low, high = 0, len(commits) - 1  # the slow one is among them
    while low < high:
        middle = (low + high) // 2
        ratio = _against(folder, said, commits[middle])
        slow = ratio > said.change.ratio**-0.5
        note(f"{commits[middle][:12]} takes {ratio:.3f} of the time here: {'slow' if slow else 'fast'}")
        low, high = (low, middle) if slow else (middle + 1, high)
    typer.echo(f"first slow commit: {_git('log', '-1', '--format=%h %s', commits[low])}")


def _against(folder: HistoryFolder, said: Watch, commit: str) -> float:
    """The time of a commit over this environment's, measured in turns: the cells' geometric mean."""
    import os

    import numpy as np

    from launchers.zygote import Zygotes
    from scaling.analysis.compare import compare
    from scaling.cli.run_against import run_against
    from scaling.store import ResultsFolder
    from scaling.store.files import part_of
    from scaling.study.scope import scope_for
    from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS

    out = part_of(folder.path, f"bisect-{commit[:12]}")
    first = folder.folder(said.campaigns[0].name).path / "study.yaml"
    with closing(Zygotes(IMPORTED_BEFORE_FORKS)) as zygotes:
        scope = scope_for("local", None, None, os.environ)
        run_against(
            str(first), ["kind=iteration"], out, f"commit:{commit}", scope, zygotes, retry_failed=False
        )
    comparison = compare([ResultsFolder(out / "a")], [ResultsFolder(out / "b")])
    return float(np.exp(np.mean([cell.difference.log_ratio for cell in comparison.cells])))


def _as_dict(said: Watch, lines: list[str]) -> dict[str, object]:
    names = [campaign.name for campaign in said.campaigns]
    change = dict(vars(said.change)) if said.change is not None else None
    if change is not None:
        change |= {place: names[change[place]] for place in ("first", "earliest", "latest")}
    alarm = None if said.alarm is None else names[said.alarm]
    return {"campaigns": names, "alarm": alarm, "change": change, "seen": dict(said.seen), "lines": lines}
