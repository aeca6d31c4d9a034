"""A machine file with the bandwidths that another tool measured, nvbandwidth, in place of its own.

1. GPU i of the tool is the file's i-th GPU.
2. What the copies tell of PCIe links, NVLinks, host memory and its bus is read off as from a probe
   (`scaling.measure.probe.figures`): links of a type share the median, and one that is more than a tenth off
   gets a type of its own.
3. Latencies, sums and a GPU's own memory stay as the file has them: copies of one size tell nothing of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.edit import set_figures
from scaling.measure.probe.figures import ProbeReader
from scaling.measure.probe.series import Series
from topologies.errors import TopologyError
from topologies.file_format import DerivedFile
from topologies.file_text import WIDTH, as_yaml, validated
from topologies.parse import parse

NOT_FIGURES = frozenset({"kind", "name", "source", "gpudirect", "duplex"})
"""Keys of a type that need no source."""


def with_measured(
    text: str, machine: str, samples: Sequence[ProbeSample], source: str
) -> tuple[str, dict[str, Any]]:
    """The file with measured figures, as text and as content.

    Args:
        text: of a whole machine file.
        machine: its name, for messages.
        source: the tool and its file, for the figures' sources: `nvbandwidth v0.8 (box.json)`.

    Raises:
        TopologyError: the machine has fewer GPUs than were measured, is made from another, or nothing was
            measured that it has a link for.
    """
    file: dict[str, Any] = _content(text, machine)
    topology = validated(text, machine)
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    num_measured = 1 + max((rank for sample in samples for rank in sample.ranks), default=-1)
    if num_measured > len(gpus):
        raise TopologyError(f"{source} measured {num_measured} GPUs, {machine} has {len(gpus)}; name another")
    findings = ProbeReader(topology, gpus[:num_measured], Series(samples))
    devices, links = findings.devices(), findings.links()
    if not devices and not links:
        raise TopologyError(
            f"{source}: nothing that {machine} has a link for; copies both ways between host and GPU "
            "(host_to_device_memcpy_ce and device_to_host_memcpy_ce), or between GPUs with NVLink "
            "(device_to_device_memcpy_write_ce) are needed"
        )
    for types in (file["device_types"], file["link_types"]):
        for entry in types.values():
            entry["source"] = _by_figure(entry)
    set_figures(file, "devices", devices, f"measured by {source}")
    set_figures(file, "links", links, f"measured by {source}")
    file["description"] = f"{file.get('description') or machine}; bandwidths by {source}"
    head = f"Measured by {source}: {', '.join(sorted({*devices, *links}))}. The rest is that of {machine}."
    result = as_yaml(file, textwrap.wrap(head, WIDTH - 2))
    validated(result, f"{machine} with {source}")
    return result, file


def _content(text: str, machine: str) -> dict[str, Any]:
    file = parse(text, machine)
    if isinstance(file, DerivedFile):
        raise TopologyError(
            f"{machine} is made from {file.machine!r}; name that one, or a file that has devices of its own"
        )
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _by_figure(entry: Mapping[str, Any]) -> Any:
    """The source of a type, for each figure its own where one stood for all."""
    source, figures = entry["source"], [name for name in entry if name not in NOT_FIGURES]
    return dict.fromkeys(figures, source) if isinstance(source, str) and figures else source
