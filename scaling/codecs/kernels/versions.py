"""Which Triton is installed, and whether the kernels are tested with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from functools import cache

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
