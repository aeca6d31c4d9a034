"""Starts a worker of these tests as several processes, which meet over Gloo."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 300  # no worker takes longer, unless it says so


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory) -> Callable[..., list[Any]]:
    """on_ranks(worker, world_size, seconds): runs that file of this folder; gives what each rank wrote as
    JSON to its argument, a path. The folder is on the workers' path: studies can name what is in it."""

    def run(worker: str, world_size: int, seconds: float = SECONDS) -> list[Any]:
        folder = tmp_path_factory.mktemp("ranks")
        known_path = filter(None, [os.environ.get("PYTHONPATH")])
        shared = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE), *known_path]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(world_size),
        }
        outs = [folder / f"rank{rank}.json" for rank in range(world_size)]
        processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / worker), str(out)],
                env={**shared, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, out in enumerate(outs)
        ]
        try:
            logs = [process.communicate(timeout=seconds)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert [process.returncode for process in processes] == [0] * world_size, "\n".join(logs)
        return [json.loads(out.read_text()) for out in outs]

    return run
