"""What `scaling topology probe` measures: operations, who runs them at the same time, and for how long.

Here is no torch. Bandwidths are those of nccl-tests (doc/PERFORMANCE.md): busbw of an all-reduce of n ranks
is 2(n-1)/n of algbw, bytes over time; of sends it is algbw itself.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations, permutations
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

PRECISIONS = ("float32", "tf32", "bf16", "fp16")  # of products of matrices; processors have no TF32

ALL_REDUCES = ("all_reduce", "mpi_all_reduce")

Memory = Literal["pinned", "pageable", ""]

BYTES_MOVED: Mapping[str, int] = {"host_copy": 2, "device_copy": 2, "host_sum": 3, "device_sum": 3}
"""In the memory that is measured, read and written together, for each byte of the size."""

KIB, MIB = 1 << 10, 1 << 20
MESSAGE_SIZES = tuple(4 * KIB * 4**step for step in range(10))  # 4 KiB to 1 GiB
PAIR_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB)
COPY_SIZES = (64 * KIB, MIB, 16 * MIB, 256 * MIB)
PAGEABLE_SIZES = (MIB, 64 * MIB)
MEMORY_SIZES = (256 * MIB,)  # beyond the caches of server processors, with two buffers a rank
MEMORY_SIZES_WITHOUT_GPU = (64 * MIB,)


def matrix_sizes(*, on_gpus: bool) -> tuple[int, ...]:
    return (2048, 4096, 8192) if on_gpus else (256, 512, 1024, 2048)


SAMPLE_S = 2e-3
BETWEEN_SAMPLES_S = 1e-3  # ranks meet, and agree on the slowest
MAX_REPEATS = 100
MIN_SAMPLES, MAX_SAMPLES = 3, 30
WARM_UPS = 3
"""One sets up connections and memory, outside the case's time; one operation; several, to size a sample."""

WAKE_S = 0.5
"""Before the first case every rank keeps its device busy for so long: idle ones lower their clocks."""


@dataclass(frozen=True)
class ProbeCase:
    """One operation: copies between host and device (`h2d`, `d2h`, and `h2d_d2h`, both at once, each of the
    size); a copy into a peer's memory (`peer_copy`), from every rank to the next at once (`peer_shift`);
    messages, one (`send`), both ways (`swap`), from every rank to the next (`shift`); `ranks`: one, a pair
    (from, to), or all at once; `sizes_bytes`: ascending; fewer are measured where the time is short;
    `memory`: on the host; `captured`: replayed from a CUDA graph."""

    operation: str
    ranks: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    memory: Memory = ""
    captured: bool = False
    num_threads: int | None = None
    weight: float = 1.0

    def describe(self) -> str:
        details = [self.operation, self.memory, "captured" if self.captured else ""]
        threads = f", {self.num_threads} thread" if self.num_threads else ""
        who = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{' '.join(filter(None, details))}, {who} {' '.join(map(str, self.ranks))}{threads}"


@dataclass(frozen=True)
class ProbeSample:
    """One of several in a row, on the slowest rank. `launch`: "default", or "host_only": no peer access."""

    launch: str
    operation: str
    ranks: Annotated[tuple[Annotated[int, Field(ge=0, le=10**6)], ...], Field(min_length=1)]
    memory: str
    captured: bool
    num_threads: Annotated[int, Field(ge=1)] | None
    num_bytes: Annotated[int, Field(ge=1, lt=2**62)]
    repeats: Annotated[int, Field(ge=1, lt=2**62)]
    seconds: Annotated[float, Field(gt=0, lt=1e9)]

    @property
    def series(self) -> tuple[Any, ...]:
        return (self.launch, self.operation, self.ranks, self.memory, self.captured, self.num_threads)

    @property
    def product_size(self) -> int | None:
        return product_size(self.operation, self.num_bytes)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ProbeSample:
        return cls(**{**row, "ranks": tuple(row["ranks"])})


def product_size(operation: str, num_bytes: int) -> int | None:
    precision = operation.removeprefix("product_")
    return math.isqrt(num_bytes // _bytes_of(precision)) if precision != operation else None


def _bytes_of(precision: str) -> int:
    return 2 if precision in ("bf16", "fp16") else 4


def cases(
    world_size: int,
    *,
    on_gpus: bool,
    peer_copies: bool = False,
    only_messages: bool = False,
    with_mpi: bool = False,
    with_products: bool = False,
) -> list[ProbeCase]:
    """In this order. `world_size`: ranks, each with a GPU or as a process on the CPU; `only_messages`: no
    copies, sums and MPI, which another launch measures; `with_products`: also products of matrices."""
    cases: list[ProbeCase] = []
    if not only_messages:
        cases += _memory_cases(world_size, on_gpus=on_gpus)
        cases += _copy_cases(world_size) if on_gpus else []
    if with_products:
        cases += _product_cases(world_size, on_gpus=on_gpus)
    if peer_copies:
        cases += [ProbeCase("peer_copy", pair, COPY_SIZES) for pair in permutations(range(world_size), 2)]
        cases.append(ProbeCase("peer_shift", tuple(range(world_size)), COPY_SIZES))
    cases += _message_cases(world_size, on_gpus=on_gpus)
    if with_mpi and world_size > 1 and not only_messages:
        everyone = tuple(range(world_size))
        memory: Memory = "pinned" if on_gpus else ""
        cases.append(ProbeCase("mpi_all_reduce", everyone, MESSAGE_SIZES, memory, weight=4))
    return cases


def _memory_cases(world_size: int, *, on_gpus: bool) -> Iterator[ProbeCase]:
    everyone = tuple(range(world_size))
    sizes = MEMORY_SIZES if on_gpus else MEMORY_SIZES_WITHOUT_GPU
    yield ProbeCase("host_copy", everyone, sizes)
    yield ProbeCase("host_sum", everyone, sizes)
    yield ProbeCase("host_sum", (0,), sizes, num_threads=1)
    for rank in everyone:
        if on_gpus:
            yield ProbeCase("device_copy", (rank,), sizes)
            yield ProbeCase("device_sum", (rank,), sizes)
        elif world_size > 1:
            yield ProbeCase("host_copy", (rank,), sizes)


def _copy_cases(world_size: int) -> Iterator[ProbeCase]:
    alone = [(rank,) for rank in range(world_size)]
    for ranks in [*alone, tuple(range(world_size))] if world_size > 1 else alone:
        for operation in ("h2d", "d2h", "h2d_d2h"):
            yield ProbeCase(operation, ranks, COPY_SIZES, "pinned")
        yield ProbeCase("h2d", ranks, PAGEABLE_SIZES, "pageable")
        yield ProbeCase("d2h", ranks, PAGEABLE_SIZES, "pageable")


def _product_cases(world_size: int, *, on_gpus: bool) -> Iterator[ProbeCase]:
    everyone = tuple(range(world_size))
    for precision in PRECISIONS:
        if on_gpus or precision != "tf32":
            sizes = tuple(_bytes_of(precision) * size**2 for size in matrix_sizes(on_gpus=on_gpus))
            for ranks in [(rank,) for rank in everyone] if on_gpus else [everyone]:
                yield ProbeCase(f"product_{precision}", ranks, sizes)


def _message_cases(world_size: int, *, on_gpus: bool) -> Iterator[ProbeCase]:
    """Eager and captured on GPUs; on the CPU there is nothing to capture."""
    if world_size < 2:
        return
    everyone = tuple(range(world_size))
    weight = 2 if on_gpus else 1  # to capture takes time
    for pair in combinations(everyone, 2):
        yield ProbeCase("send", pair, PAIR_SIZES, captured=on_gpus, weight=weight)
    yield ProbeCase("swap", (0, 1), PAIR_SIZES, captured=on_gpus, weight=weight)
    for captured in (False, True) if on_gpus else (False,):
        yield ProbeCase("shift", everyone, MESSAGE_SIZES, captured=captured, weight=3)
        yield ProbeCase("all_reduce", everyone, MESSAGE_SIZES, captured=captured, weight=4)


def repeats_for(once_s: float) -> int:
    """Operations in a row that make a sample, so that starting and ending it count little."""
    return max(1, min(MAX_REPEATS, math.ceil(SAMPLE_S / max(once_s, 1e-9))))


def num_samples_for(left_s: float, sizes_left: int, sample_s: float) -> int:
    """Samples of a size: its share of the time that the case has left."""
    share_s = left_s / max(sizes_left, 1)
    return max(MIN_SAMPLES, min(MAX_SAMPLES, int(share_s / (sample_s + BETWEEN_SAMPLES_S))))


def goes_on(position: int, sizes_bytes: Sequence[int], left_s: float, once_s: float) -> bool:
    """The first two sizes always, others if there is time. `once_s`: one operation of the size before."""
    if position < 2:
        return True
    growth = sizes_bytes[position] / sizes_bytes[position - 1]
    return once_s * growth * (WARM_UPS - 1 + MIN_SAMPLES) <= left_s


def bus_factor(operation: str, world_size: int) -> float:
    return 2 * (world_size - 1) / world_size if operation in ALL_REDUCES else 1.0


def as_csv(samples: Iterable[ProbeSample]) -> str:
    """`algbw` and `busbw` in bytes a second; products of matrices have none, and one matrix's `num_bytes`."""
    text = io.StringIO()
    names = [field.name for field in fields(ProbeSample)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "algbw_bytes_per_s", "busbw_bytes_per_s"])
    for sample in samples:
        row = {**asdict(sample), "ranks": " ".join(map(str, sample.ranks))}
        algbw = sample.num_bytes / sample.seconds
        busbw = algbw * bus_factor(sample.operation, len(sample.ranks))
        row["seconds"] = f"{sample.seconds:.7g}"  # clocks here tell nanoseconds at best
        bandwidths = [f"{algbw:.6g}", f"{busbw:.6g}"] if sample.product_size is None else ["", ""]
        writer.writerow([*(row[name] for name in names), *bandwidths])
    return text.getvalue()


ROW = TypeAdapter(ProbeSample)


def from_csv(text: str) -> list[ProbeSample]:
    """To the digits that `as_csv` keeps. ValueError: a column is missing, or a value; names the line."""
    samples = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text), strict=True), 2):
        ranks, num_threads = (row.get("ranks") or "").split(), row.get("num_threads") or None
        values = {**row, "ranks": ranks, "num_threads": num_threads}
        try:
            samples.append(ROW.validate_python(values))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = problem["loc"][0]
            what = f"{key} is {values.get(str(key))!r:.40}: {problem['msg']}"
            raise ValueError(f"line {number} is damaged: {what}") from None
    return samples
