"""What OSU micro-benchmarks print, as samples: all-reduces, and copies between two GPUs by osu_bw.

A header names test, library and version, a line of `#` the columns; then a size in bytes and the mean of the
ranks in microseconds, or MB (10^6 bytes) a second. Nothing tells how many ranks there were. Small messages of
osu_bw overlap, so that their rate is none of a message: rows below 1 MiB are left out.

Source: osu-micro-benchmarks 5.9 to 7.5, c/util/osu_util.h and c/mpi/pt2pt/osu_bw.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scaling.measure.probe.cases import MIB, ProbeSample
from topologies.errors import TopologyError

HEADER = re.compile(r"# OSU (?P<library>\S+?)(?:-(?P<device>\S+))? (?P<test>.+?) (?:Latency )?Test")
ROW = re.compile(r"\s*(\d+)\s+([\d.]+)(?:\s+[\d.]+)*\s*(Pass|Fail)?\s*")
BOTH_ON_GPUS = "Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)"
OF_GPUS = ("NCCL", "RCCL", "XCCL")


def is_osu(text: str) -> bool:
    return HEADER.search(text) is not None


def samples(text: str, source: str, world_size: int | None) -> tuple[list[ProbeSample], list[str]]:
    """The samples, and what is left out.

    Args:
        source: of it, for messages.

    Raises:
        TopologyError: it is no test that a probe measures too, results were wrong, or ranks are not given.
    """
    headers = list(HEADER.finditer(text))
    if len(headers) > 1:
        raise TopologyError(
            f"{source}: {len(headers)} tests of OSU in one text; give each in a file of its own"
        )
    library, device, test = headers[0]["library"], headers[0]["device"], headers[0]["test"]
    rows = [match for line in text.splitlines() if (match := ROW.fullmatch(line))]
    if wrong := [row[1] for row in rows if row[3] == "Fail"]:
        raise TopologyError(f"{source}: validation failed at size {wrong[0]}: its times mean nothing")
    on_gpus = library in OF_GPUS
    if test == "Allreduce" and (on_gpus or device is None):
        if world_size is None:
            raise TopologyError(f"{source}: OSU's output does not say how many ranks it had: --world-size N")
        operation = "all_reduce" if on_gpus else "mpi_all_reduce"
        return list(_all_reduces(rows, operation, world_size)), []
    if test == "Bandwidth" and (on_gpus or BOTH_ON_GPUS in text):
        large = [row for row in rows if int(row[1]) >= MIB and float(row[2])]
        left_out = (
            f"{len(rows) - len(large)} rows below 1 MiB: their messages overlap" if large != rows else ""
        )
        return list(_copies(large)), [left_out] if left_out else []
    raise TopologyError(
        f"{source}: OSU's '{headers[0][0].removeprefix('# ')}' is nothing that a probe measures; read are "
        "osu_allreduce of host memory (without -d), osu_xccl_allreduce, and osu_bw -d cuda D D. The rest "
        "measures `scaling topology probe --launcher mpirun`"
    )


def _all_reduces(rows: list[re.Match[str]], operation: str, world_size: int) -> Iterator[ProbeSample]:
    ranks = tuple(range(world_size))
    for row in rows:
        if float(row[2]):
            yield ProbeSample(
                "default", operation, ranks, "", False, None, int(row[1]), 1, float(row[2]) * 1e-6
            )


def _copies(rows: list[re.Match[str]]) -> Iterator[ProbeSample]:
    for row in rows:
        seconds = int(row[1]) / (float(row[2]) * 1e6)
        yield ProbeSample("default", "peer_copy", (0, 1), "", False, None, int(row[1]), 1, seconds)
