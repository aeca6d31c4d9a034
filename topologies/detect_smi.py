"""GPUs and their links as the program nvidia-smi tells them, where its library's package is missing.

Less than NVML gives: nothing of the GPUs' memory buses. Whether NVLinks lead to switches is concluded: they
do where a GPU would need more links for its pairs than it has.

Reference: NVIDIA, nvidia-smi manual page: --query-gpu, topo, nvlink.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace

from topologies.detect_host import short_bus_id
from topologies.facts import Gpu, PcieLink

FIELDS = (
    *("index", "uuid", "pci.bus_id", "pcie.link.gen.max", "pcie.link.width.max", "pcie.link.gen.current"),
    *("pcie.link.width.current", "name"),
)
TIMEOUT_S = 30
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

Ask = Callable[..., str]
Matrix = dict[tuple[int, int], str]


def nvidia_smi(*arguments: str) -> str:
    """What the program prints; nothing where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def read_gpus(ask: Ask = nvidia_smi) -> tuple[Gpu, ...]:
    lines = ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits").splitlines()
    gpus = tuple(parse_gpu(line) for line in lines if line.count(",") >= len(FIELDS) - 1)
    return with_links(gpus, ask) if len(gpus) > 1 else gpus


def with_links(gpus: tuple[Gpu, ...], ask: Ask = nvidia_smi) -> tuple[Gpu, ...]:
    words = parse_matrix(ask("topo", "-m"))
    access = parse_matrix(ask("topo", "-p2p", "r"))
    speeds = parse_link_speeds(ask("nvlink", "-s"))
    found = []
    for gpu in gpus:
        seen = {other: word for (index, other), word in access.items() if index == gpu.index}
        peers = frozenset(other for other, word in seen.items() if word == "OK") if seen else None
        own = speeds.get(gpu.index, [])
        known = replace(gpu, nvlink_bytes_per_s=own[0] if own else None, peers=peers)
        found.append(with_switches(known, words, len(own)))
    return tuple(found)


def parse_gpu(line: str) -> Gpu:
    """One line of the answer to the query for FIELDS."""
    index, uuid, bus_id, *numbers, name = (field.strip() for field in line.split(",", len(FIELDS) - 1))
    generation, width, current_generation, current_width = (
        int(number) if number.isdigit() else None for number in numbers
    )
    pcie = PcieLink(generation, width, current_generation, current_width) if generation and width else None
    return Gpu(index=int(index), name=name, uuid=uuid, bus_id=short_bus_id(bus_id), pcie=pcie)


def parse_matrix(text: str) -> Matrix:
    """Pair of GPUs -> the word in the matrix of `topo`: `NV18`, `PHB`, `OK`, ..."""
    rows = [ESCAPES.sub("", line).split() for line in text.splitlines()]
    header = next((row for row in rows if row and row[0] == "GPU0" and "X" not in row), [])
    columns = [int(word.removeprefix("GPU")) for word in header if re.fullmatch(r"GPU\d+", word)]
    matrix: Matrix = {}
    for row in rows:
        if row and row is not header and re.fullmatch(r"GPU\d+", row[0]) and len(row) > len(columns):
            source_index = int(row[0].removeprefix("GPU"))
            matrix |= {(source_index, other): word for other, word in zip(columns, row[1:], strict=False)}
    return {pair: word for pair, word in matrix.items() if pair[0] != pair[1]}


def parse_link_speeds(text: str) -> dict[int, list[float]]:
    """GPU -> bytes a second of each of its active NVLinks, from `Link 0: 26.562 GB/s`."""
    speeds: dict[int, list[float]] = {}
    gpu = None
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+):", line):
            gpu = int(match[1])
        elif gpu is not None and (match := re.match(r"\s*Link \d+: ([\d.]+) GB/s", line)):
            speeds.setdefault(gpu, []).append(float(match[1]) * 1e9)
    return speeds


def with_switches(gpu: Gpu, words: Matrix, num_links: int = 0, most_links: int = 18) -> Gpu:
    """The GPU with its NVLinks, which lead to switches where it would need more than it has: `num_links`
    active ones, if that is not 0, or the `most_links` of its kind."""
    matches = {to: re.fullmatch(r"NV(\d+)", word) for (at, to), word in words.items() if at == gpu.index}
    nvlinks = {other: int(match[1]) for other, match in matches.items() if match}
    needed = sum(nvlinks.values())
    if needed > num_links > 0 or needed > most_links:
        return replace(gpu, switch_links=num_links or max(nvlinks.values()))
    return replace(gpu, nvlinks=nvlinks, unseen_links=max(0, num_links - needed))
