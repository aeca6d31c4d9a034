"""Horovod's world is the launch's, or an error: without its variables each process would be alone."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
ALONE = """\
import sys
from types import SimpleNamespace

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.runtime.horovod import HorovodWorld

told = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
info = RankInfo.from_env({f"HOROVOD_{name}": value for name, value in told.items()})
try:
    HorovodWorld(SimpleNamespace(info=info), by_mpi=False).start()
except LaunchError as error:
    sys.exit(f"error: {error}")
"""


def test_horovod_that_finds_fewer_ranks_than_the_launch_has_is_an_error(need):
    need(importlib.util.find_spec("horovod"), "Horovod is not installed; `make horovod` builds it")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: rank 1 (HOROVOD_RANK) of 2 (HOROVOD_SIZE)")
    assert "but Horovod says rank 0 of 1; look for HOROVOD_* variables" in error
