"""The command line. stdout is data, stderr is chatter; torch is imported only by the verbs that need it.

Exit codes: 0 ok, 1 failed cells or laws or cells left to another launch, 2 bad usage or input, 3 undecided or
regression, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling import __version__
from scaling.cli_compare import compare
from scaling.cli_explain import explain
from scaling.cli_export import export
from scaling.cli_predict import predict
from scaling.cli_recommend import recommend
from scaling.cli_schedule import import_, schedule
from scaling.cli_submit import submit
from scaling.cli_topology import topology
from scaling.cli_watch import watch
from scaling.errors import ScalingError, StudyError
from topologies.errors import TopologyError
from topologies.texts import folded

if TYPE_CHECKING:
    from scaling.report.write import Report
    from scaling.store import RunRecord
    from scaling.study.cells import ResolvedStudy

app = typer.Typer(
    name="scaling",
    help="How does synchronous data-parallel SGD scale here, and which gradient aggregation is best?",
    epilog="Example: scaling run quickstart",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

topology.command("import", epilog="Example: scaling topology import system.xml --out my-box.yaml")(import_)
app.add_typer(topology)
app.add_typer(schedule)
app.command(
    epilog="Example: scaling predict mnist --topology hgx-h200-4 --world-sizes 1,2,4 --from results/mnist"
)(predict)
app.command(epilog="Example: scaling submit mnist --partition gpu --gpus-per-node 4 --dry-run")(submit)

StudyArgument = Annotated[str, typer.Argument(help="A study file, or the name of a shipped study.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Replace keys of the study: repeats=5 parts.0.iterations=20"
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Results folder (default: results/<name of the study>).")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A results folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _note(message: str) -> None:
    typer.echo(message, err=True)


@app.command(epilog="Example: torchrun --nproc-per-node=2 -m scaling doctor")
def doctor(as_json: AsJson = False) -> None:
    """Look at this machine as a study would find it; exit code 1 if something would make one fail."""
    from scaling.doctor import examine

    lines = examine(os.environ, Path.cwd())
    typer.echo(
        json.dumps([line.as_dict() for line in lines], indent=1)
        if as_json
        else "\n".join(line.describe() for line in lines)
    )
    if any(line.state == "error" for line in lines):
        raise typer.Exit(1)


@app.command("list", epilog="Example: scaling list aggregators --json")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="studies, experiments, aggregators, models, datasets or topologies."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """List what is known by name."""
    from scaling.catalogue import LISTS

    if kind not in LISTS:
        raise StudyError(f"cannot list {kind!r}; allowed: {', '.join(LISTS)}")
    entries = LISTS[kind]()
    if as_json:
        typer.echo(json.dumps(entries, indent=1))
        return
    width = max(len(entry["name"]) for entry in entries)
    for entry in entries:
        typer.echo(folded(f"{entry['name']:{width}}  ", entry["description"]))


def _resolve(study_name: str, overrides: list[str] | None) -> ResolvedStudy:
    from scaling.study.cells import resolve
    from scaling.study.overrides import load_study
    from scaling.study.prepare import this_machine

    return resolve(load_study(study_name, overrides or []), this_machine())


@app.command(epilog="Example: scaling plan mnist world_sizes=[1,2]")
def plan(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    skip_dominated: Annotated[
        bool, typer.Option("--skip-dominated", help="Say which cells can still win, by predictions.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="And which of them fit into 10m, 90s, 2h.")
    ] = None,
    results: Annotated[
        list[Path] | None, typer.Option("--from", metavar="DIR", help="Results to predict from.")
    ] = None,
    topology_name: Annotated[
        str | None, typer.Option("--topology", metavar="NAME", help="The machine (default: this one).")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write a study of the cells to measure.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a study's cells, its launches and a rough estimate of the time, without running anything."""
    from scaling.study.planning import describe_plan, plan_as_dict

    if skip_dominated or budget:
        from scaling.cli_predict import plan_by_predictions

        plan_by_predictions(
            study,
            overrides,
            results or ([out] if out else []),
            topology_name,
            budget,
            write,
            skip_dominated=skip_dominated,
            as_json=as_json,
        )
        return
    resolved = _resolve(study, overrides)
    folder = out or Path("results") / resolved.name
    typer.echo(
        json.dumps(plan_as_dict(resolved, folder), indent=1) if as_json else describe_plan(resolved, folder)
    )


@app.command(epilog="Example: scaling run mnist --out results/mnist-today repeats=5")
def run(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    launcher: Annotated[
        str,
        typer.Option(
            help="What starts workers: local (torchrun), mpirun or horovodrun on this host; inside a Slurm "
            "job slurm-torchrun or slurm-srun."
        ),
    ] = "local",
    workers_per_node: Annotated[
        int | None, typer.Option(min=1, help="In a Slurm job: at most so many a node (default: its GPUs).")
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(min=1, help="Run this size alone, beside others that run the rest; no report."),
    ] = None,
) -> None:
    """Run a study, or go on with one: finished cells are skipped. Ends with the report."""
    from scaling.predict_ahead import predicting
    from scaling.store import ResultsFolder
    from scaling.study.cells import resolve
    from scaling.study.libraries import carried
    from scaling.study.overrides import load_study
    from scaling.study.prepare import prepare, this_machine
    from scaling.study.progress import progress_for
    from scaling.study.run import RunCommand, run_study
    from scaling.study.run import retry_failed as reset_failed
    from scaling.study.scope import scope_for

    loaded = load_study(study, overrides or [])
    scope = scope_for(launcher, workers_per_node, world_size, os.environ)
    resolved = resolve(loaded, this_machine(scope.num_nodes))
    scope.require_cells(resolved)
    here = carried(resolved, by_mpi=launcher == "mpirun", world_size=world_size)
    folder = ResultsFolder(out or Path("results") / loaded.name)
    for note in resolved.notes:
        _note(note)
    with scope.lock(folder):
        prepare(folder, loaded, resolved)
        for line in here.leave_rest(folder):
            _note(line)
        if retry_failed:
            _note(f"{reset_failed(folder, scope)} failed runs are tried again")
        try:
            with progress_for(sys.stderr) as progress:
                command = RunCommand(study, overrides or [], folder.path)
                ahead = predicting(folder, progress.say)
                run_study(folder, here.study, command, progress, scope, ahead)
        except KeyboardInterrupt:
            _note(f"stopped; the same command goes on from here, `scaling status {folder.path}` shows where")
            raise typer.Exit(130) from None
        made = _write_report(folder.path) if world_size is None else None
    if made is None:
        _note(f"world size {world_size} is over; `scaling report {folder.path}` when the others are")
    else:
        _show(made)
        _note(f"report: {made.page}")
    failed = [record for record in scope.records(folder) if record.state == "failed"]
    _name_rest(failed, here.leave_rest(folder))


def _name_rest(failed: list[RunRecord], left: list[str]) -> None:
    """Says what has failed and what is left to other launches, and ends with exit code 1 if anything is."""
    from scaling.study.transfer import short_label

    for record in failed:
        cell = record.cell
        _note(
            f"failed: {short_label(cell)}, {cell['world_size']} workers, "
            f"repeat {record.repeat}: {record.reason}"
        )
    if failed:
        _note("`--retry-failed` runs them again")
    for line in left:
        _note(line)
    if failed or left:
        raise typer.Exit(1)


def _write_report(path: Path) -> Report:
    from scaling.report import write_report
    from scaling.store import ResultsFolder

    return write_report(ResultsFolder(path).require())


def _show(made: Report) -> None:
    """Prints the summary's tables and how the wall time divided."""
    from rich.console import Console

    from scaling.report.device import device_sentences
    from scaling.report.terminal import render_tables
    from scaling.report.transfer_tables import render_transfers

    console = Console(soft_wrap=True)
    for table in [*render_tables(made.table), *render_transfers(made.transfers)]:
        console.print(table)
        console.print()
    for sentence in device_sentences(made.experiments):
        typer.echo(folded("", sentence, indent=2))
    if made.times is not None:
        typer.echo(folded("", made.times.line(), indent=2))


@app.command(epilog="Example: scaling report results/mnist")
def report(
    directory: Folder,
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the report as Markdown, for a pull request.")
    ] = False,
) -> None:
    """Make summary.csv, budget.csv, the figures and report.html from the raw samples; needs no torch."""
    if as_json and markdown:
        raise StudyError("--json and --markdown both print the report; give one of them")
    made = _write_report(directory)
    if markdown:
        typer.echo(made.markdown(), nl=False)
    else:
        typer.echo(json.dumps(made.as_dict(), indent=1) if as_json else made.page)


@app.command(epilog="Example: scaling status results/mnist --json")
def status(directory: Folder, as_json: AsJson = False) -> None:
    """Show the state of every cell (planned, running, done or failed), and what is left."""
    from scaling.report import status_table
    from scaling.report.progress import progress
    from scaling.report.status import describe_status
    from scaling.store import ResultsFolder

    folder = ResultsFolder(directory).require()
    rows = status_table(folder)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    typer.echo(describe_status(rows))
    for line in progress(folder, datetime.now(timezone.utc)).lines()[1:]:
        typer.echo(line)


@app.command("verify", epilog="Example: scaling verify my_aggregators:ScaledAllReduce")
def verify_(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A collective, an aggregator, or module:attribute: a class of aggregators, or a function "
            "from a world size to a schedule. The current folder is searched too.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Every collective and every registered aggregator; takes some ten minutes."
        ),
    ] = False,
    world_sizes: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="Of schedules, as in 1-8,16; aggregators run with 1 to 8 ranks, those named here.",
        ),
    ] = "1-64",
    examples: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Cases to draw for an aggregator and each number of ranks: 25, or more."
        ),
    ] = 25,
    seed: Annotated[
        int, typer.Option(min=0, metavar="SEED", help="Of the drawing: another seed gives other cases.")
    ] = 0,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Put the sheet into this results folder, for its report."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that schedules deliver the sum; check aggregators against the contract. Starts no processes.

    Of a schedule it says what the rank sends that sends most; S is the size of the buffer. A lossy aggregator
    that is named gets a sheet: its error, bytes and speed, and the link speed below which it pays.
    """
    from rich.console import Console

    from scaling.honesty import sheet_of
    from scaling.store import ResultsFolder
    from scaling.verification import all_subjects, examine, parse_world_sizes, subjects_of

    if (name is None) != everything:
        raise StudyError("name a collective or an aggregator, or give --all")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    folder = ResultsFolder(into).require() if into else None
    sizes = parse_world_sizes(world_sizes)
    subjects = all_subjects(sizes) if name is None else subjects_of(name)
    width, findings, sheets = max(len(subject.name) for subject in subjects), [], []
    for index, subject in enumerate(subjects, 1):
        with Console(stderr=True).status("") as status:
            done = f"{index}/{len(subjects)} " if everything else ""
            findings.append(
                examine(subject, sizes, lambda text, done=done: status.update(done + text), examples, seed)  # type: ignore[misc]
            )
        wanted = not everything and subject.kind == "aggregator" and findings[-1].failure is None
        sheets.append(sheet_of(subject.name) if wanted else None)
        if not as_json:
            typer.echo(findings[-1].line(width))
            for line in sheets[-1].lines() if sheets[-1] else []:
                typer.echo(folded("  ", line, indent=13))
    if folder is not None:
        if name is None or sheets[0] is None:
            raise StudyError("--into needs the name of a lossy aggregator: others have no sheet")
        folder.write_sheet(name, sheets[0].as_dict())
        _note(f"the sheet is in {folder.path}; `scaling report {folder.path}` shows it")
    if as_json:
        both = zip(findings, sheets, strict=True)
        values = [{**finding.as_dict(), "sheet": sheet and sheet.as_dict()} for finding, sheet in both]
        typer.echo(json.dumps(values, indent=1))
    if any(finding.failure is not None for finding in findings):
        raise typer.Exit(1)


app.command(epilog="Example: scaling watch results/mnist --once")(watch)
app.command(epilog="Example: scaling recommend results/mnist --objective 'efficiency >= 0.8'")(recommend)
app.command(epilog="Example: scaling explain results/budget all_reduce@4")(explain)
app.command(epilog="Example: scaling compare results/before results/after --fail-if 'slower > 5%'")(compare)
app.command(epilog="Example: scaling export results/budget all_reduce@4 --format chrome > trace.json")(export)


def main() -> None:
    """The entry point: errors of the user's are one message and exit code 2, never a traceback."""
    try:
        app()
    except (ScalingError, TopologyError) as error:
        _note(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
