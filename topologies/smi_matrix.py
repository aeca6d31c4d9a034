"""The table of `nvidia-smi topo -m` as facts of a machine.

Read are NVLinks (`NV4`), PCIe switches that GPUs share (`PIX`, `PXB`) and the CPUs near each GPU. Everything
else is an assumption and is named: the table has no names, rates or PCIe generations.

Reference: NVIDIA, nvidia-smi manual page, topo.
"""

from __future__ import annotations

import re

import networkx as nx

from scaling.files.texts import clean
from topologies.detect_smi import ESCAPES, Matrix, parse_matrix, with_switches
from topologies.errors import TopologyError
from topologies.facts import OTHER_PEERS, Facts, Gpu, Host, NumaNode, PciePlace
from topologies.gpus import LINK_BYTES_PER_S, MOST_LINKS, model_named, slowest

SHARED_SWITCH = ("PIX", "PXB")
WORD = re.compile(r"X|NV\d+|SYS|SOC|NODE|PHB|PXB|PIX|N/A")  # SOC is an older name of SYS
RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def is_matrix(text: str) -> bool:
    return bool(re.search(r"^\s*(\x1b\[\S*m)?\s*GPU0\s", text, re.MULTILINE))


def facts_of(text: str, name: str, source: str = "", *, gpu: str | None = None) -> Facts:
    """The machine of that table, with GPUs called `gpu` (`topologies.gpus`), if that is known; TopologyError
    if GPUs of the header have no row, or `gpu` is not known."""
    words, cpus = parse_matrix(text), _cpus(text)
    header = _header(text)
    columns = sorted({int(cell.removeprefix("GPU")) for cell in header if cell.startswith("GPU")})
    strange = dict.fromkeys(clean(word) for word in words.values() if not WORD.fullmatch(word))
    if strange:
        what = f"{source or name}: {', '.join(strange)} between GPUs: no word of `nvidia-smi topo -m`"
        raise TopologyError(f"{what}; give its whole output, or the NCCL_TOPO_DUMP_FILE of NCCL or RCCL")
    every = {(index, other) for index in {*columns, *cpus} for other in columns if index != other}
    if lost := [f"GPU{index}" for index in sorted({index for index, _ in every - {*words}})]:
        raise TopologyError(
            f"{source or name}: no row of {', '.join(lost)}, or not a whole one; give all of "
            "`nvidia-smi topo -m`"
        )
    if not columns or {*cpus} - {*columns}:
        raise TopologyError(f"{source or name}: no line of columns; give all of `nvidia-smi topo -m`")
    model = None if gpu is None else model_named(gpu)
    assumed = model or slowest("")
    sets = list(dict.fromkeys(cpus.get(index, "") for index in columns))
    places = {}
    switches = _switches(words)
    gpus = []
    for index in columns:
        one = with_switches(
            Gpu(
                index,
                f"NVIDIA {model.name}" if model else "NVIDIA GPU",
                f"GPU-{index}",
                f"gpu{index}",
                nvlink_bytes_per_s=LINK_BYTES_PER_S.get(model.architecture) if model else None,
                memory_bytes_per_s=assumed.memory_bytes_per_s,
                memory_source=f"{'' if model else 'assumption: as '}data sheet of {assumed.name}",
            ),
            words,
            most_links=MOST_LINKS.get(model.architecture, 18) if model else 18,
        )
        places[one.bus_id] = PciePlace(sets.index(cpus.get(index, "")), switches.get(index, ()))
        gpus.append(one)
    nodes = tuple(NumaNode(at, at, _num_cpus(text)) for at, text in enumerate(sets))
    missing = [
        "PCIe generations and widths, memories, cores' rates: the table does not have them",
        f"peer access: the table does not say; {OTHER_PEERS}",
    ]
    if model is None:
        missing.append("names of the GPUs and the rate of an NVLink: name them with --gpu")
    if any(one.nvlinks for one in gpus):
        missing.append("whether NVLinks lead to a switch: taken to join GPUs directly, as none has too many")
    if len(sets) > 1:
        missing.append(f"which CPUs share a socket: each of the {len(sets)} sets of CPUs is taken for one")
    for (a, b), word in words.items():
        if a < b and word != words[b, a] and "NV" in word + words[b, a]:
            missing.append(f"GPU{a} and GPU{b}: {word} from one, {words[b, a]} from the other")
    if num_nics := sum(not cell.startswith(("GPU", "CPU")) for cell in header):
        missing.append(f"{num_nics} NICs: left out; add them and a network in a file on top")
    return Facts(
        name, Host("processor", nodes), tuple(gpus), places, {}, tuple(missing), "nvidia-smi topo -m"
    )


def _switches(words: Matrix) -> dict[int, tuple[str, str]]:
    """GPU -> (root, switch) where it shares a PCIe switch with another."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_edges_from(pair for pair, word in words.items() if word in SHARED_SWITCH)
    groups = enumerate(sorted(nx.connected_components(graph), key=min))
    return {index: (f"root{at}", f"switch{at}") for at, group in groups for index in group}


def _cpus(text: str) -> dict[int, str]:
    """GPU -> its column of CPUs, as `0-19,40-59`."""
    found = {}
    for line in text.splitlines():
        cells = ESCAPES.sub("", line).split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]):
            ranges = [cell for cell in cells[1:] if RANGES.fullmatch(cell) and ("-" in cell or "," in cell)]
            found[int(cells[0].removeprefix("GPU"))] = ranges[0] if ranges else ""
    return found


def _header(text: str) -> list[str]:
    """The columns before those of CPUs: GPUs and NICs."""
    lines = (ESCAPES.sub("", line).partition("CPU Affinity")[0].split() for line in text.splitlines())
    return next((cells for cells in lines if cells and cells[0] == "GPU0" and "X" not in cells), [])


def _num_cpus(ranges: str) -> int:
    ends = [part.split("-") for part in ranges.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends) or 16
