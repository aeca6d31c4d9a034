"""A file of the tests as several ranks: started, joined over Gloo, and what each of them saw."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from launchers.rank_info import RankInfo
from scaling.runtime.workers import Workers
from scaling.training import step_check
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    """One that no connection gets by chance while nobody listens there yet, nor another test process."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)  # tests seed `random`, in every process alike
        with socket.socket() as server, suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def run_ranks(worker: Path, world_size: int, folder: Path, **environment: str) -> list[Any]:
    """Starts the file as so many ranks on this machine; gives what each has written.

    Args:
        worker: calls `as_rank`. Studies can name what is in its folder.
        world_size: how many.
        folder: for what they write.
        environment: further variables of all.
    """
    known_path = filter(None, [os.environ.get("PYTHONPATH")])
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(worker.parent), *known_path]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(world_size),
        **environment,
    }
    outs = [folder / f"rank{rank}.json" for rank in range(world_size)]
    logs = [out.with_suffix(".log") for out in outs]
    processes = []
    for rank, (out, log) in enumerate(zip(outs, logs, strict=True)):
        with log.open("w") as file:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(worker), str(out)],
                    env={**shared, "RANK": str(rank)},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )

    def ended() -> bool:
        """All have, or one has failed, for which the others would wait."""
        codes = [process.poll() for process in processes]
        return None not in codes or any(codes)

    try:
        wait_until(ended, f"ranks of {worker.name}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
        print(*(f"rank {rank}: {log.read_text()}" for rank, log in enumerate(logs)), sep="\n")
    assert [process.returncode for process in processes] == [0] * world_size, "see what the ranks printed"
    return [json.loads(out.read_text()) for out in outs]


def as_rank(work: Callable[[Workers], Any]) -> None:
    """What such a file does: it joins the others, works with them, leaves, and writes what `work` gives."""
    torch.set_num_threads(1)
    step_check.MAX_SECONDS = math.inf  # how many steps are checked must not depend on the machine's load
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workers = Workers(RankInfo(rank, rank, world_size, world_size, "test"))
    try:
        seen = work(workers)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # an orderly exit would wait for what other ranks will never send
    workers.close()
    Path(sys.argv[1]).write_text(json.dumps(seen))
