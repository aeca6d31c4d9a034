"""What other tools print, as their JSON or as samples.

nccl-tests (src/util.cu and src/common.cu, commit a0b82b2 and version 2.0): a table. A row has size, count,
type, redop, in newer versions root, then time in microseconds, algbw, busbw and errors, out of place and in
place. Older versions do not name the program: it follows from redop and busbw / algbw.

nvbandwidth (NVIDIA/nvbandwidth, output.cpp and README.md, v0.8): matrices in GB/s, without the buffers' size.

OSU micro-benchmarks (5.9 to 7.5, c/util/osu_util.h and c/mpi/pt2pt/osu_bw.c): all-reduces, and copies between
two GPUs by osu_bw. A size in bytes and the mean of the ranks in microseconds, or MB (10^6 bytes) a second.
Small messages of osu_bw overlap, so that rows below 1 MiB are left out.
"""

from __future__ import annotations

import re
from typing import Any

from scaling.measure.probe.cases import MIB, ProbeSample
from topologies.errors import TopologyError

GROUP = re.compile(r"Group\s+(\d+)")
RANK = re.compile(
    r"#\s+Rank\s+(?P<rank>\d+) .*? on\s+(?P<host>\S+)\s+device\s+(?P<device>\d+) \[(?P<bus>\S+)\]"
)
LABEL = re.compile(r"^(?:\([^)]*\) )?(?:\[\d+,\d+\](?:<std\w+>)?: ?|\d+: )?", re.MULTILINE)
"""What mpirun --tag-output, srun --label and Ray put before each line."""
PROGRAM = re.compile(r"# Collective test starting: (\S+)")
OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*: (\d+)")
ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s+\w+\s")
SIDE = 4
DIGIT = 0.01  # the last of the rates in GB/s
MOST_ERROR = 0.1  # relative, of versions before 2.13: rounding gives less


def is_nccl_tests(text: str) -> bool:
    return "algbw" in text and any(ROW.match(line) for line in _lines(text))


def _lines(text: str) -> list[str]:
    return LABEL.sub("", text).splitlines()


def nccl_tests_document(text: str, source: str) -> dict[str, Any]:
    """TopologyError: the program or the number of ranks cannot be told, or a row is cut off."""
    lines = _lines(text)
    rows = [line.split() for line in lines if ROW.match(line)]
    ranks = [match for line in lines if (match := RANK.match(line))]
    if len(ranks) > len({match["rank"] for match in ranks}):
        raise TopologyError(
            f"{source}: several runs in one text, as rank {ranks[0]['rank']} is there twice; give one run. "
            "(Under mpirun, nccl-tests built without MPI=1 runs once a process, each alone.)"
        )
    if not ranks:
        raise TopologyError(f"{source}: no line '#  Rank 0 ...': give the whole output, or JSON by -J FILE")
    if any("cputime" in line for line in lines if line.startswith("#")):
        raise TopologyError(f"{source}: measured with -C, which gives the CPU's time; run it again without")
    graph = next((match[1] for line in lines if (match := re.search(r"graph: (\d+)", line))), "0")
    bad = next((match[1] for line in lines if (match := OUT_OF_BOUNDS.match(line))), "0")
    named = next((match[1] for line in lines if (match := PROGRAM.match(line))), None)
    results = [_result(row, source) for row in rows]
    devices = [
        {
            "rank": int(match["rank"]),
            "group": int(group[1]) if (group := GROUP.search(match[0])) else 0,
            "hostname": match["host"],
            "device": int(match["device"]),
            "device_hex": match["bus"],
        }
        for match in ranks
    ]
    return {
        "args": [named or _program(results, len(ranks), source)],
        "config": {"graph": int(graph), "devices": devices},
        "results": results,
        "out_of_bounds": {"count": int(bad), "okay": bad == "0"},
    }


def _result(row: list[str], source: str) -> dict[str, Any]:
    # Newer versions have a root after redop.
    first = 4 if (len(row) - 4) % SIDE == 0 else 5
    sides = [row[at : at + SIDE] for at in range(first, len(row), SIDE)]
    try:
        out_of_place, in_place = (_side(*side) for side in sides)
    except (TypeError, ValueError):
        text = " ".join(row)
        raise TopologyError(
            f"{source}: row '{text:.80}' has not two times with rates; give whole rows"
        ) from None
    root = row[4] if first == 5 else "-1"
    result = {"size": int(row[0]), "redop": row[3], "root": root}
    return {**result, "out_of_place": out_of_place, "in_place": in_place}


def _side(time: str, algbw: str, busbw: str, wrong: str) -> dict[str, Any]:
    # Versions before 2.13 give the largest relative error, later ones the number of wrong elements.
    error = float(wrong) if wrong != "N/A" else 0.0
    nwrong = error if wrong.isdecimal() or error > MOST_ERROR else None
    return {"time": float(time), "alg_bw": float(algbw), "bus_bw": float(busbw), "nwrong": nwrong}


def _program(results: list[dict[str, Any]], num_ranks: int, source: str) -> str:
    largest = max(results, key=lambda result: int(result["size"]))
    side, redop = largest["in_place"], largest["redop"]
    factor = side["bus_bw"] / side["alg_bw"] if side["alg_bw"] else 0.0
    # Broadcasts and reductions have a root; broadcasts of old versions in place of redop.
    is_rooted = largest["root"] != "-1" or redop.isdecimal()
    if not is_rooted and redop != "none" and abs(factor - 2 * (num_ranks - 1) / num_ranks) < 0.05:
        return "all_reduce_perf"
    # All-gathers and the like have (n - 1) / n, which the digits must tell from 1.
    is_told = side["alg_bw"] / num_ranks > 2 * DIGIT
    if not is_rooted and redop == "none" and is_told and abs(side["bus_bw"] - side["alg_bw"]) < DIGIT:
        return "sendrecv_perf"
    raise TopologyError(
        f"{source}: which program of nccl-tests wrote this cannot be told (busbw / algbw {factor:.2f}, redop "
        f"{largest['redop']}, {num_ranks} ranks); read are all_reduce_perf and sendrecv_perf"
    )


NVBANDWIDTH_TEST = re.compile(r"\s*Running (?:benchmark )?(\w+)\.")
NVBANDWIDTH_ROW = re.compile(r"\s*\d+((?:\s+(?:\d+\.\d+|N/A))+)\s*")
NVBANDWIDTH_VERSION = re.compile(r"nvbandwidth Version: (\S+)")


def is_nvbandwidth(text: str) -> bool:
    return "bandwidth (GB/s)" in text and any(NVBANDWIDTH_TEST.match(line) for line in text.splitlines())


def nvbandwidth_document(text: str) -> dict[str, Any]:
    """The same as nvbandwidth's JSON; a test that failed has no matrix."""
    cases: list[dict[str, Any]] = []
    for line in text.splitlines():
        if match := NVBANDWIDTH_TEST.match(line):
            cases.append({"name": match[1], "bandwidth_matrix": []})
        elif cases and (row := NVBANDWIDTH_ROW.fullmatch(line)):
            cases[-1]["bandwidth_matrix"].append(row[1].split())
    version = NVBANDWIDTH_VERSION.search(text)
    return {"nvbandwidth": {"version": version[1] if version else "", "testcases": cases}}


OSU_HEADER = re.compile(r"# OSU (?P<library>\S+?)(?:-(?P<device>\S+))? (?P<test>.+?) (?:Latency )?Test")
OSU_ROW = re.compile(r"\s*(\d+)\s+([\d.]+)(?:\s+[\d.]+)*\s*(Pass|Fail)?\s*")
BOTH_ON_GPUS = "Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)"
OF_GPUS = ("NCCL", "RCCL", "XCCL")


def is_osu(text: str) -> bool:
    return OSU_HEADER.search(text) is not None


def osu_samples(text: str, source: str, world_size: int | None) -> tuple[list[ProbeSample], list[str]]:
    """And what is left out. TopologyError: no test of a probe, wrong results, or ranks are not given."""
    headers = list(OSU_HEADER.finditer(text))
    if len(headers) > 1:
        raise TopologyError(
            f"{source}: {len(headers)} tests of OSU in one text; give each in a file of its own"
        )
    library, device, test = headers[0]["library"], headers[0]["device"], headers[0]["test"]
    rows = [match for line in text.splitlines() if (match := OSU_ROW.fullmatch(line))]
    if wrong := [row[1] for row in rows if row[3] == "Fail"]:
        raise TopologyError(f"{source}: validation failed at size {wrong[0]}: its times mean nothing")
    on_gpus = library in OF_GPUS
    if test == "Allreduce" and (on_gpus or device is None):
        if world_size is None:
            raise TopologyError(f"{source}: OSU's output does not say how many ranks it had: --world-size N")
        operation = "all_reduce" if on_gpus else "mpi_all_reduce"
        ranks, timed = tuple(range(world_size)), [(int(row[1]), float(row[2]) * 1e-6) for row in rows]
        return [
            ProbeSample("default", operation, ranks, "", False, None, size, 1, seconds)
            for size, seconds in timed
            if seconds
        ], []
    if test == "Bandwidth" and (on_gpus or BOTH_ON_GPUS in text):
        large = [(int(row[1]), float(row[2]) * 1e6) for row in rows if int(row[1]) >= MIB and float(row[2])]
        small = len(rows) - len(large)
        copies = [
            ProbeSample("default", "peer_copy", (0, 1), "", False, None, size, 1, size / bytes_per_s)
            for size, bytes_per_s in large
        ]
        return copies, [f"{small} rows below 1 MiB: their messages overlap"] if small else []
    raise TopologyError(
        f"{source}: OSU's '{headers[0][0].removeprefix('# ')}' is nothing that a probe measures; read are "
        "osu_allreduce of host memory (without -d), osu_xccl_allreduce, and osu_bw -d cuda D D. The rest "
        "measures `scaling topology probe --launcher mpirun`"
    )
