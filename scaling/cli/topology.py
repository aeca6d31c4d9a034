"""The verbs of `scaling topology`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, CommandGroup, note
from topologies.errors import TopologyError

topology = typer.Typer(
    cls=CommandGroup,
    name="topology",
    help="Machine files: devices, links and paths.",
    epilog="Example: scaling topology show hgx-h200-4",
    no_args_is_help=True,
)

MachineOut = Annotated[
    Path | None, Option(metavar="FILE.yaml", help="Machine file to write (default: stdout).")
]


def _write(what: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"{what} {path}: cannot be written: {error.strerror}") from error
    note(f"{what}: {path}")


@topology.command(epilog="Example: scaling topology show dual-k80 --svg dual-k80.svg")
def show(
    name: Annotated[
        str,
        Argument(
            metavar="NAME", help="A shipped machine (see `scaling list topologies`), or a machine file."
        ),
    ],
    as_json: AsJson = False,
    svg: Annotated[Path | None, Option(metavar="FILE", help="Also draw the machine into this file.")] = None,
) -> None:
    """Check a machine file, and print devices, links, peer access, paths and the source of every figure."""
    from topologies.describe import as_dict, describe
    from topologies.schema import load

    machine = load(name)
    typer.echo(json.dumps(as_dict(machine), indent=1) if as_json else describe(machine))
    if svg is not None:
        from scaling.report.machine_pictures import draw

        _write("picture", svg, draw(machine))


@topology.command(epilog="Example: scaling topology detect --out my-box.yaml")
def detect(out: MachineOut = None, as_json: AsJson = False) -> None:
    """Write this machine's devices and links with nominal figures; measures nothing."""
    from topologies.detect import read_facts
    from topologies.detected_file import machine_file
    from topologies.file_text import as_yaml, validated

    facts = read_facts()
    file = machine_file(facts)
    notes = [f"not found: {what}" for what in facts.missing]
    text = as_yaml(file, ["Nothing is measured here: `scaling topology probe` does that.", *notes])
    validated(text, "the detected machine")
    for text in notes:
        note(text)
    if out is not None:
        _write("machine file", out, text)
    if as_json:
        typer.echo(json.dumps(file, indent=1))
    elif out is None:
        typer.echo(text, nl=False)


@topology.command(epilog="Example: scaling topology probe --out my-box.yaml")
def probe(
    out: MachineOut = None,
    samples: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the raw samples there, as CSV or, if it ends in .json, as JSON "
            "(default: in the folder of --out, as <name>.samples.csv).",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        Option(min=1, max=65536, help="Number of workers (default: one per GPU; without GPUs up to 4)."),
    ] = None,
    no_peer_access: Annotated[
        bool,
        Option(
            "--no-peer-access", help="Measure only without GPU peer access (default: with it, then without)."
        ),
    ] = False,
    seconds: Annotated[
        float, Option(min=0, max=86_400, help="Time for measuring, without the start of the workers.")
    ] = 45.0,
    launcher: Annotated[
        str, Option(help="local (torchrun), or mpirun, which also measures MPI's all-reduce.")
    ] = "local",
) -> None:
    """Measure this machine's links, memories, matrix products and collectives, and write a machine file.

    With --out, drivers, versions and settings go to <name>.environment.json in its folder.
    """
    from scaling.measure.probe.run import machine_of, measure, spec_for, this_machine
    from topologies.detect import read_facts

    if out is not None and samples is None:
        samples = out.with_suffix(".samples.csv")
    for path in (out, samples):
        if path is not None and not path.absolute().parent.is_dir():
            raise TopologyError(f"{path}: there is no folder {path.parent}; make it first")
    try:
        measured = measure(spec_for(*this_machine(), world_size, seconds, no_peer_access, launcher), note)
    except KeyboardInterrupt:
        note("stopped; nothing is written")
        raise typer.Exit(130) from None
    if samples is not None:  # first of all: the rest can be made of them again
        _write("samples", samples, measured.samples_text(as_json=samples.suffix == ".json"))
    if out is not None:
        environment = json.dumps(measured.environment, indent=2) + "\n"
        _write("environment", out.with_suffix(".environment.json"), environment)
    result = machine_of(measured, read_facts())
    for line in [*result.table, *result.notes, *measured.failures]:
        note(line)
    if out is not None:
        _write("machine file", out, result.machine)
    else:
        typer.echo(result.machine, nl=False)
    if measured.failures:
        raise typer.Exit(1)
