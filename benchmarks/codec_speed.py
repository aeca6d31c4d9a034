"""Codecs by chunks on one GPU: Triton's kernels compared with plain torch.

    python benchmarks/codec_speed.py --out FILE.json [--elements N ...] [--codecs NAME ...] [--world-size 4]
        [--samples 15] [--blocks ELEMENTS,WHOLE,ELEMENTS_A_WARP ...]

Every codec works by both ways in one process on the same buffers, as rank 0 of `--world-size` would in the
aggregator of its name with its default parameters. What they write is compared first: codes must be equal;
heads, residuals and decoded values equal up to the rounding of sums in another order. A sample is one call
between two CUDA events, kernels and plain torch taking turns; the table has medians with quartiles, and GB/s
of the bytes that must move: each of gradient, residual, momentum and random words once where it is read and
once where it is written, and the codes. "graph" is the same call of the kernels replayed from a CUDA graph.

- encode: the own gradient, with the new residual.
- encode sums: all ranks' rows of the own stripe, added and encoded again; for codecs that go by stripes.
- decode: what `aggregate` ends with, the sums of all stripes; the rows of all ranks where they are gathered.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from one_bit_speed import Call, captured, seconds_of, summary
from torch import Tensor

from scaling.aggregators.gathered import GatheredChunks
from scaling.aggregators.registry import create
from scaling.aggregators.striped import Striped
from scaling.bucket import BucketLayout
from scaling.codecs.chunks import ChunkCodec, ChunkCoder, Momentum, TorchChunks
from scaling.codecs.finite import FiniteWatch
from scaling.codecs.kernels.chunk_engine import BlockSize, TritonChunks
from scaling.codecs.noise import Noise
from scaling.measure.environment import collect

NAMES = ("one_bit_flat", "ef_sign", "sign", "two_bit", "one_bit_momentum", "qsgd")
ELEMENTS = (122_194_048, 14_205_962)
"""Parameters of fcn-s4 and FCN-R."""
TOLERANCE = 1e-4
"""Of heads, relatively; and the share of words of QSGD's codes that may differ, as its heads decide them."""


@dataclass(frozen=True)
class Way:
    """How an aggregator uses its codec.

    Attributes:
        codec, back: of the gradient and of the sums.
        by_stripes: whether sums are encoded again.
        feeds_back: whether there is a residual of the gradient, and of the sums.
        momentum: its factor; 0 without.
    """

    codec: ChunkCodec
    back: ChunkCodec
    by_stripes: bool
    feeds_back: tuple[bool, bool]
    momentum: float

    @classmethod
    def of(cls, name: str) -> Way:
        """That of an aggregator with its default parameters."""
        aggregator = create(name)
        if isinstance(aggregator, Striped):
            codecs = aggregator.codec(), aggregator.codec_back()
            return cls(*codecs, True, aggregator.feeds_back(), aggregator.own_momentum())
        if isinstance(aggregator, GatheredChunks):
            codec = aggregator.codec()
            return cls(codec, codec, False, (aggregator.feeds_back(), False), aggregator.own_momentum())
        raise ValueError(f"--codecs: allowed are {', '.join(NAMES)}, got {name}")


class Side:
    """One way of computing, with buffers of its own for what it writes."""

    def __init__(self, coder: ChunkCoder, way: Way, world_size: int) -> None:
        self.coder, self.way, self.world_size = coder, way, world_size
        chunks, device = coder.chunks, coder.device
        size, n = chunks.chunk_elements, chunks.num_elements
        self.own = math.ceil(chunks.num_chunks / world_size)
        layout = BucketLayout.of([("flat", (n,))])

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        rows, rows_back = way.codec.row_words(size), way.back.row_words(size)
        num_rows = 1 if way.by_stripes else world_size
        self.residual = zeros(chunks.padded if way.feeds_back[0] else 0)
        self.stripe_residual = zeros(self.own if way.feeds_back[1] else 0, size)
        self.momentum = Momentum(zeros(chunks.padded), way.momentum) if way.momentum else None
        self.noise = Noise(chunks.padded, 3, device) if way.codec.needs_noise else None
        self.rows = zeros(num_rows, chunks.num_chunks, rows, dtype=torch.int32)
        self.sums = zeros(1, chunks.num_chunks, rows_back, dtype=torch.int32) if way.by_stripes else self.rows
        self.received = zeros(world_size, self.own, rows, dtype=torch.int32)
        self.result = zeros(n)
        self.watch = FiniteWatch.of_chunks(layout, size, device)

    def calls(self, gradient: Tensor) -> dict[str, Call]:
        """What is timed."""
        coder, way = self.coder, self.way

        def encode() -> None:
            coder.encode(gradient, self.residual, self.rows[0], self.momentum, self.noise)

        def encode_sums() -> None:
            coder.encode_sums(self.received, self.stripe_residual, self.sums[0, : self.own], 0, 0)

        def decode() -> None:
            divisor = 1 if way.codec.name == "sign" else self.world_size
            coder.decode(self.sums, divisor, self.result, self.watch, self.momentum)

        sums = {"encode sums": encode_sums} if way.by_stripes else {}
        return {"encode": encode, **sums, "decode": decode}

    def moved(self, name: str) -> float:
        """Bytes that a call must move."""
        n, way = self.result.numel(), self.way
        size = self.own * self.coder.chunks.chunk_elements
        up, down = 4 * self.rows[0].numel(), 4 * self.sums[0].numel()
        if name == "encode":
            added = 2 * way.feeds_back[0] + bool(way.momentum) + way.codec.needs_noise
            return 4.0 * n * (1 + added) + up
        if name == "encode sums":
            return 4.0 * (2 * size * way.feeds_back[1] + self.received.numel()) + down * size / n
        return 4.0 * (n * (1 + bool(way.momentum)) + self.sums.numel())


class Bench:
    """Both ways of one codec on one size."""

    def __init__(self, name: str, num_elements: int, world_size: int, samples: int) -> None:
        self.name, self.samples, self.world_size = name, samples, world_size
        self.way, self.device = Way.of(name), torch.device("cuda")
        self.chunks = self.way.codec.chunks(num_elements)
        scale = 0.3 if name == "two_bit" else 1e-3
        generator = torch.Generator(self.device).manual_seed(0)
        self.gradient = torch.randn(num_elements, device=self.device, generator=generator) * scale
        self.left = torch.randn(num_elements, device=self.device, generator=generator) * scale
        parts = (self.way.codec, self.way.back, self.chunks, self.device)
        self.torch = Side(TorchChunks(*parts), self.way, world_size)
        self.triton = Side(TritonChunks(*parts), self.way, world_size)

    def check(self) -> dict[str, float]:
        """One step of both, from the same state; ends the program where they differ.

        There is no momentum yet: its product with the factor may be rounded or not before it is added.
        """
        sides = (self.triton, self.torch)
        for side in sides:
            for kept in (side.residual, side.stripe_residual.view(-1)):
                kept[: self.left.numel()].copy_(self.left[: kept.numel()])
            side.calls(self.gradient)["encode"]()
        deviations = {
            f"encode: {key}": value for key, value in self._differ(self.way.codec, "rows", "residual").items()
        }
        for side in sides:
            side.received.copy_(self.triton.rows[:1, : side.own])
            side.rows[1:].copy_(self.triton.rows[0])
            side.rows[0].copy_(self.triton.rows[0])
        if self.way.by_stripes:
            for side in sides:
                side.calls(self.gradient)["encode sums"]()
            sums = self._differ(self.way.back, "sums", "stripe_residual")
            deviations |= {f"encode sums: {key}": value for key, value in sums.items()}
            self._fill_sums()
        for side in sides:
            side.calls(self.gradient)["decode"]()
        size = float(self.torch.result.abs().max())
        deviations["decode"] = float((self.triton.result - self.torch.result).abs().max()) / max(size, 1e-30)
        if not all(value <= TOLERANCE for value in deviations.values()):
            sys.exit(f"{self.name}: the kernels differ from the reference: {deviations}")
        for side in sides:
            side.watch.raise_if_marked()
        return deviations

    def _fill_sums(self) -> None:
        """Both decode the same: the own rows of sums for every stripe."""
        sums, stripe = self.triton.sums[0], self.triton.own
        for begin in range(stripe, sums.shape[0], stripe):
            sums[begin : begin + stripe].copy_(sums[: min(stripe, sums.shape[0] - begin)])
        self.torch.sums.copy_(self.triton.sums)

    def _differ(self, codec: ChunkCodec, rows: str, residual: str) -> dict[str, float]:
        """Heads, relatively; the share of words of codes; residuals, relative to the largest."""
        ours, theirs = (getattr(side, rows)[0] for side in (self.triton, self.torch))
        deviations = {"codes": float((ours[:, codec.head :] != theirs[:, codec.head :]).float().mean())}
        if deviations["codes"] and codec.name != "qsgd":
            sys.exit(
                f"{self.name}: {deviations['codes']:.2e} of the words of codes differ from the reference's"
            )
        if codec.head:
            mine, other = codec.heads(ours), codec.heads(theirs)
            deviations["heads"] = float(((mine - other).abs() / other.abs().clamp(min=1e-30)).max())
        kept, expected = (getattr(side, residual) for side in (self.triton, self.torch))
        if kept.numel():
            kept, expected = kept.view(-1), expected.view(-1)
            n = min(self.gradient.numel(), kept.numel())
            size = float(expected[:n].abs().max())
            deviations["residual"] = float((kept[:n] - expected[:n]).abs().max()) / max(size, 1e-30)
        return deviations

    def time(self) -> list[dict[str, Any]]:
        """Rows of the table: kernels, their graphs and torch in turns."""
        contenders: dict[str, tuple[str, Call]] = {}
        for what, call in self.triton.calls(self.gradient).items():
            contenders[f"{self.name}, {what}, kernels"] = (what, call)
            contenders[f"{self.name}, {what}, kernels, graph"] = (what, captured(call))
            plain = self.torch.calls(self.gradient)[what]
            contenders[f"{self.name}, {what}, torch"] = (what, plain)
        return self._timed(contenders)

    def time_blocks(self, text: str) -> list[dict[str, Any]]:
        """Kernels with blocks of another size, replayed from graphs."""
        size = BlockSize(*map(int, text.split(",")))
        coder = TritonChunks(self.way.codec, self.way.back, self.chunks, self.device, size=size)
        side = Side(coder, self.way, self.world_size)
        contenders: dict[str, tuple[str, Call]] = {}
        for what, call in side.calls(self.gradient).items():
            call()  # compiles
            contenders[f"{self.name}, {what}, blocks {text}"] = (what, captured(call))
        return self._timed(contenders)

    def _timed(self, contenders: dict[str, tuple[str, Call]]) -> list[dict[str, Any]]:
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(2):
            for _, call in contenders.values():
                call()
        for _ in range(self.samples):
            for name, (_, call) in contenders.items():
                times[name].append(seconds_of(call))
        return [summary(name, times[name], self.triton.moved(what)) for name, (what, _) in contenders.items()]


def main() -> None:
    """Runs on one GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--elements", type=int, nargs="*", default=list(ELEMENTS))
    parser.add_argument("--codecs", nargs="*", default=list(NAMES))
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--blocks", nargs="*", default=[], metavar="ELEMENTS,WHOLE,ELEMENTS_A_WARP")
    options = parser.parse_args()
    begin, times = time.perf_counter(), []
    for num_elements in options.elements:
        for name in options.codecs:
            bench = Bench(name, num_elements, options.world_size, options.samples)
            equality = bench.check()
            print(f"{name}, {num_elements} elements, differences from torch: {equality}", flush=True)
            rows = bench.time()
            for text in options.blocks:
                rows += bench.time_blocks(text)
            times.append({"codec": name, "elements": num_elements, "equality": equality, "rows": rows})
            del bench
    print(f"{time.perf_counter() - begin:.0f} s", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"world_size": options.world_size, "codecs": times, "environment": collect()}
    options.out.write_text(json.dumps(result, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
