"""The command line. stdout is data, stderr is chatter; what is heavy is imported late.

Exit codes: 0 ok, 1 failed cells or laws or cells left to another launch, 2 bad usage or input, 3 undecided or
regression, 130 interrupted, 141 (as a program that SIGPIPE ends) who read stdout has gone.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand

from scaling import __version__
from scaling.cli.advice import explain, recommend
from scaling.cli.compare import AgainstCommand, compare
from scaling.cli.doctor import doctor
from scaling.cli.export import export
from scaling.cli.foreign import attach, claims, import_table
from scaling.cli.history import history
from scaling.cli.listing import list_
from scaling.cli.options import CommandGroup, note
from scaling.cli.predict import plan, predict
from scaling.cli.report import report
from scaling.cli.run import run
from scaling.cli.schedule import import_, schedule
from scaling.cli.status import status
from scaling.cli.submit import submit
from scaling.cli.synthesize import synthesize
from scaling.cli.topology import topology
from scaling.cli.tune import tune
from scaling.cli.verify import verify
from scaling.errors import LaunchError, ScalingError
from scaling.files.texts import clean
from scaling.import_path import working_folder_found
from scaling.start_up import allow_open_files, installed_by, open_standard_streams
from topologies.errors import TopologyError

app = typer.Typer(
    cls=CommandGroup,
    name="scaling",
    help="Measure how synchronous data-parallel SGD scales here, and which gradient aggregation is best.",
    epilog="Example: scaling run quickstart",
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

VERBS: dict[str, list[tuple[Callable[..., None], str]]] = {
    "Measure": [
        (run, "scaling run mnist --out results/mnist-today repeats=5"),
        (plan, "scaling plan mnist world_sizes=[1,2]"),
        (tune, "scaling tune overlap world_sizes=2"),
        (attach, "scaling attach --out results/mine -- torchrun --nproc-per-node=2 train.py"),
        (history, "scaling history ~/watch"),
        (doctor, "torchrun --nproc-per-node=2 -m scaling doctor"),
    ],
    "Read": [
        (report, "scaling report results/mnist"),
        (recommend, "scaling recommend results/mnist --objective 'efficiency >= 0.8'"),
        (explain, "scaling explain results/budget all_reduce@4"),
        (compare, "scaling compare results/before results/after --fail-if 'slower > 5%'"),
        (export, "scaling export results/budget all_reduce@4 --format chrome > trace.json"),
        (status, "scaling status results/mnist --watch"),
        (list_, "scaling list aggregators --json"),
        (claims, "scaling claims docs/claims/shi-2016.yaml"),
        (import_table, "scaling import-table resnet50.csv --batch 64 --parameters 25557032"),
    ],
    "Predict": [
        (predict, "scaling predict mnist --topology hgx-h200-4 --world-sizes 1,2,4 --from results/mnist"),
        (synthesize, "scaling synthesize --topology dual-k80 --out dual-k80-trees.yaml"),
    ],
    "Prove": [(verify, "scaling verify my_aggregators:ScaledAllReduce")],
    "Cluster": [(submit, "scaling submit mnist --partition gpu --gpus-per-node 4 --dry-run")],
}  # group of the help -> its verbs, each with the example that its own help ends with

COMMANDS: dict[Any, type[TyperCommand]] = {compare: AgainstCommand}  # whose options take several words

topology.command("import", epilog="Example: scaling topology import system.xml --out my-box.yaml")(import_)
app.add_typer(topology, rich_help_panel="Predict")
app.add_typer(schedule, rich_help_panel="Predict")
for group, verbs in VERBS.items():
    for verb, example in verbs:
        app.command(
            verb.__name__.rstrip("_").replace("_", "-"),
            cls=COMMANDS.get(verb),
            epilog=f"Example: {example}",
            rich_help_panel=group,
        )(verb)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


OLD_OPTIONS = {
    "verify": {"--into": "--save-to"},
    "probe": {"--host-only": "--no-peer-access"},
    "predict": {"--measured-on": "--source-topology"},
}  # verb -> former names of options, taken one version more, with a warning


def _with_new_names(words: list[str]) -> list[str]:
    """The words of a command, with verbs and options that were renamed under their new names."""
    if words[:1] == ["watch"]:
        once = "--once" in words
        now = "status (exit code 0 also where runs failed)" if once else "status --watch"
        note(f"warning: watch is now called {now}; the old name goes with the next version")
        return ["status", *(word for word in words[1:] if word != "--once"), *([] if once else ["--watch"])]
    verb = next((word for word in words if word in OLD_OPTIONS), None)
    if verb is None:
        return words
    renamed = []
    for word in words:
        name, equals, value = word.partition("=")
        new = OLD_OPTIONS[verb].get(name, name)
        if new != name:
            note(f"warning: {name} is now called {new}; the old name goes with the next version")
        renamed.append(f"{new}{equals}{value}")
    return renamed


def main() -> None:
    """The entry point: errors of the user's are one message and exit code 2, never a traceback."""
    open_standard_streams()
    stdout = os.dup(1)  # a library that finds it unread puts another file in its place
    gc.set_threshold(50_000)  # most of what is imported and read stays; looking through it costs a tenth
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of a terminal that has not all characters
    try:
        try:
            os.getcwd()  # libraries end the process without a current folder
        except FileNotFoundError:
            raise LaunchError("the current folder was removed; go to another one, as with `cd`") from None
        working_folder_found()
        if problem := allow_open_files():
            raise LaunchError(problem)
        _require_text(sys.argv[1:])
        app(_with_new_names(sys.argv[1:]))
    except SystemExit as ended:
        broken = ended.__context__
        if not isinstance(broken, BrokenPipeError):  # which typer and rich end with code 1
            raise
        if not _is_unread(stdout):  # another pipe, as of a worker
            raise broken from None
        with suppress(OSError):  # stderr may be the same pipe
            note("stdout is read no more (as by `| head`): the rest was not printed")
        sys.exit(128 + signal.SIGPIPE)
    except (ScalingError, TopologyError) as error:
        note(f"error: {clean(str(error))}")
        sys.exit(2)
    except MemoryError:
        note("error: there is no memory left; free some, or raise the limit (`ulimit -v`, or the job's)")
        sys.exit(2)
    except (ImportError, OSError) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # in the start of a library's C code
            sys.exit(130)
        if (reason := installed_by(error) or _not_done(error)) is None:
            raise
        note(f"error: {clean(reason)}")
        sys.exit(2)


def _require_text(words: list[str]) -> None:
    """A name with other bytes cannot be written into a record or a page."""
    for word in words:
        if not word.isascii() and word.encode(errors="replace").decode() != word:
            raise LaunchError(
                f"{word.encode(errors='backslashreplace').decode()!r} is no text here: its bytes are no "
                f"{sys.getfilesystemencoding()}; use another name, or a locale with UTF-8 (LC_ALL=C.UTF-8)"
            )


def _is_unread(descriptor: int) -> bool:
    """Whether it is a pipe or a terminal that nobody reads any more."""
    poll = select.poll()
    poll.register(descriptor, 0)  # what is wrong is told without being asked for
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _not_done(error: ImportError | OSError) -> str | None:
    """What the system refused, in one line; None where it was no call of the system's."""
    from scaling.store.files import disk_full

    if not isinstance(error, OSError) or error.strerror is None:
        return None
    if not isinstance(error.filename, str | bytes | os.PathLike):
        is_file = error.errno in (errno.EIO, errno.EBADF, errno.ENOSPC, errno.EPIPE)
        of_file = "stdout, or another file that is open, cannot be read or written"
        return f"{of_file if is_file else 'the system refused'}: {error.strerror}"
    path = Path(os.fsdecode(error.filename))
    full = disk_full(path, error)
    return str(full) if full else f"{path}: cannot be read or written: {error.strerror}"


if __name__ == "__main__":
    main()
