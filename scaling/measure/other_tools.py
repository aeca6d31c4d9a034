"""What other tools measured, as samples of a probe: nccl-tests and nvbandwidth, both by their `--json`.

- nccl-tests (src/util.cu): `results`, each with `size` in bytes and `out_of_place` or `in_place` with `time`
  in microseconds; the program's name in `args` tells the operation, `env` whether NCCL_P2P_DISABLE was set.
- nvbandwidth (json_output.cpp): `testcases`, each with a `bandwidth_matrix` of texts in GB/s. Copies by copy
  engines between host and GPU, and between GPUs, are read; the size is `bufferSize` in MiB, 512 unless told.

Each value is one sample: neither tool gives the single ones, so that their spread is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from scaling.measure.probe import Sample
from topologies.errors import TopologyError

PROGRAMS = {"all_reduce_perf": "all_reduce", "sendrecv_perf": "shift"}
"""nccl-tests' programs whose operation a probe measures too; sendrecv sends to the next rank."""

NVBANDWIDTH_BYTES = 512 << 20
HOST_COPIES = {"host_to_device_memcpy_ce": "h2d", "device_to_host_memcpy_ce": "d2h"}
PEER_COPIES = {"device_to_device_memcpy_write_ce": False, "device_to_device_memcpy_read_ce": True}
"""Test -> whether the row's GPU reads from the column's, so that bytes flow to the row."""


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
            found = list(_nvbandwidth(content["nvbandwidth"]))
        elif isinstance(content, dict) and "results" in content:
            found = list(_nccl_tests(content))
        else:
            raise TopologyError(f"{source}: neither nccl-tests' nor nvbandwidth's JSON")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"{source}: not as the tool writes it: {error!r}") from error
    if not found:
        raise TopologyError(f"{source}: no operation that a probe measures ({', '.join(PROGRAMS)}, copies)")
    return found


def _nccl_tests(content: Mapping[str, Any]) -> Iterator[Sample]:
    program = PurePath(str(content["args"][0])).name
    if program not in PROGRAMS:
        return
    config = content.get("config", {})
    gpus_of_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    # nccl-tests lists one device of each process.
    num_ranks = max(1, len(config.get("devices", content.get("devices", [])))) * gpus_of_process
    environment = {str(one) for one in content.get("env", [])}
    launch = "host_only" if "NCCL_P2P_DISABLE=1" in environment else "default"
    captured = bool(config.get("graph"))
    for result in content["results"]:
        times = [result.get(place) for place in ("in_place", "out_of_place")]
        known = [one["time"] for one in times if one and "time" in one]
        if known and result["size"]:
            seconds = float(known[0]) * 1e-6
            ranks = tuple(range(num_ranks))
            yield Sample(
                launch, PROGRAMS[program], ranks, "", captured, None, int(result["size"]), 1, seconds
            )


def _nvbandwidth(content: Mapping[str, Any]) -> Iterator[Sample]:
    num_bytes = int(content.get("bufferSize", NVBANDWIDTH_BYTES >> 20)) << 20
    for test in content["testcases"]:
        matrix = test.get("bandwidth_matrix", [])
        for row, values in enumerate(matrix):
            for column, text in enumerate(values):
                operation, ranks = _copy(test["name"], row, column)
                if operation and text != "N/A" and float(text) > 0:
                    seconds = num_bytes / (float(text) * 1e9)
                    memory = "pinned" if operation in HOST_COPIES.values() else ""
                    yield Sample("default", operation, ranks, memory, False, None, num_bytes, 1, seconds)


def _copy(test: str, row: int, column: int) -> tuple[str | None, tuple[int, ...]]:
    if test in HOST_COPIES:
        return HOST_COPIES[test], (column,)
    if test in PEER_COPIES and row != column:
        return "peer_copy", (column, row) if PEER_COPIES[test] else (row, column)
    return None, ()
