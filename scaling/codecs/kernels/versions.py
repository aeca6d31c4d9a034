"""Which Triton is installed, and whether the kernels are tested with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util

OLDEST_TRITON = (3, 6)
DISTRIBUTIONS = ("triton", "pytorch-triton")
"""Packages that bring the module `triton`: the index's, and that of torch's nightly builds."""


def triton_version() -> str | None:
    """That of the Triton that would be imported; "" where no package tells it, None where there is none."""
    if importlib.util.find_spec("triton") is None:
        return None
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def version_problem(version: str | None) -> str | None:
    """Why the kernels do not run with that version of Triton; None if they do."""
    oldest = ".".join(map(str, OLDEST_TRITON))
    if version is None:
        return f"Triton is not installed (pip install 'triton>={oldest}')"
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TRITON:
        found = f"Triton {version}" if version else "a Triton that tells no version"
        return f"{found} is installed, and the kernels are tested with {oldest} and later"
    return None
