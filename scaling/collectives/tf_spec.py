"""The language in which TensorFlow's benchmarks say which tensors are reduced how: all_reduce_spec.

    spec       = range_spec, { ":", limit, ":", range_spec } ;
    limit      = int, [ "k" | "K" | "M" | "G" | "T" ] ;           powers of 1024
    range_spec = algorithm, [ "/", algorithm ], [ "#", int ] ;    inside / between nodes, shards

`pscpu:2k:pscpu#2:64k:xring` has three tiers: tensors of up to 2,048 elements, of up to 65,536, and the rest.
A tensor is of the first tier whose limit it does not exceed. Limits are elements, as the code compares them;
the help of the flag says bytes.

Reference: tensorflow/benchmarks, scripts/tf_cnn_benchmarks/allreduce.py (`parse_general_int`,
`parse_all_reduce_spec`, `split_grads_by_size`). Differences: `rechd` alone is allowed, there only
`nccl/rechd` is; a limit that is not above the one before it is refused, there its tier is silently empty; so
are shards that the algorithm does not know.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple, NoReturn

from scaling.errors import StudyError

SUFFIXES = {"": 1, "k": 1024, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
ALGORITHMS = (
    "nccl", "nccl/xring", "nccl/rechd", "nccl/pscpu", "xring", "rechd", "pscpu", "psgpu", "pscpu/pscpu",
    "collective",
)  # fmt: skip
MAX_COLLECTIVE_SHARDS = 2
UNSHARDED = ("nccl", "nccl/rechd", "rechd")
NO_LIMIT = -1


class Tier(NamedTuple):
    """Tensors of up to `limit` elements (-1: of any size) are reduced by `algorithm` in `shards` shards."""

    algorithm: str
    shards: int
    limit: int

    @property
    def inside(self) -> str:
        """The algorithm between the ranks of one node."""
        return self.algorithm.partition("/")[0]

    @property
    def inside_shards(self) -> int:
        """Shards inside it; those of `a/b` belong to b, between nodes."""
        return 1 if "/" in self.algorithm else self.shards


def parse_spec(spec: str) -> list[Tier]:
    """The tiers of an all_reduce_spec, in order; the last has no limit.

    Raises:
        StudyError: naming the part that is wrong and what is allowed.
    """
    fields = spec.split(":")
    if len(fields) % 2 == 0:
        _refuse(
            spec,
            "it ends with a limit",
            "algorithms and limits alternate, and an algorithm for the rest is last",
        )
    limits = [_limit(spec, field) for field in fields[1::2]]
    for before, limit in pairwise(limits):
        if limit <= before:
            _refuse(spec, f"limit {limit} follows {before}", "each limit is above the one before it")
    algorithms = [_algorithm(spec, field) for field in fields[::2]]
    return [Tier(*algorithm, limit) for algorithm, limit in zip(algorithms, [*limits, NO_LIMIT], strict=True)]


def tier_of(tiers: list[Tier], num_elements: int) -> int:
    """The index of the tier of a tensor of that size."""
    return next(i for i, tier in enumerate(tiers) if tier.limit == NO_LIMIT or num_elements <= tier.limit)


def _limit(spec: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([kKMGT]?)", text)
    if match is None or not int(match[1]):
        _refuse(
            spec,
            f"limit {text!r}",
            "a limit is a whole number above 0, with k, K, M, G or T behind it or not",
        )
    return int(match[1]) * SUFFIXES[match[2]]


def _algorithm(spec: str, text: str) -> tuple[str, int]:
    algorithm, mark, shards = text.partition("#")
    if algorithm not in ALGORITHMS:
        _refuse(spec, f"algorithm {algorithm!r}", f"the algorithms are {', '.join(ALGORITHMS)}")
    if not mark:
        return algorithm, 1
    if re.fullmatch(r"[0-9]+", shards) is None or not int(shards):
        _refuse(spec, f"{shards!r} shards of {algorithm}", "shards are a whole number above 0")
    if int(shards) > 1 and algorithm in UNSHARDED:
        _refuse(spec, f"{shards} shards of {algorithm}", f"{algorithm} has no shards")
    if int(shards) > MAX_COLLECTIVE_SHARDS and algorithm == "collective":
        _refuse(spec, f"{shards} shards of collective", "1 and 2 are allowed")
    return algorithm, int(shards)


def _refuse(spec: str, problem: str, rule: str) -> NoReturn:
    raise StudyError(f"all_reduce_spec {spec!r}: {problem}: {rule}")
