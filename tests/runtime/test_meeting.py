"""Rank 0 makes sure that it listens where all ranks look for it."""

import platform
import socket

import pytest

from scaling.errors import LaunchError
from scaling.runtime.meeting import require_here


def test_rank_0_that_is_not_where_the_ranks_meet_says_where_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_here("127.0.0.1", port)
    with pytest.raises(LaunchError, match=r"MASTER_ADDR says 127\.0\.0\.1, where nobody answers") as caught:
        require_here("127.0.0.1", port)
    assert platform.node() in str(caught.value)


def test_name_that_nobody_knows_yet_tells_nothing():
    require_here("nowhere.invalid", 29500)
