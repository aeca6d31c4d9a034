"""`scaling schedule export`, `import` and `scaling topology import`: our formats and those of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, CommandGroup
from scaling.errors import ScheduleError
from topologies.errors import TopologyError

schedule = typer.Typer(
    cls=CommandGroup,
    name="schedule",
    help="Export collectives in the formats of other engines; prove those of others.",
    epilog="Example: scaling schedule export ring --world-size 8 --out ring.xml",
    no_args_is_help=True,
)

FORMATS = ("msccl-xml", "chakra")
MAX_FOREIGN_BYTES = 16 << 20  # of what other tools wrote: the JSON of a thousand GPUs is smaller


@schedule.command(
    epilog="Example: scaling schedule export ring --world-size 8 --format msccl-xml --out ring.xml"
)
def export(
    name: Annotated[
        str, Argument(metavar="NAME", help="A collective that `scaling verify` knows, or all_reduce.")
    ],
    world_size: Annotated[int, Option(min=1, max=1024, help="Number of ranks.")],
    out: Annotated[
        Path,
        Option(metavar="FILE", help="File to write; for Chakra traces a prefix: FILE.0.et, FILE.1.et, ..."),
    ],
    format_: Annotated[str, Option("--format", help="msccl-xml, or chakra (for ASTRA-sim).")] = "msccl-xml",
    num_bytes: Annotated[
        int, Option("--bytes", min=4, max=2**50, help="Size of the float32 buffer in Chakra traces.")
    ] = 64 << 20,
    compute_s: Annotated[
        float,
        Option(
            "--compute-seconds", min=0.0, max=1e9, help="Computation before the collective in Chakra traces."
        ),
    ] = 0.0,
) -> None:
    """Write a collective as MSCCL XML or Chakra traces; all_reduce leaves the algorithm to the engine."""
    from scaling.collectives.listing import schedule as made
    from scaling.interchange.chakra import all_reduce_traces, traces
    from scaling.interchange.msccl_xml import beyond_limits, to_xml

    if format_ not in FORMATS:
        raise ScheduleError(f"--format {format_!r}; allowed: {', '.join(FORMATS)}")
    if format_ == "msccl-xml":
        text = to_xml(made(name, world_size))
        write_file(out, text.encode())
        _say(f"warning: {limit}" for limit in beyond_limits(text))
        return
    if name == "all_reduce":
        files = all_reduce_traces(world_size, num_bytes, compute_s)
    else:
        files = traces(made(name, world_size), num_bytes // 4, compute_s)
    for rank, content in enumerate(files):
        write_file(out.with_name(f"{out.name}.{rank}.et"), content)


@schedule.command(name="import", epilog="Example: scaling schedule import all_pairs.xml --out all_pairs.yaml")
def import_schedule(
    file: Annotated[Path, Argument(metavar="FILE", help="MSCCL XML of an all-reduce.")],
    out: Annotated[Path | None, Option(metavar="FILE.yaml", help="Write the schedule there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove an all-reduce that others wrote, or name the step that is wrong; make a schedule of it."""
    from scaling.collectives.schedule_file import to_yaml
    from scaling.files.documents import DocumentError, read_text
    from scaling.interchange.msccl_prove import prove, read_algorithm
    from scaling.interchange.msccl_xml import beyond_limits

    try:
        text = read_text(file, MAX_FOREIGN_BYTES)
        algorithm = read_algorithm(text)
        made, reason = prove(algorithm)
    except OSError as error:
        raise ScheduleError(f"{file}: cannot be read: {error.strerror}") from None
    except (DocumentError, ScheduleError) as error:
        raise ScheduleError(f"{file}: {error}") from None
    _say(f"warning: {limit}" for limit in beyond_limits(text))
    forms = ["in place" if form else "out of place" for form in algorithm.in_place]
    found = {
        "name": algorithm.name,
        "world_size": algorithm.world_size,
        "num_chunks": algorithm.num_chunks,
        "proven": forms,
        "num_steps": len(made.steps) if made else None,
        "no_schedule": reason,
    }
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        typer.echo(
            f"proven {' and '.join(forms)}: {algorithm.name}, {algorithm.world_size} ranks, "
            f"{algorithm.num_chunks} chunks" + (f"; a schedule of {len(made.steps)} steps" if made else "")
        )
    if made is None:
        typer.echo(f"no schedule: {reason}", err=True)
        if out is not None:
            raise ScheduleError(f"{file}: proven, but no schedule can say it: {reason}")
    elif out is not None:
        write_file(out, to_yaml(made, [f"From {file.name} (MSCCL XML)."]).encode())


def import_(
    file: Annotated[Path, Argument(metavar="FILE", help="What the other tool wrote.")],
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="File to write: a machine file, or samples as CSV (default: stdout)."),
    ] = None,
    machine: Annotated[
        str | None,
        Option(metavar="NAME", help="With nvbandwidth: machine that gets the measured bandwidths."),
    ] = None,
    gpu: Annotated[
        str | None, Option(metavar="NAME", help="With a machine: what its GPUs are, as A100-SXM4-80GB.")
    ] = None,
    allow_missing_links: Annotated[
        bool, Option("--allow-missing-links", help="With XML: also take a file that leaves GPUs' links out.")
    ] = False,
    world_size: Annotated[
        int | None, Option(min=2, max=4096, help="With OSU's text: ranks of the all-reduce.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import a machine (NCCL's XML, `nvidia-smi topo -m`) or samples (nccl-tests, nvbandwidth, OSU)."""
    from scaling.files.documents import DocumentError, read_text

    try:
        text = read_text(file, MAX_FOREIGN_BYTES)
    except FileNotFoundError:
        raise TopologyError(f"{file}: cannot be read: No such file or directory") from None
    except DocumentError as error:
        raise TopologyError(f"{file}: {error}; give what the tool wrote") from None
    is_xml = text.lstrip().startswith("<")
    if machine is not None:
        content, data = _measured_machine(text, file, machine, is_xml=is_xml)
    else:
        from topologies.smi_matrix import is_matrix

        if is_xml or is_matrix(text):
            content, data = _machine(text, file, gpu, allow_missing_links=allow_missing_links)
        else:
            content, data = _samples(text, str(file), world_size)
    if out is not None:
        write_file(out, content.encode())
    if as_json:
        typer.echo(json.dumps(data, indent=1))
    elif out is None:
        typer.echo(content, nl=False)


def _machine(text: str, path: Path, gpu: str | None, *, allow_missing_links: bool) -> tuple[str, object]:
    from topologies import nccl_xml, smi_matrix
    from topologies.detected_file import machine_file
    from topologies.file_text import as_yaml, validated

    if smi_matrix.is_matrix(text):
        facts = smi_matrix.facts_of(text, path.stem, str(path), gpu=gpu)
    else:
        facts = nccl_xml.facts_of(
            text, path.stem, str(path), gpu=gpu, allow_missing_links=allow_missing_links
        )
    file = machine_file(facts)
    notes = [f"not in the file: {what}" for what in facts.missing]
    _say(notes)
    content = as_yaml(file, [f"From {facts.origin}; nothing is measured.", *notes])
    validated(content, f"the machine of {path}")
    return content, file


def _measured_machine(text: str, path: Path, machine: str, *, is_xml: bool) -> tuple[str, object]:
    from scaling.measure.probe.machine_file import with_measured
    from scaling.measure.probe.other_tools import nvbandwidth_version, samples_of
    from topologies.schema import text_of

    samples, notes = ([], []) if is_xml else samples_of(text, str(path))
    version = None if is_xml else nvbandwidth_version(text)
    if version is None:
        raise TopologyError(
            f"{path}: --machine takes nvbandwidth's output, which measures links; NCCL's topology XML is a "
            "machine by itself, and samples of nccl-tests calibrate by `predict --samples`"
        )
    _say(notes)
    return with_measured(text_of(machine), machine, samples, f"{version} ({path.name})")


def _samples(text: str, source: str, world_size: int | None) -> tuple[str, object]:
    from scaling.measure.probe.cases import as_csv
    from scaling.measure.probe.other_tools import samples_of

    samples, notes = samples_of(text, source, world_size)
    _say(notes)
    return as_csv(samples), [asdict(sample) for sample in samples]


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line, err=True)


def write_file(path: Path, content: bytes) -> None:
    """Writes where the user says; a TopologyError says why not."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise TopologyError(f"{path}: cannot be written: {error.strerror}") from error
    typer.echo(f"written: {path}", err=True)
