"""A file of the tests as several ranks: started, joined over Gloo, and what each of them saw."""

from __future__ import annotations

import atexit
import json
import math
import os
import random
import runpy
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from launchers.base import THIS_ENVIRONMENT, LaunchSpec, WorkerEnvironment
from launchers.rank_info import RankInfo
from launchers.zygote import Zygote
from scaling.runtime.workers import Workers
from scaling.study.worker_modules import IMPORTED_BEFORE_FORKS
from scaling.training import step_check
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[1]
RANKS_PATH = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "end_to_end")))
"""As that of commands, which then share a zygote with ranks."""


def free_port() -> int:
    """One that no connection gets by chance while nobody listens there yet, nor another test process."""
    while True:
        # Tests seed `random`, in every process alike; jobs of the tests' Slurm meet from 20,000 on.
        port = random.SystemRandom().randrange(21_000, 30_000)
        with socket.socket() as server, suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def run_ranks(worker: Path, world_size: int, folder: Path, **environment: str) -> list[Any]:
    """Runs the file as so many ranks on this machine; gives what each has written.

    A process that has imported torch forks them, the same for all files.

    Args:
        worker: calls `as_rank`. Studies can name what is in its folder.
        world_size: how many.
        folder: for what they write.
        environment: further variables of all.
    """
    spec = LaunchSpec(world_size, 1, __name__, [str(worker), str(folder)])
    log = folder / "log"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": RANKS_PATH, "GLOO_SOCKET_IFNAME": "lo", **environment}.items():
            patch.setenv(name, value)
        launch = kept_zygote().launch(spec, os.environ, log)
    try:
        code = launch.wait(LIMIT_S)
    finally:
        print(log.read_text())
    assert code == 0, "see what the ranks printed"
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


class KeptZygote(Zygote):
    """A zygote that launches use one after the other, and no command ends."""

    def close(self) -> None:
        pass


_kept: dict[tuple[str, str, Path | None], KeptZygote] = {}
MOST_KEPT = 2
"""As many as a campaign has environments: each takes memory."""


def kept_zygote(modules: Sequence[str] = (), environment: WorkerEnvironment = THIS_ENVIRONMENT) -> Zygote:
    """In the place of `Zygote`: one that has imported torch for an earlier launch, if its code is the same.

    Each import takes seconds, and tests of what ranks do need no process of their own that has done it.
    """
    if environment.python != sys.executable:
        return Zygote(modules, environment)
    path, interprets = (os.environ.get(name, "") for name in ("PYTHONPATH", "TRITON_INTERPRET"))
    own = (path, interprets, environment.folder)
    known = _kept.pop(own, None)
    if known is None or not known.is_alive:
        while len(_kept) >= MOST_KEPT:
            Zygote.close(_kept.pop(next(iter(_kept))))
        known = KeptZygote([*IMPORTED_BEFORE_FORKS, __name__], environment)
        atexit.register(Zygote.close, known)
    _kept[own] = known  # the last that is ended
    return known


def main(arguments: list[str]) -> None:
    """A rank that was forked: it becomes the file."""
    worker, folder = map(Path, arguments)
    sys.path.insert(0, str(worker.parent))
    sys.argv = [str(worker), str(folder / f"rank{os.environ['RANK']}.json")]
    runpy.run_path(str(worker), run_name="__main__")


def refusal(error: type[Exception], attempt: Callable[[], Any]) -> str:
    """What is said by an error of that kind that it raises; nothing where it raises none."""
    try:
        attempt()
    except error as raised:
        return str(raised)
    return ""


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
