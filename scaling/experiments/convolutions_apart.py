"""Convolutions of cuDNN in a process of their own, where nothing is chosen or limited yet.

Two things ask for it. torch keeps the algorithm of a shape for as long as the process lives, whether it was
cuDNN's guess or found by trying. And cuDNN's own limit of the workspace, CUDNN_CONV_WSCAP_DBG in MiB, has to
be in the environment before the library is loaded. That limit is documented for cuDNN's older interface
(cudnnGetConvolution...WorkspaceSize), which torch takes under TORCH_CUDNN_V8_API_DISABLED; without a limit
the older interface is measured too, so that only the limit differs. Whether it was kept is measured:
`workspace_bytes`.

Reference: the release notes of cuDNN 8.0.5; "CUDA environment variables" in torch's documentation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from scaling.experiments.base import Budget, LeftOutError
from scaling.experiments.convolutions import LAYERS, measure_convolution
from scaling.experiments.multiplying import dtype_of, multiplying

CAP_VARIABLE = "CUDNN_CONV_WSCAP_DBG"
OLDER_INTERFACE = {"TORCH_CUDNN_V8_API_DISABLED": "1"}

TIMEOUT_S = 180

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """What a process measures: every layer in every precision.

    Attributes:
        layers: names in `LAYERS`.
        batch: images.
        precisions: float32, tf32 or bfloat16.
        choice: `library` or `autotuned`.
        older_interface: cuDNN's.
        cap_mib: of the workspace; None: no limit.
        seconds, limit_s: see `Budget`.
        device: as torch writes it.
    """

    layers: tuple[str, ...]
    batch: int
    precisions: tuple[str, ...]
    choice: str
    older_interface: bool
    cap_mib: int | None
    seconds: float
    limit_s: float
    device: str

    def environment(self) -> dict[str, str]:
        """What the process is started with."""
        added = dict(OLDER_INTERFACE) if self.older_interface else {}
        if self.cap_mib is not None:
            added[CAP_VARIABLE] = str(self.cap_mib)
        return {name: value for name, value in os.environ.items() if name != CAP_VARIABLE} | added


def measured_apart(request: Request, layer: str, precision: str) -> Rows:
    """Rows of one of the request's measurements, as `measure_convolution` has them.

    Raises:
        LeftOutError: it was left out.
        RuntimeError: the process fails, with its last lines.
    """
    rows = _measure_all(request)[_key(layer, precision)]
    reason = next((row["left_out"] for row in rows if "left_out" in row), None)
    if reason is not None:
        raise LeftOutError(str(reason))
    return rows


@lru_cache(maxsize=16)
def _measure_all(request: Request) -> dict[str, Rows]:
    """All of a request, by one process; kept, since each of its cells takes only a part."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(asdict(request))],
            env=request.environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{request.choice} convolutions: no result within {TIMEOUT_S} s") from error
    if done.returncode:
        last_lines = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{request.choice} convolutions: the measuring process failed: {last_lines}")
    rows: dict[str, Rows] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _key(layer: str, precision: str) -> str:
    return f"{layer}, {precision}"


def measure_request(request: Request) -> dict[str, Rows]:
    """What the process of its own does."""
    return {
        _key(layer, precision): _measure_one(request, layer, precision)
        for layer in request.layers
        for precision in request.precisions
    }


def _measure_one(request: Request, layer: str, precision: str) -> Rows:
    device, budget = torch.device(request.device), Budget(request.seconds, limit_s=request.limit_s)
    rows: Rows = []
    try:
        with multiplying(precision, device):
            measured = measure_convolution(
                LAYERS[layer], request.batch, request.choice, dtype_of(precision), device, budget
            )
            rows += measured
    except LeftOutError as error:
        rows.append({"left_out": str(error)})
    except torch.OutOfMemoryError as error:
        rows.append({"left_out": f"out of memory: {str(error).partition('.')[0]}"})
    return rows


def main(text: str) -> None:
    """Measures what a request as JSON asks for, and prints the rows as JSON."""
    asked = json.loads(text)
    asked |= {name: tuple(asked[name]) for name in ("layers", "precisions")}
    print(json.dumps(measure_request(Request(**asked))))


if __name__ == "__main__":
    main(sys.argv[1])
