"""Starts a worker of these tests as several processes, which meet over Gloo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import SECONDS, run_ranks


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory) -> Callable[..., list[Any]]:
    """on_ranks(worker, world_size, seconds, **variables): runs that file of this folder; what ranks saw."""

    def run(worker: str, world_size: int, seconds: float = SECONDS, **variables: str) -> list[Any]:
        path = Path(__file__).with_name(worker)
        return run_ranks(path, world_size, tmp_path_factory.mktemp("ranks"), seconds, **variables)

    return run
