"""What other tools measured, as samples of a probe: nccl-tests and nvbandwidth, both by their `--json`.

- nccl-tests (src/util.cu): `results`, each with `size` in bytes and `out_of_place` or `in_place` with `time`
  in microseconds; the program's name in `args` tells the operation, `env` whether NCCL_P2P_DISABLE was set.
- nvbandwidth (json_output.cpp and testcases_ce.cpp, v0.8, commit 66746a3b): `testcases`, each with a
  `bandwidth_matrix` of texts in GB/s. Copies by copy engines between host and GPU, one GPU at a time or all
  at once, one way or both ways, and between two GPUs one way are read. Of copies both ways nvbandwidth tells
  one direction's bandwidth; the mean of the two tests stands for both. The size is `bufferSize` in MiB, 512
  by default. `scaling.measure.probe.imported_machine` puts them into a machine file.

Each value is one sample: neither tool gives the single ones, so that their spread is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Any

from scaling.measure.probe.cases import Sample
from topologies.errors import TopologyError

PROGRAMS = {"all_reduce_perf": "all_reduce", "sendrecv_perf": "shift"}
"""nccl-tests' programs whose operation a probe measures too; sendrecv sends to the next rank."""

NVBANDWIDTH_BYTES = 512 << 20
HOST_COPIES = {"host_to_device_memcpy_ce": "h2d", "device_to_host_memcpy_ce": "d2h"}
AT_ONCE = {"host_to_all_memcpy_ce": "h2d", "all_to_host_memcpy_ce": "d2h"}
BOTH_WAYS = ("host_to_device_bidirectional_memcpy_ce", "device_to_host_bidirectional_memcpy_ce")
BOTH_WAYS_AT_ONCE = ("host_to_all_bidirectional_memcpy_ce", "all_to_host_bidirectional_memcpy_ce")
PEER_COPIES = {"device_to_device_memcpy_write_ce": False, "device_to_device_memcpy_read_ce": True}
"""Test -> whether the row's GPU reads from the column's, so that bytes flow to the row."""


Rate = tuple[str, tuple[int, ...], float]
"""Operation, GPUs that take part, bytes a second of each and in each direction."""


def samples_of(text: str, source: str) -> list[Sample]:
    """Whatever of the two it is.

    Args:
        text: of the file.
        source: its name, for messages.

    Raises:
        TopologyError: it is neither, or measured nothing that a probe does.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise TopologyError(f"{source}: no JSON: {error}") from error
    try:
        if isinstance(content, dict) and "nvbandwidth" in content:
            results = list(_nvbandwidth(content["nvbandwidth"]))
        elif isinstance(content, dict) and "results" in content:
            results = list(_nccl_tests(content))
        else:
            raise TopologyError(f"{source}: neither nccl-tests' nor nvbandwidth's JSON")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"{source}: not as the tool writes it: {error!r}") from error
    if not results:
        raise TopologyError(f"{source}: no operation that a probe measures ({', '.join(PROGRAMS)}, copies)")
    return results


def _nccl_tests(content: Mapping[str, Any]) -> Iterator[Sample]:
    program = PurePath(str(content["args"][0])).name
    if program not in PROGRAMS:
        return
    config = content.get("config", {})
    gpus_of_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    # nccl-tests lists one device of each process.
    num_ranks = max(1, len(config.get("devices", content.get("devices", [])))) * gpus_of_process
    environment = {str(line) for line in content.get("env", [])}
    launch = "host_only" if "NCCL_P2P_DISABLE=1" in environment else "default"
    captured = bool(config.get("graph"))
    for result in content["results"]:
        times = [result.get(place) for place in ("in_place", "out_of_place")]
        known = [time["time"] for time in times if time and "time" in time]
        if known and result["size"]:
            seconds = float(known[0]) * 1e-6
            ranks = tuple(range(num_ranks))
            yield Sample(
                launch, PROGRAMS[program], ranks, "", captured, None, int(result["size"]), 1, seconds
            )


def nvbandwidth_version(text: str) -> str | None:
    """`nvbandwidth v0.8` where the JSON is nvbandwidth's, else None."""
    content = json.loads(text)
    results = content.get("nvbandwidth") if isinstance(content, dict) else None
    return f"nvbandwidth {results.get('version', '')}".strip() if isinstance(results, dict) else None


def _nvbandwidth(content: Mapping[str, Any]) -> Iterator[Sample]:
    num_bytes = int(content.get("bufferSize", NVBANDWIDTH_BYTES >> 20)) << 20
    matrices = {
        test["name"]: [[_rate(text) for text in values] for values in test.get("bandwidth_matrix") or []]
        for test in content["testcases"]
    }
    for operation, ranks, bytes_per_s in (*_single_copies(matrices), *_copies_at_once(matrices)):
        memory = "" if operation == "peer_copy" else "pinned"
        yield Sample("default", operation, ranks, memory, False, None, num_bytes, 1, num_bytes / bytes_per_s)


def _rate(text: str) -> float:
    """Bytes a second; 0 where it was not measured."""
    return 0.0 if text == "N/A" else max(0.0, float(text) * 1e9)


def _single_copies(matrices: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[Rate]:
    for test, matrix in matrices.items():
        for row, rates in enumerate(matrix):
            for column, rate in enumerate(rates):
                operation, ranks = _copy(test, row, column)
                if operation and rate:
                    yield operation, ranks, rate


def _copies_at_once(matrices: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[Rate]:
    """Of each GPU while all copy, or both ways: the mean, of the directions too."""
    for test, operation in AT_ONCE.items():
        rates = [rate for row in matrices.get(test, []) for rate in row]
        if rates and all(rates):
            yield operation, tuple(range(len(rates))), fmean(rates)
    singles, together = (
        [row for test in tests for row in matrices.get(test, [])] for tests in (BOTH_WAYS, BOTH_WAYS_AT_ONCE)
    )
    if len(singles) == len(BOTH_WAYS):
        for gpu, ways in enumerate(zip(*singles, strict=True)):
            if all(ways):
                yield "h2d_d2h", (gpu,), fmean(ways)
    rates = [rate for row in together for rate in row]
    if len(together) == len(BOTH_WAYS_AT_ONCE) and rates and all(rates):
        yield "h2d_d2h", tuple(range(len(together[0]))), fmean(rates)


def _copy(test: str, row: int, column: int) -> tuple[str | None, tuple[int, ...]]:
    if test in HOST_COPIES:
        return HOST_COPIES[test], (column,)
    if test in PEER_COPIES and row != column:
        return "peer_copy", (column, row) if PEER_COPIES[test] else (row, column)
    return None, ()
