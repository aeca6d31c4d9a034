"""`scaling synthesize`: a schedule for the links of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from scaling.cli.options import AsJson
from scaling.cli.schedule import write_file
from scaling.errors import StudyError

if TYPE_CHECKING:
    from scaling.collectives.synthesis import Synthesis


def synthesize(
    topology: Annotated[str, Option(metavar="NAME", help="A shipped machine, or a machine file.")],
    collective: Annotated[str, Option(help="all_reduce.")] = "all_reduce",
    world_size: Annotated[
        int | None, Option(min=2, max=128, help="Number of ranks (default: all GPUs, at most 128).")
    ] = None,
    num_bytes: Annotated[int, Option("--bytes", min=4, max=2**50, help="Size of the buffer.")] = 64 << 20,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE.yaml", help="Schedule to write; runs as {name: schedule, collective: FILE.yaml}."
        ),
    ] = None,
    picture: Annotated[Path | None, Option(metavar="FILE.svg", help="Draw the trees into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule for a machine's links: spanning trees, proven, and priced with the built-in ones.

    It says how far the schedule is from the bound: the least time in which the machine's links let any trees
    sum the buffer and spread it. If no packing of trees is faster than a built-in schedule, as for small
    buffers, that one is the result.
    """
    from scaling.collectives.schedule_file import SUFFIXES, to_yaml
    from scaling.collectives.synthesis import synthesize as made
    from scaling.report.machine_pictures import draw_trees
    from topologies.schema import load

    if collective != "all_reduce":
        raise StudyError(f"--collective {collective!r}; allowed is all_reduce")
    if out is not None and out.suffix not in SUFFIXES:
        raise StudyError(f"--out {out}: the name of a schedule ends in {' or '.join(SUFFIXES)}")
    machine = load(topology)
    synthesis = made(machine, world_size or min(max(machine.num_gpus, 2), 128), num_bytes)
    lines = _lines(synthesis)
    if out is not None:
        write_file(out, to_yaml(synthesis.schedule, lines).encode())
    if picture is not None:
        write_file(picture, draw_trees(synthesis.schedule, lines[0]).encode())
    typer.echo(json.dumps(_as_dict(synthesis), indent=1) if as_json else "\n".join(lines))


def _lines(synthesis: Synthesis) -> list[str]:
    from scaling.collectives.synthesis import TO_COMPARE

    simulation, seconds = synthesis.simulation, synthesis.simulation.seconds
    rivals = sorted(synthesis.built_in_s.items(), key=lambda item: item[1])
    shown = [item for place, item in enumerate(rivals) if not place or item[0] in TO_COMPARE]
    width = max(len(name) for name, _ in [*shown, ("synthesized", 0.0)])
    lines = [
        f"{simulation.name}: all-reduce of {simulation.num_bytes / 1e6:.4g} MB",
        f"{synthesis.schedule.name:{width}}  {_ms(seconds)}  {synthesis.family}; "
        f"{len(synthesis.schedule.steps)} steps; proven",
    ]
    lines += [f"{name:{width}}  {_ms(each)}  {each / seconds:.3f} times as long" for name, each in shown]
    if synthesis.is_built_in:
        lines.append(
            f"none of {synthesis.num_tried} packings of trees is faster: what they save on the links they "
            "lose by more steps"
        )
    bound = _ms(synthesis.bound_s)
    least = "" if synthesis.bound.is_exact else " (at least: there are too many cuts for all)"
    alone = f"its messages take {_ms(synthesis.link_s)} if only the links count"
    if synthesis.meets_bound:
        lines.append(f"{'bound':{width}}  {bound}  met: {alone}; the rest is latency and sums{least}")
    else:
        times = synthesis.link_s / synthesis.bound_s
        lines.append(f"{'bound':{width}}  {bound}  not met: {alone}, {times:.3f} times the bound{least}")
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _as_dict(synthesis: Synthesis) -> dict[str, Any]:
    schedule, simulation = synthesis.schedule, synthesis.simulation
    own = ("family", "is_built_in", "link_s", "bound_s", "meets_bound", "built_in_s", "num_tried")
    return {
        "schedule": schedule.name,
        **{name: getattr(schedule, name) for name in ("world_size", "num_chunks")},
        "num_steps": len(schedule.steps),
        "num_bytes": simulation.num_bytes,
        "simulated_s": simulation.seconds,
        "bound_is_exact": synthesis.bound.is_exact,
        **{name: getattr(synthesis, name) for name in own},
    }
