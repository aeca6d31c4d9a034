"""Starts a test file as several processes, which meet over Gloo and run its last lines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory) -> Callable[..., list[Any]]:
    """on_ranks(file, world_size, **variables): runs that file; what ranks saw."""

    def run(file: str, world_size: int, **variables: str) -> list[Any]:
        return run_ranks(Path(file), world_size, tmp_path_factory.mktemp("ranks"), **variables)

    return run


@pytest.fixture(scope="module")
def ranks(request, on_ranks) -> list[Any]:
    """What each of two ranks of the module's file saw."""
    return on_ranks(request.module.__file__, 2)
