"""Valid folders, studies and machine files that are to be damaged, and the commands that read them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.collectives.listing import schedule
from scaling.interchange.msccl_xml import to_xml
from tests.faults.damages import VALUES, unquoted
from tests.received_folder import received_folder
from topologies.schema import text_of

STUDY = """
name: own
device: cuda
workloads:
  - {model: fcn-r, dataset: synthetic, global_batch: 4096}
  - model: {name: mlp, hidden: [32]}
    dataset: digits
    global_batch: [64, 128]
aggregators: [none, all_reduce, {name: one_bit, threshold: mean}]
world_sizes: [1, 2]
missing_devices: drop
scaling: strong
parts:
  - {kind: iteration, step: [eager], noise_pair: false, max_seconds: 5, device: cpu}
  - {kind: convergence, epochs: 2, target_accuracy: 0.9, aggregators: [all_reduce], device: cpu}
  - {kind: transfer, world_sizes: [2], device: cpu}
"""

PREDICTED = """
name: own
device: cuda
workloads:
  - {model: fcn-r, dataset: synthetic, global_batch: 4096}
aggregators: [none, ring]
world_sizes: [1, 2]
scaling: strong
max_seconds: 5
"""

XML = """<system version="1"><cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel">
<pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
<pci busid="0000:20:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
<pci busid="0000:21:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
</pci></cpu></system>
"""
NCCL_TESTS = {
    "version": 2,
    "args": ["./build/all_reduce_perf", "-b", "1M"],
    "env": ["NCCL_P2P_DISABLE=1"],
    "config": {"nthreads": 1, "ngpus": 1, "graph": 0, "devices": [{"rank": rank} for rank in range(4)]},
}
OSU = "# OSU MPI Allreduce Latency Test v7.3\n# Size   Avg Latency(us)\n8   10.5\n1024   20.25\n"
MATRICES = {
    "host_to_device_memcpy_ce": [["55.1", "54.9"]],
    "device_to_host_memcpy_ce": [["55.1", "54.9"]],
    "device_to_device_memcpy_write_ce": [["N/A", "390"], ["391", "N/A"]],
}
CASES = [{"name": name, "bandwidth_matrix": matrix} for name, matrix in MATRICES.items()]
NVBANDWIDTH = {"nvbandwidth": {"version": "v0.8", "testcases": CASES}}
SAMPLES = """launch,operation,ranks,memory,captured,num_threads,num_bytes,repeats,seconds
default,all_reduce,0 1,,False,,1048576,1,2e-05
default,all_reduce,0 1,,False,,4194304,1,4e-05
default,send,0 1,,False,,1048576,1,1e-05
"""


@dataclass(frozen=True)
class Base:
    """What is damaged, and the commands that read it.

    Attributes:
        name: of the kind of input.
        fill: makes the valid files in an empty folder.
        words: folder, name of the damaged file, random number generator -> words of a command.
    """

    name: str
    fill: Callable[[Path], None]
    words: Callable[[Path, str, random.Random], Sequence[object]]


def _results(folder: Path, *, archived: bool, times: int = 1) -> None:
    taken = {
        "libraries-2xh200": ("iteration", 3 * times),
        "transfer-2xh200": ("transfer", 1),
        "device-surface-regression-cpu": ("device", 2 * times),
        "converge-fcn-2xh200": ("convergence", times),
    }
    made = received_folder(folder / "results", taken, num_lines=24)
    if archived:
        made.archive()


def _read_results(folder: Path, name: str, draw: random.Random) -> Sequence[object]:
    results = folder / "results"
    study = folder.parent / "predicted.yaml"
    study.write_text(PREDICTED)
    some = [
        ("status", results),
        ("status", results, "--json"),
        ("recommend", results),
        ("explain", results),
        ("compare", results, results),
        *(("export", results, "--format", name) for name in ("csv", "chrome", "mllog", "extra-p")),
        ("export", results, "--archive"),
        ("export", results, "--unarchive"),
        ("predict", study, "--topology", "hgx-h200-4", "--from", results),
        ("plan", study, "--skip-dominated", "--from", results),
    ]
    return draw.choice(some)


def _report(folder: Path, name: str, draw: random.Random) -> Sequence[object]:
    return draw.choice([("report", folder / "results"), ("report", folder / "results", "--markdown")])


CLUSTER = "hgx-h200-x2-infiniband"


def _study(folder: Path, times: int = 1) -> None:
    batches = [64 * number for number in range(1, 2 * times + 1)]
    (folder / "own.yaml").write_text(STUDY.replace("[64, 128]", str(batches)))


def _read_study(folder: Path, name: str, draw: random.Random) -> Sequence[object]:
    study = folder / "own.yaml"
    keys = ["repeats", "parts.0.max_seconds", "workloads.0.model", "seed", "world_sizes", "parts", "name"]
    key = draw.choice(keys)
    override = f"{key}={unquoted(json.dumps(draw.choice(VALUES)))}"
    some = [("plan", study), ("plan", study, "--json"), ("plan", study, override)]
    return draw.choice([*some, ("predict", study, "--topology", "hgx-h200-4")])


def _machine(folder: Path) -> None:
    (folder / "study.yaml").write_text(PREDICTED)
    for name in ("hgx-h200-4", "dual-k80", CLUSTER, "cpu-2", "hgx-h200"):
        text = text_of(name).replace("machine: hgx-h200\n", "machine: ./hgx-h200.yaml\n")
        (folder / f"{name}.yaml").write_text(text)


def _read_machine(folder: Path, name: str, draw: random.Random) -> Sequence[object]:
    machine = folder / (f"{CLUSTER}.yaml" if name in ("study.yaml", "hgx-h200.yaml") else name)
    some: list[Sequence[object]] = [("topology", "show", machine), ("topology", "show", machine, "--json")]
    some.append(("predict", folder / "study.yaml", "--topology", machine))
    return draw.choice(some)


def _foreign(folder: Path, times: int = 1) -> None:
    (folder / "nccl.xml").write_text(XML)
    timed = {"out_of_place": {"time": 21.5}, "in_place": {"time": 20.0}}
    sizes = [{"size": number << 20, **timed} for number in range(1, times + 1)]
    (folder / "nccl-tests.json").write_text(json.dumps({**NCCL_TESTS, "results": sizes}))
    (folder / "nvbandwidth.json").write_text(json.dumps(NVBANDWIDTH))
    head, rows = SAMPLES.split("\n", 1)
    (folder / "samples.csv").write_text(f"{head}\n{rows * times}")
    (folder / "ring.xml").write_text(to_xml(schedule("ring", 3 if times == 1 else 8)))
    (folder / "osu.txt").write_text(OSU + "".join(f"{1024 + n} {20 + n}.25\n" for n in range(1, 2 * times)))
    (folder / "matrix.txt").write_text("\tGPU0\tGPU1\nGPU0\tX\tNV4\t0-3\nGPU1\tNV4\tX\t4-7\n")


def _read_foreign(folder: Path, name: str, draw: random.Random) -> Sequence[object]:
    study = folder.parent / "predicted.yaml"
    study.write_text(PREDICTED)
    if name == "samples.csv":
        return ("predict", study, "--topology", "hgx-h200-4", "--samples", folder / name)
    if name == "ring.xml":
        return ("schedule", "import", folder / name)
    if name == "osu.txt":
        return ("topology", "import", folder / name, "--world-size", "4")
    machine = ["--machine", "hgx-h200-4"] if name == "nvbandwidth.json" and draw.random() < 0.5 else []
    return ("topology", "import", folder / name, *machine)


BASES = [
    Base("results", lambda folder: _results(folder, archived=False), _read_results),
    Base("archived results", lambda folder: _results(folder, archived=True), _read_results),
    Base("study", _study, _read_study),
    Base("machine", _machine, _read_machine),
    Base("foreign", _foreign, _read_foreign),
]
TIMES = 10
LARGE = [
    Base("large results", lambda folder: _results(folder, archived=False, times=TIMES), _read_results),
    Base("large archive", lambda folder: _results(folder, archived=True, times=TIMES), _read_results),
    Base("large study", lambda folder: _study(folder, TIMES), _read_study),
    Base("large foreign", lambda folder: _foreign(folder, TIMES), _read_foreign),
]
GROWTH: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], Sequence[Sequence[object]]]]] = {
    "results": (
        lambda folder, times: _results(folder, archived=False, times=times),
        lambda folder: [(verb, folder / "results") for verb in ("status", "recommend", "explain")],
    ),
    "archived results": (
        lambda folder, times: _results(folder, archived=True, times=times),
        lambda folder: [("status", folder / "results"), ("export", folder / "results", "--format", "csv")],
    ),
    "study": (_study, lambda folder: [("plan", folder / "own.yaml")]),
    "foreign": (
        _foreign,
        lambda folder: [
            ("topology", "import", folder / "nccl-tests.json"),
            ("topology", "import", folder / "osu.txt", "--world-size", "4"),
        ],
    ),
}
"""Kind of input -> makes one of so many times the size, and the commands that read it undamaged."""

REPORTS = [
    Base("report", lambda folder: _results(folder, archived=False), _report),
    Base("report of an archive", lambda folder: _results(folder, archived=True), _report),
]
