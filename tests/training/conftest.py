"""Starts a worker of these tests as several processes, which meet over Gloo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory) -> Callable[..., list[Any]]:
    """on_ranks(worker, world_size, **variables): runs that file of this folder; what ranks saw."""

    def run(worker: str, world_size: int, **variables: str) -> list[Any]:
        path = Path(__file__).with_name(worker)
        return run_ranks(path, world_size, tmp_path_factory.mktemp("ranks"), **variables)

    return run
