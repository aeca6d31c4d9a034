"""1-bit encoding and decoding of a model's gradient on one GPU: Triton's kernels compared with plain torch.

    python benchmarks/one_bit_speed.py --out FILE.json [--model fcn-s4] [--world-size 4] [--tiles L,I,R,W ...]

Both codecs of `scaling.codecs` work in one process on the same gradient, as rank 0 of `--world-size` would;
what they write is compared first: bits must be equal, limits and residuals equal but for the rounding of sums
in another order. A sample is one call between two CUDA events, kernels and reference taking
turns; the table has medians with quartiles, and GB/s of the bytes that must move: for each element 20 to
encode (gradient and residual read twice, the residual written), 12 of the own stripe for the sums, 4 to
decode. The messages themselves are left out. "graph" is the same call replayed from a CUDA graph.

With torchrun on several GPUs, the exchange alone, of the same number of bytes:

    torchrun --nproc-per-node=4 benchmarks/one_bit_speed.py --out FILE.json [--host-only]

as sends both times (what `one_bit` does), as all-to-all and all-gather of the library, and as sends and
all-gather, eager and captured; the slowest rank's time counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from leaving import leave, let_go

from launchers.rank_info import RankInfo
from scaling.bucket import BucketLayout
from scaling.codecs.kernels.engine import DECODE, GRADIENT, SUMS, TileSize, TritonStripes
from scaling.codecs.one_bit_stripes import StripeBuffers, StripeCodec, TorchStripes
from scaling.codecs.stripes import StripeLayout
from scaling.measure.environment import collect
from scaling.process_group import Message, TorchGroup
from scaling.runtime.workers import Workers
from scaling.workloads.registry import build_module, create_model

Call = Callable[[], object]


def layout_of(name: str) -> BucketLayout:
    """All of a model's parameters as one bucket."""
    model = create_model(name)
    assert model.shape is not None, f"{name} adapts to its data set"
    with torch.device("meta"):
        module = build_module(model, model.shape)
    return BucketLayout.of([(key, tuple(value.shape)) for key, value in module.named_parameters()])


def seconds_of(call: Call) -> float:
    """Device time of one call."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def captured(call: Call) -> Call:
    """The call as a CUDA graph, which lives as long as what is returned."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def summary(name: str, seconds: list[float], num_bytes: float = 0) -> dict[str, Any]:
    """One line of the table, printed too."""
    low, median, high = np.percentile(seconds, [25, 50, 75])
    rate = f"{num_bytes / median / 1e9:8.0f} GB/s" if num_bytes else ""
    print(
        f"  {name:44} {median * 1e3:9.4f} ms [{low * 1e3:.4f}, {high * 1e3:.4f}] {rate}  n={len(seconds)}",
        flush=True,
    )
    return {"name": name, "bytes_moved": num_bytes, "seconds": seconds}


class OneGpu:
    """Both codecs on one device."""

    def __init__(self, layout: BucketLayout, world_size: int, samples: int) -> None:
        self.device = torch.device("cuda")
        self.stripes = StripeLayout.of(layout, "torch", 1, world_size)
        self.samples = samples
        generator = torch.Generator(self.device).manual_seed(0)
        self.gradient = torch.randn(layout.num_elements, device=self.device, generator=generator) * 1e-3
        self.result = torch.zeros_like(self.gradient)
        self.residual = torch.randn(layout.num_elements, device=self.device, generator=generator) * 1e-3
        self.reference = TorchStripes(self._buffers(), "zero")

    def _buffers(self) -> StripeBuffers:
        return StripeBuffers(self.stripes, 0, self.device)

    def kernels(self, **sizes: TileSize) -> TritonStripes:
        """A codec of kernels."""
        return TritonStripes(self._buffers(), "zero", **sizes)

    def calls(self, codec: StripeCodec) -> dict[str, Call]:
        """What is timed; the messages of all ranks are the own one."""

        def all_three() -> None:
            codec.encode(self.gradient)
            codec.encode_sums()
            codec.decode(self.result)

        return {
            "encode": lambda: codec.encode(self.gradient),
            "encode sums": codec.encode_sums,
            "decode": lambda: codec.decode(self.result),
            "all three": all_three,
        }

    def moved(self, name: str) -> float:
        """Bytes that a call must move."""
        n, num_own = self.gradient.numel(), self.reference.buffers.stripe_residual.numel()
        parts = {"encode": 20 * n, "encode sums": 12 * num_own, "decode": 4 * n}
        return float(parts.get(name, sum(parts.values())))

    def check(self, codec: TritonStripes) -> dict[str, float]:
        """Compares one step of both: limits and residuals to rounding, all bits of the codes exactly.

        Ends the program where they differ.
        """
        both: tuple[StripeCodec, ...] = (codec, self.reference)
        for one in both:
            one.buffers.residual.copy_(self.residual)
            one.buffers.stripe_residual.copy_(self.residual[: one.buffers.stripe_residual.numel()])
            one.encode(self.gradient)
        ours, theirs = codec.buffers, self.reference.buffers
        limits, bits = self.differing(ours, theirs)
        residual = (ours.residual - theirs.residual).abs().max().item()
        theirs.wire.copy_(ours.wire)
        for row in theirs.incoming[1:]:
            row.copy_(ours.incoming[0])
        ours.wire.copy_(theirs.wire)
        results = []
        for one in both:
            one.encode_sums()
        sums = (ours.stripe_residual - theirs.stripe_residual).abs().max().item()
        for owner, row in enumerate(ours.gathered[1:], start=1):
            row.copy_(ours.outgoing[owner])
        theirs.wire.copy_(ours.wire)
        for one in both:
            one.decode(self.result)
            results.append(self.result.clone())
        if bits or residual > 1e-8 or sums > 1e-8 or not torch.equal(*results):
            sys.exit(f"the kernels differ from the reference: {bits} words, residual {residual}, sums {sums}")
        return {"words_of_bits": bits, "limits": limits, "residual": residual, "sums": sums}

    def differing(self, ours: StripeBuffers, theirs: StripeBuffers) -> tuple[float, int]:
        """Of the messages to others: the limits' largest relative difference, and words that differ."""
        largest, num_words = 0.0, 0
        for owner in range(1, self.stripes.world_size):
            for number in range(len(self.stripes.matrices)):
                pairs = [
                    self.stripes.parts(exchanged.outgoing[owner], number, owner)
                    for exchanged in (ours, theirs)
                ]
                for mine, other in zip(*(pair[:2] for pair in pairs), strict=True):
                    if mine.numel():
                        largest = max(largest, ((mine - other) / other).abs().max().item())
                num_words += int((pairs[0][2] != pairs[1][2]).sum())
        return largest, num_words

    def time(self, contenders: dict[str, tuple[str, Call]]) -> list[dict[str, Any]]:
        """Contenders (what they do, call) in turns."""
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _, call in contenders.values():
            for _ in range(3):
                call()
        for _ in range(self.samples):
            for name, (_, call) in contenders.items():
                times[name].append(seconds_of(call))
        return [summary(name, times[name], self.moved(what)) for name, (what, _) in contenders.items()]


def on_one_gpu(options: argparse.Namespace) -> dict[str, Any]:
    """Equality, the table, and the tile sizes asked for."""
    bench = OneGpu(layout_of(options.model), options.world_size, options.samples)
    kernels = bench.kernels()
    bench.kernels().encode(bench.gradient)  # compiles
    equality = bench.check(kernels)
    print(f"equal to the reference: {equality}", flush=True)
    contenders: dict[str, tuple[str, Call]] = {}
    for name, call in bench.calls(kernels).items():
        contenders[f"{name}, kernels"] = (name, call)
        contenders[f"{name}, kernels, graph"] = (name, captured(call))
    for name, call in bench.calls(bench.reference).items():
        contenders[f"{name}, torch"] = (name, call)
    rows = bench.time(contenders)
    bench.reference = TorchStripes(bench._buffers(), "zero")
    del contenders
    for text in options.tiles:
        size = TileSize(*map(int, text.split(",")))
        codec = bench.kernels(gradient=size, sums=size, decoding=size)
        bench.calls(codec)["all three"]()  # compiles
        timed = {f"{name}, tiles {text}": (name, captured(call)) for name, call in bench.calls(codec).items()}
        rows += bench.time(timed)
    return {"equality": equality, "rows": rows, "tiles": [str(tile) for tile in (GRADIENT, SUMS, DECODE)]}


class Exchanges:
    """The bare exchange between ranks, in several ways."""

    def __init__(self, group: TorchGroup, stripes: StripeLayout, device: torch.device) -> None:
        self.group, self.buffers = group, StripeBuffers(stripes, group.rank, device)
        n, size = group.world_size, self.buffers.gathered_words
        self.peers = [rank for rank in range(n) if rank != group.rank]
        words = max(stripes.words)
        self.outgoing = torch.zeros(n * words, dtype=torch.int32, device=device)
        self.incoming = torch.zeros(n * words, dtype=torch.int32, device=device)
        self.gathered = self.buffers.wire[-n * size :]
        self.own = self.gathered[group.rank * size :][:size]

    def sends_up(self) -> None:
        """Every stripe to its owner."""
        buffers = self.buffers
        self.group.exchange(
            [Message(peer, buffers.outgoing[peer]) for peer in self.peers],
            [Message(peer, buffers.incoming[peer]) for peer in self.peers],
        )

    def sends_down(self) -> None:
        """The own sum to all."""
        buffers = self.buffers
        self.group.exchange(
            [Message(peer, buffers.gathered[self.group.rank]) for peer in self.peers],
            [Message(peer, buffers.gathered[peer]) for peer in self.peers],
        )

    def all_to_all(self) -> None:
        """The library's, of equal parts."""
        dist.all_to_all_single(self.incoming, self.outgoing, group=self.group.data)

    def all_gather(self) -> None:
        """The library's, in place."""
        dist.all_gather_into_tensor(self.gathered, self.own, group=self.group.data)

    def ways(self) -> dict[str, Call]:
        """By name."""
        return {
            "sends": self.sends_up,
            "sends back": self.sends_down,
            "all-to-all": self.all_to_all,
            "all-gather": self.all_gather,
            "sends + sends back": in_turn(self.sends_up, self.sends_down),
            "sends + all-gather": in_turn(self.sends_up, self.all_gather),
            "all-to-all + all-gather": in_turn(self.all_to_all, self.all_gather),
        }


def in_turn(*calls: Call) -> Call:
    """One call that makes these."""
    return lambda: [call() for call in calls]


def timed_both_ways(
    name: str, call: Call, group: TorchGroup, samples: int
) -> Iterator[tuple[str, list[float]]]:
    """Seconds of the call, eager and captured, on the slowest rank.

    The graph is gone afterwards (see `leaving`).
    """
    for label in (name, f"{name}, graph"):
        way = call if label == name else captured(call)
        seconds = []
        for _ in range(samples):
            torch.cuda.synchronize()
            group.barrier()
            start = time.perf_counter()
            for _ in range(3):
                way()
            torch.cuda.synchronize()
            seconds.append(group.largest((time.perf_counter() - start) / 3))
        yield label, seconds
    del way
    let_go()


def on_several(options: argparse.Namespace, info: RankInfo, group: TorchGroup) -> dict[str, Any]:
    """The exchange alone."""
    device = torch.device("cuda", info.local_rank)
    stripes = StripeLayout.of(layout_of(options.model), "torch", 1, info.world_size)
    exchanges, rows = Exchanges(group, stripes, device), []
    if info.rank == 0:
        print(f"{4 * sum(stripes.words) / 1e6:.1f} MB, {info.world_size} GPUs", flush=True)
    for name, call in exchanges.ways().items():
        call()
        for label, seconds in timed_both_ways(name, call, group, options.samples + 3):
            if info.rank == 0:
                rows.append(summary(label, seconds[3:]))
    return {"rows": rows, "host_only": options.host_only, "wire_bytes": 4 * sum(stripes.words)}


def main() -> None:
    """Runs on one GPU, or on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="fcn-s4")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--tiles", nargs="*", default=[], metavar="LANES,ITERATIONS,ROWS,WARPS")
    parser.add_argument("--host-only", action="store_true")
    options = parser.parse_args()
    if options.host_only:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        write(options, on_one_gpu(options))
        return
    info = RankInfo.from_env(os.environ)
    device = torch.device("cuda", info.local_rank)
    torch.cuda.set_device(device)
    group = Workers(info).group(device, peer_access=not options.host_only)
    result = on_several(options, info, group)
    if info.rank == 0:
        write(options, result)
    leave(group)


def write(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """The file, before anything that could keep the program from ending."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result |= {"model": options.model, "environment": collect()}
    options.out.write_text(json.dumps(result, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
