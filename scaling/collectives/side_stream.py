"""Streams on which copies run concurrently with the device's own work."""

from __future__ import annotations

import torch


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A new stream of a GPU; None on a CPU, where everything runs in order."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
