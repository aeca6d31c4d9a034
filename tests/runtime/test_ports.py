"""On which interfaces rank 0 listens."""

from pathlib import Path

import pytest

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.runtime import workers

LISTENS = "0A"
OF_LOOPBACK = {"::1": "0" * 24 + "01000000", "127.0.0.2": "0200007F"}
OF_HOST = ("192.0.2.7", "some-host")


def listening(port):
    """The addresses of IPv4 and IPv6 at which somebody of this host listens at the port."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()
    ]
    sockets = [(*line[1].split(":"), line[3]) for line in lines if ":" in line[1]]
    return [address for address, number, state in sockets if state == LISTENS and int(number, 16) == port]


@pytest.mark.parametrize("text", ["rubbish", "-1", "65536"])
def test_port_that_is_none_is_refused(text):
    with pytest.raises(LaunchError) as refused:
        workers._master_port({"MASTER_PORT": text})
    assert str(refused.value) == f"MASTER_PORT is '{text}'; it must be the number of a port, 1 to 65535"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.0.0.2", "::1", "192.0.2.7", "some-host"])
def test_ranks_that_meet_on_loopback_are_reached_from_this_host_alone(address):
    info = RankInfo.from_env({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    store = workers._store(info, 0, 5.0, address)
    assert (listening(store.port) == [OF_LOOPBACK.get(address, "0100007F")]) == (address not in OF_HOST)
    store.set("key", "value")
    assert store.get("key") == b"value"
