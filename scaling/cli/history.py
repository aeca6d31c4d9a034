"""`scaling history`: a machine compared with its own past, one short campaign a call."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import nullcontext
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import Overrides, note
from scaling.cli.run import measured, workers
from scaling.cli.run_against import run_against
from scaling.errors import ScalingError, StudyError
from scaling.files.texts import folded

if TYPE_CHECKING:
    from scaling.analysis.history import Watch
    from scaling.store.history import PastCampaign


def history(
    directory: Annotated[Path, Argument(metavar="DIR", help="A folder of campaigns; made if new.")],
    study: Annotated[str | None, Argument(help="Of the first call: a study (default: watch).")] = None,
    overrides: Overrides = None,
    launcher: Annotated[str, Option(help="As of `scaling run`.")] = "local",
    no_run: Annotated[bool, Option("--no-run", help="Measure nothing; read what is there.")] = False,
    rate: Annotated[float, Option("--runs-per-false-alarm", min=2, max=10**6, help="On average.")] = 100,
    accept: Annotated[str | None, Option(metavar="CAMPAIGN", help="Forget those before; no run.")] = None,
    bisect: Annotated[bool, Option("--bisect", help="Find the slow commit of this repository.")] = False,
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown, for a message.")] = False,
) -> None:
    """Is it slower than it was? Each call measures a campaign; exit code 3 is an alarm."""
    from scaling.analysis.history import watch
    from scaling.report import history as report
    from scaling.store.files import write_whole
    from scaling.store.history import HistoryFolder
    from scaling.store.locks import locked

    folder, measures = HistoryFolder(directory), not (no_run or bisect or accept is not None)
    at_work = f"{directory}: another `scaling history` is at work there"
    with locked(directory / ".lock", at_work) if measures else nullcontext():
        campaigns = folder.campaigns()
        if measures:
            campaigns.append(_measured(directory, len(campaigns) + 1, study, overrides or [], launcher))
            folder.add(campaigns[-1])
        said = watch(folder.accepted(campaigns, accept), rate)
        lines = report.sentences(said, folder)
        page = write_whole(directory / "history.html", report.page(said, lines).encode())
    if bisect:
        _bisect(directory, said)
    elif markdown:
        typer.echo("\n- ".join([f"**{lines[0]}**\n", *lines[1:]]))
    else:
        typer.echo("\n".join(folded("", line, indent=2) for line in lines))
        note(f"page: {page}")
    if said.alarm is not None:
        raise typer.Exit(3)


def _measured(
    folder: Path, number: int, study: str | None, overrides: list[str], launcher: str
) -> PastCampaign:
    """One more campaign, of the first one's study; it counts when all of it is done."""
    from scaling.analysis.history import campaign_of
    from scaling.measure.environment import git_state
    from scaling.store.files import part_of
    from scaling.study.overrides import load_study

    name = f"{number:04d}"
    if number > 1:
        first = str(folder / "0001" / "study.yaml")
        if study is not None:
            if load_study(study, overrides).name != load_study(first, []).name:
                raise StudyError(f"{folder} is a history of the study in {first}; use another folder")
            note(f"goes on with {first}; a {study} that changed since begins in another folder")
        study, overrides = first, []
    with workers(launcher) as begun:
        outcome = measured(study or "watch", overrides, part_of(folder, name), begun)
    for line in outcome.rest():
        note(line)
    if outcome.is_failure:
        note(f"the campaign {name} is not whole and does not count; the same command goes on with it")
        raise typer.Exit(1)
    return campaign_of(outcome.folder, name, (git_state(Path.cwd()) or {}).get("commit"))


def _bisect(folder: Path, said: Watch) -> None:
    """Halves the commits between the campaigns around the change; each is measured in turns with this one."""
    from scaling.analysis.compare import compare
    from scaling.store import ResultsFolder
    from scaling.store.files import part_of
    from scaling.study.campaign import git

    if (change := said.change) is None:
        raise ScalingError(f"{folder} has no alarm: there is no slow commit to find")
    if git("--bisect", "rev-parse", "HEAD") != (newest := said.campaigns[-1].commit):
        raise ScalingError(f"commits are compared with the newest campaign's: check out {newest} first")
    between = "..".join(str(said.campaigns[at].commit) for at in (change.earliest - 1, change.latest))
    asked = ("rev-list", "--reverse", "--first-parent", between)
    if "None" in between or not (commits := git("--bisect", *asked).split()):
        raise ScalingError(f"the campaigns around the change have no commits between them: {between}")

    def is_slow(commit: str) -> bool:
        study, out = f"{folder}/0001/study.yaml", part_of(folder, f"bisect-{commit[:12]}")
        with workers("local") as begun:
            run_against(study, ["kind=iteration"], out, f"commit:{commit}", *begun, retry_failed=False)
        comparison = compare([ResultsFolder(out / "a")], [ResultsFolder(out / "b")])
        ratio = geometric_mean(cell.difference.ratio for cell in comparison.cells)
        slow = ratio > change.ratio[0] ** -0.5
        note(f"{commit[:12]} takes {ratio:.3f} of the time here: {'slow' if slow else 'fast'}")
        return slow

    slow = commits[bisect_left(commits, True, hi=len(commits) - 1, key=is_slow)]  # the last one is slow
    typer.echo(f"first slow commit: {git('--bisect', 'log', '-1', '--format=%h %s', slow)}")
