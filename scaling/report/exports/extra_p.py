"""The text format of Extra-P, which fits scaling laws: one parameter, the number of workers.

A region is all cells that differ in the world size alone, a metric is the step (wall clock over steps) or a
part of it (median), and the values of a point are the launches'. Every region of such a file has all points:
those that were not measured at every world size are left out, and named in a comment. Extra-P asks for five
points.

Reference: Extra-P, "File format documentation", github.com/extra-p/extrap, docs/file-formats.md
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scaling.analysis.samples import CellResult
from scaling.axes import AXES, Axis, Role, Shared, axis, fixed_batch, with_columns
from scaling.errors import ScalingError
from scaling.store import ResultsFolder

NOT_OF_A_REGION = ("world_size", "local_batch", "global_batch", "peer_access")
IN_EVERY_NAME = ("model", "dataset", "scaling", "step", "aggregator")
Region = dict[int, CellResult]


def extra_p(folder: ResultsFolder, cells: Sequence[CellResult]) -> Iterator[str]:
    """The lines of the file. Raises ScalingError: there is no timing of two world sizes."""
    regions = _regions([cell for cell in cells if cell.launches and not cell.cell.get("aa_replicate")])
    counted = Counter(tuple(sorted(region)) for region in regions.values() if len(region) > 1)
    # Those that most regions with several have; of equally many, the larger set.
    sizes = list(max(counted, key=lambda held: (counted[tuple(held)], len(tuple(held))), default=()))
    complete = {name: region for name, region in regions.items() if set(sizes) <= set(region)}
    if len(sizes) < 2:
        raise ScalingError(
            f"{folder.path}: no cell was timed at two world sizes; Extra-P needs five to fit a law"
        )
    yield f"# seconds; p is the number of workers; {len(sizes)} points of the five that Extra-P asks for"
    for name in regions:
        if name not in complete:
            yield f"# left out, not measured at every point: {name}"
    yield "PARAMETER p"
    yield "POINTS " + " ".join(f"({size})" for size in sizes)
    for name, region in complete.items():
        yield f"REGION {name}"
        for metric, values in _metrics(region, sizes).items():
            yield f"METRIC {metric}"
            for point in values:
                yield "DATA " + " ".join(f"{value:.9f}" for value in point)


def _regions(cells: Sequence[CellResult]) -> dict[str, Region]:
    regions: dict[tuple[Any, ...], Region] = {}
    for cell in cells:
        regions.setdefault((*_variables(cell), _access(cell)), {})[cell.cell["world_size"]] = cell
    _share_single_workers(regions)
    firsts = [by_size[max(by_size)] for by_size in regions.values()]
    always = [axis(name) for name in IN_EVERY_NAME]
    others = [variable for variable in with_columns(Shared.GROUP) if variable not in always]
    differing = [variable for variable in others if len({_text(cell, variable) for cell in firsts}) > 1]
    names = [_name(cell, (*always, *differing)) for cell in firsts]
    seen: Counter[str] = Counter()
    named = {}
    for name, region in zip(names, regions.values(), strict=True):
        seen[name] += 1
        named[name if names.count(name) == 1 else f"{name}#{seen[name]}"] = region
    return named


def _share_single_workers(all_regions: dict[tuple[Any, ...], Region]) -> None:
    """One worker has no peers: measured with or without access to them, it is a point of both regions."""
    same_single: defaultdict[tuple[Any, ...], list[Region]] = defaultdict(list)
    for key, region in all_regions.items():
        same_single[key[:-1]].append(region)
    for regions in same_single.values():
        single = next((region[1] for region in regions if 1 in region), None)
        for region in regions:
            if single is not None:
                region.setdefault(1, single)
    for key, region in list(all_regions.items()):
        if set(region) == {1} and any(len(other) > 1 for other in same_single[key[:-1]]):
            del all_regions[key]


def _variables(cell: CellResult) -> tuple[Any, ...]:
    """Those of a region, but the access to peers."""
    axes = [
        variable
        for variable in AXES
        if variable.key and not variable.role & Role.RECORDED and variable.name not in NOT_OF_A_REGION
    ]
    return (fixed_batch(cell.cell), *(variable.shown(cell.cell) for variable in axes))


def _access(cell: CellResult) -> bool:
    """To peers; with those that do not say so in it."""
    return cell.cell.get("peer_access") is not False


def _text(cell: CellResult, variable: Axis) -> str:
    if variable.name in IN_EVERY_NAME:
        return str(variable.shown(cell.cell))
    if variable.name == "peer_access":
        return "peer access" if _access(cell) else "host-only"
    value = variable.shown(cell.cell)
    return variable.text(variable.default_shown if value is None else value)


def _name(cell: CellResult, parts: Sequence[Axis]) -> str:
    return "->".join(re.sub(r"\s|->", "_", _text(cell, part)) for part in parts)


def _metrics(region: Region, sizes: Sequence[int]) -> dict[str, list[list[float]]]:
    metrics = {"iteration_s": [[launch.iteration_s for launch in region[size].launches] for size in sizes]}
    names = ("forward", "backward", "exposed_comm", "update", "wait")
    for name in names:
        values = [
            [_part(launch, name) for launch in region[size].launches if launch.budgets] for size in sizes
        ]
        if all(values) and any(value > 0 for point in values for value in point):
            metrics[f"{name}_s"] = values
    return metrics


def _part(launch: Any, name: str) -> float:
    """The median over profiled steps, of the rank that the others wait for."""
    return float(np.median([ranks[launch.waited_for].parts_s[name] for ranks in launch.budgets]))
