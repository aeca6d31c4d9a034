"""What other tools measured, as samples of a probe: nccl-tests and nvbandwidth (text or JSON), OSU's text.

- nccl-tests (src/util.cu): `time` in microseconds; `args` tells the operation, `env` NCCL_P2P_DISABLE.
- nvbandwidth (json_output.cpp and testcases_ce.cpp, v0.8, commit 66746a3b): `bandwidth_matrix` in GB/s, of
  copies by copy engines. Of copies both ways it tells one direction; the mean of the two tests stands for
  both. The size is `bufferSize` in MiB, 512 by default.

Neither tool gives the single samples, so that their spread is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from scaling.files.documents import DocumentError, from_json, shown_path
from scaling.measure.probe.cases import ProbeSample
from scaling.measure.probe.tool_texts import (
    is_nccl_tests,
    is_nvbandwidth,
    is_osu,
    nccl_tests_document,
    nvbandwidth_document,
    osu_samples,
)
from topologies.errors import TopologyError

PROGRAMS = {"all_reduce_perf": "all_reduce", "sendrecv_perf": "shift"}
"""nccl-tests' programs whose operation a probe measures too; sendrecv sends to the next rank."""

READ = (
    "read are nccl-tests' output or JSON (-J FILE), nvbandwidth's (-j), and the text of osu_allreduce and "
    "osu_bw; `scaling topology probe` measures all of it"
)
NVBANDWIDTH_BYTES = 512 << 20
HOST_COPIES = {"host_to_device_memcpy_ce": "h2d", "device_to_host_memcpy_ce": "d2h"}
AT_ONCE = {"host_to_all_memcpy_ce": "h2d", "all_to_host_memcpy_ce": "d2h"}
BOTH_WAYS = ("host_to_device_bidirectional_memcpy_ce", "device_to_host_bidirectional_memcpy_ce")
BOTH_WAYS_AT_ONCE = ("host_to_all_bidirectional_memcpy_ce", "all_to_host_bidirectional_memcpy_ce")
PEER_COPIES = {"device_to_device_memcpy_write_ce": False, "device_to_device_memcpy_read_ce": True}
"""Test -> whether the row's GPU reads from the column's, so that bytes flow to the row."""


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


Few = Annotated[int, Field(ge=1, le=4096)]


class _Time(_Open):
    time: Annotated[float, Field(gt=0, lt=1e15)]
    nwrong: float | None = None


class _NcclResult(_Open):
    size: Annotated[int, Field(ge=0, lt=2**62)]
    in_place: _Time | None = None
    out_of_place: _Time | None = None


class _OutOfBounds(_Open):
    count: int = 0
    okay: bool = True


class _NcclConfig(_Open):
    nthreads: Few = 1
    ngpus: Few = 1
    graph: int = 0
    devices: Annotated[list[Any], Field(max_length=4096)] | None = None


class _NcclTests(_Open):
    args: Annotated[list[str], Field(min_length=1)]
    env: list[str] = []
    config: _NcclConfig = _NcclConfig()
    devices: Annotated[list[Any], Field(max_length=4096)] = []
    results: list[_NcclResult]
    out_of_bounds: _OutOfBounds = _OutOfBounds()


def _is_rate(text: str) -> str:
    if text == "N/A" or 0 <= float(text) < 1e9:
        return text
    raise ValueError("should be a rate in GB/s, or N/A")


class _NvTest(_Open):
    name: str
    bandwidth_matrix: list[list[Annotated[str, AfterValidator(_is_rate)]]] | None = None


class _NvBandwidth(_Open):
    version: str = ""
    bufferSize: Annotated[int, Field(ge=1, le=1 << 24)] = NVBANDWIDTH_BYTES >> 20  # noqa: N815 (its name there)
    testcases: list[_NvTest]


Tool = TypeVar("Tool", bound=BaseModel)

Rate = tuple[str, tuple[int, ...], float]
"""Operation, GPUs that take part, bytes a second of each and in each direction."""


def samples_of(text: str, source: str, world_size: int | None = None) -> tuple[list[ProbeSample], list[str]]:
    """The samples, and what is left out or to be known, a line each. `world_size`: where the text does not
    say (OSU). TopologyError: the text is none of them, is wrong, or has nothing that a probe measures."""
    if is_osu(text):
        figures, notes = osu_samples(text, source, world_size)
    else:
        content = _document(text, source)
        if isinstance(content, dict) and "nvbandwidth" in content:
            read = _checked(_NvBandwidth, content["nvbandwidth"], source)
            figures, notes = list(_nvbandwidth(read)), _unread_tests(read)
        elif isinstance(content, dict) and "results" in content:
            sides = _dicts([result.get("in_place") for result in _dicts(content["results"])])
            if any("cpu_time" in side for side in sides):
                raise TopologyError(
                    f"{source}: measured with -C, which gives the CPU's time; run it again without"
                )
            tests = _checked(_NcclTests, content, source)
            figures, notes = list(_nccl_tests(tests, source)), _placement(tests)
        else:
            raise TopologyError(f"{source}: neither nccl-tests nor nvbandwidth nor OSU; {READ}")
    if not figures:
        raise TopologyError(f"{source}: no operation that a probe measures ({', '.join(PROGRAMS)}, copies)")
    return figures, notes


def _document(text: str, source: str) -> Any:
    if is_nvbandwidth(text):
        return nvbandwidth_document(text)
    try:
        return nccl_tests_document(text, source) if is_nccl_tests(text) else from_json(text)
    except DocumentError as error:
        raise TopologyError(f"{source}: {error}; {READ}") from None


def _checked(model: type[Tool], values: Any, source: str) -> Tool:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key, message = shown_path(problem["loc"]) or "the document", problem["msg"]
        given = "" if isinstance(problem["input"], dict | list) else f" is {problem['input']!r:.40}"
        raise TopologyError(f"{source}: not as the tool writes it: {key}{given}: {message}") from None


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _check_results(content: _NcclTests, source: str) -> None:
    for result in content.results:
        for side in (result.in_place, result.out_of_place):
            if side is not None and side.nwrong:
                raise TopologyError(
                    f"{source}: {side.nwrong:.0f} wrong values at size {result.size} (nwrong): the exchange "
                    "does not work there, so that its times mean nothing; mend it and measure again"
                )
    if _num_ranks(content) < 2:
        raise TopologyError(
            f"{source}: one rank alone exchanges nothing; run it with -g N, or under mpirun built with MPI=1"
        )
    groups = {device.get("group", 0) for device in _devices(content)}
    if len(groups) > 1:
        raise TopologyError(
            f"{source}: ranks in {len(groups)} groups, each with an exchange of its own; run it without "
            "NCCL_TESTS_SPLIT"
        )
    if not content.out_of_bounds.okay:
        raise TopologyError(f"{source}: out_of_bounds is not okay; nccl-tests calls this run failed")


def _nccl_tests(content: _NcclTests, source: str) -> Iterator[ProbeSample]:
    _check_results(content, source)
    program = PurePath(content.args[0]).name.removesuffix("_mpi")
    if program not in PROGRAMS:
        return
    config, num_ranks = content.config, _num_ranks(content)
    launch = "host_only" if "NCCL_P2P_DISABLE=1" in content.env else "default"
    for result in content.results:
        times = [side.time for side in (result.in_place, result.out_of_place) if side is not None]
        if times and result.size:
            seconds = times[0] * 1e-6
            ranks = tuple(range(num_ranks))
            captured = bool(config.graph)
            yield ProbeSample(launch, PROGRAMS[program], ranks, "", captured, None, result.size, 1, seconds)


def _devices(content: _NcclTests) -> list[dict[str, Any]]:
    return _dicts(content.devices if content.config.devices is None else content.config.devices)


def _num_ranks(content: _NcclTests) -> int:
    return max(1, len(_devices(content))) * content.config.nthreads * content.config.ngpus


def _placement(content: _NcclTests) -> list[str]:
    """Hosts and GPUs of the ranks, where they are not one host with a GPU a rank."""
    devices, num_ranks = _devices(content), _num_ranks(content)
    hosts = {device["hostname"] for device in devices if "hostname" in device}
    keys = ("hostname", "device", "device_hex")
    places = [tuple(device[key] for key in keys) for device in devices if {*keys} <= {*device}]
    notes = []
    if len(hosts) > 1:
        notes.append(
            f"{num_ranks} ranks on {len(hosts)} hosts: they calibrate a machine of {len(hosts)} hosts alone, "
            f"with {num_ranks / len(hosts):g} GPUs each"
        )
    if len({*places}) < len(places):
        notes.append(f"{len(places)} ranks on {len({*places})} GPUs: they share GPUs, and are slower for it")
    return notes


def nvbandwidth_version(text: str) -> str | None:
    """`nvbandwidth v0.8` where the text is nvbandwidth's, else None."""
    try:
        content = _document(text, "")
    except TopologyError:
        return None
    results = content.get("nvbandwidth") if isinstance(content, dict) else None
    return f"nvbandwidth {results.get('version', '')}".strip() if isinstance(results, dict) else None


def _nvbandwidth(content: _NvBandwidth) -> Iterator[ProbeSample]:
    num_bytes = content.bufferSize << 20
    matrices = {
        test.name: [[_rate(text) for text in values] for values in test.bandwidth_matrix or []]
        for test in content.testcases
    }
    for operation, ranks, bytes_per_s in (*_single_copies(matrices), *_copies_at_once(matrices)):
        memory = "" if operation == "peer_copy" else "pinned"
        yield ProbeSample(
            "default", operation, ranks, memory, False, None, num_bytes, 1, num_bytes / bytes_per_s
        )


def _unread_tests(content: _NvBandwidth) -> list[str]:
    read = {*HOST_COPIES, *AT_ONCE, *BOTH_WAYS, *BOTH_WAYS_AT_ONCE, *PEER_COPIES}
    failed = [test.name for test in content.testcases if test.name in read and not test.bandwidth_matrix]
    unread = [test.name for test in content.testcases if test.name not in read]
    notes = [f"{', '.join(failed)}: no figures (failed or waived)"] if failed else []
    notes += [f"not used: {', '.join(unread)}"] if unread else []
    is_told = "bufferSize" in content.model_fields_set
    return notes + ([] if is_told else ["size of the copies: not told, 512 MiB taken"])


def _rate(text: str) -> float:
    return 0.0 if text == "N/A" else float(text) * 1e9


def _single_copies(matrices: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[Rate]:
    for test, matrix in matrices.items():
        for row, rates in enumerate(matrix):
            for column, rate in enumerate(rates):
                if rate and test in HOST_COPIES:
                    yield HOST_COPIES[test], (column,), rate
                elif rate and test in PEER_COPIES and row != column:
                    yield "peer_copy", (column, row) if PEER_COPIES[test] else (row, column), rate


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
