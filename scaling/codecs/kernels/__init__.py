"""Kernels of the codecs, for devices; each codec's plain torch version is their reference."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from functools import cache
from typing import Literal

import torch

from scaling.codecs.chunks import ChunkCodec, ChunkCoder, Chunks, TorchChunks
from scaling.codecs.kernels.chunk_engine import TritonChunks, kernel_of, kernel_problem
from scaling.codecs.kernels.engine import TritonStripes
from scaling.codecs.kernels.tiles import LARGEST_MATRIX
from scaling.codecs.one_bit import Threshold
from scaling.codecs.one_bit_stripes import PlaneStripes, StripeBuffers, StripeCodec, TorchStripes
from scaling.errors import LaunchError

Kernels = Literal["auto", "torch", "triton"]

INTERPRETER = "TRITON_INTERPRET"
OLDEST_TRITON = (3, 6)


def triton_version() -> str | None:
    """That of the Triton that would be imported; "" where no package tells it, None where there is none."""
    return _packaged_version() if importlib.util.find_spec("triton") is not None else None


@cache  # reading the packages' files takes a millisecond
def _packaged_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        # torch's nightly builds and other platforms bring it under names of their own.
        names = importlib.metadata.packages_distributions().get("triton", [])
        return importlib.metadata.version(names[0]) if names else ""


def version_problem(version: str | None) -> str | None:
    """Why the kernels do not run with that version of Triton; None if they do."""
    oldest = ".".join(map(str, OLDEST_TRITON))
    if version is None:
        return f"Triton is not installed (pip install 'triton>={oldest}')"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST_TRITON:
        text = f"Triton {version}" if version else "a Triton that tells no version"
        return f"{text} is installed, and the kernels are tested with {oldest} and later"
    return None


def triton_problem(device: torch.device) -> str | None:
    problem = version_problem(triton_version())
    if problem is not None:
        return problem
    if device.type != "cuda" and os.environ.get(INTERPRETER) != "1":
        return f"the ranks compute on {device.type}, and Triton's kernels need CUDA"
    return None


def stripe_codec(buffers: StripeBuffers, threshold: Threshold, kernels: Kernels) -> StripeCodec:
    """The codec on some buffers: "torch", the reference; "triton"; or "auto": Triton's on CUDA where it is
    installed, torch's by planes on processors. LaunchError: Triton's are asked for and cannot run."""
    device = buffers.wire.device
    problem = triton_problem(device)
    largest = max((matrix.num_elements for matrix in buffers.stripes.matrices), default=0)
    if problem is None and largest > LARGEST_MATRIX:
        problem = f"a tensor has {largest} elements, and the kernels count {LARGEST_MATRIX} at most"
    if kernels == "triton" and problem is not None:
        raise LaunchError(f"kernels: triton: {problem}; use kernels: auto or torch")
    if kernels == "auto" and device.type == "cpu":
        return PlaneStripes(buffers, threshold)
    if kernels == "torch" or problem is not None:
        codec: StripeCodec = TorchStripes(buffers, threshold)
        if kernels == "auto":
            codec.note = f"{codec.note}: {problem}"
        return codec
    return TritonStripes(buffers, threshold)


def chunk_coder(
    codec: ChunkCodec, back: ChunkCodec, chunks: Chunks, device: torch.device, kernels: Kernels
) -> ChunkCoder:
    """A codec by chunks at work on a bucket: "torch", the reference; "triton"; or "auto": Triton's on CUDA
    where it is installed. LaunchError: Triton's are asked for and cannot run."""
    problem = triton_problem(device) or kernel_problem(codec, chunks)
    if kernels == "triton" and problem is not None:
        raise LaunchError(f"kernels: triton: {problem}; use kernels: auto or torch")
    if kernels == "torch" or problem is not None or (kernels == "auto" and device.type == "cpu"):
        coder = TorchChunks(codec, back, chunks, device)
        if kernels == "auto" and device.type != "cpu":
            coder.note = f"{coder.note}: {problem}"
        return coder
    kernel = kernel_of(codec)
    coder_class = TritonChunks if kernel is None or isinstance(kernel, str) else kernel
    return coder_class(codec, back, chunks, device)
