"""Rank 0 makes sure that it listens where all ranks look for it; nobody else can say who the ranks are.

Where ranks meet is told without torch: over horovodrun's server, here a stand-in of the same protocol.
"""

import json
import platform
import socket
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from torch.distributed import HashStore

from launchers.base import MEETING_TOKEN_VARIABLE
from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.runtime import meeting, workers
from scaling.runtime.meeting import RankPlace, Signed, Waiting, Watched, here, over_horovodrun, own_address
from tests.waiting import LIMIT_S


def test_rank_0_that_is_not_where_the_ranks_meet_says_where_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        meeting.require_here("127.0.0.1", port)
    with pytest.raises(LaunchError, match=r"MASTER_ADDR says 127\.0\.0\.1, where nobody answers") as caught:
        meeting.require_here("127.0.0.1", port)
    assert platform.node() in str(caught.value)


def test_name_that_nobody_knows_yet_tells_nothing():
    meeting.require_here("nowhere.invalid", 29500)


PLACES = [RankPlace(here(), 100 + rank, -1) for rank in range(2)]


def store_of(monkeypatch, token):
    """The store of a launch with that token, with what its second rank has said."""
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, token)
    made = HashStore()
    Signed(made).set("1", json.dumps(asdict(PLACES[1])))
    return made


@pytest.fixture
def store(monkeypatch):
    return store_of(monkeypatch, "ours")


def first_rank():
    return Waiting(RankInfo(0, 0, 2, 2, "torchrun", table="torchrun"), 300.0)


@pytest.mark.parametrize("token", ["ours", "", "\udcff\n"])
def test_ranks_of_one_token_meet(monkeypatch, token):
    assert first_rank().meet(store_of(monkeypatch, token), PLACES[0]) == PLACES


def test_rank_of_another_token_is_not_met(store, monkeypatch):
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, "guessed")
    Signed(store).set("0", "{}")
    meeting.say_pids(store, [1, 2])
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, "ours")
    assert not Signed(store).check(["0"])
    assert not Signed(store).check([meeting.PIDS])
    assert first_rank().meet(store, PLACES[0]) == PLACES


@pytest.mark.parametrize("change", [lambda said: b"x" + said[1:], lambda said: said + b" ", lambda _: b""])
def test_what_a_stranger_writes_in_a_ranks_place_is_refused(store, change):
    """One who lists the store's names knows where; it has no password."""
    inside = Signed(store)._store
    inside.set("1", change(inside.get("1")))
    with pytest.raises(LaunchError, match="'1' was written by somebody else"):
        first_rank().meet(store, PLACES[0])


def test_what_one_rank_has_said_cannot_be_said_in_anothers_place(store):
    inside = Signed(store)._store
    inside.set("trouble", inside.get("1"))
    with pytest.raises(LaunchError, match="'trouble' was written by somebody else"):
        Signed(store).get("trouble")


def token_for_watchers():
    watched = Watched()
    try:
        return watched.place(RankInfo(0, 0, 2, 1, "torchrun", table="torchrun")).meeting[2]
    finally:
        watched._listener.close()


def test_token_is_not_in_what_is_said_at_the_store(store):
    assert b"ours" not in Signed(store)._store.get("1")
    assert token_for_watchers() == "", "the watchers of several hosts know it from their environment"


def test_without_a_token_of_the_launcher_rank_0_draws_one_for_the_watchers(monkeypatch):
    monkeypatch.delenv(MEETING_TOKEN_VARIABLE, raising=False)
    assert len(token_for_watchers()) == 32


OF_LOOPBACK = {"::1": "0" * 24 + "01000000", "127.0.0.2": "0200007F"}


def listening(port):
    """The addresses of IPv4 and IPv6 at which somebody of this host listens at the port."""
    tables = (Path("/proc/net", name).read_text() for name in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table.splitlines()]
    sockets = [(*line[1].split(":"), line[3]) for line in lines if ":" in line[1]]
    return [address for address, number, state in sockets if state == "0A" and int(number, 16) == port]


@pytest.mark.parametrize("text", ["rubbish", "-1", "65536"])
def test_port_that_is_none_is_refused(text):
    said = f"^MASTER_PORT is '{text}'; it must be the number of a port, 1 to 65535$"
    with pytest.raises(LaunchError, match=said):
        workers._master_port({"MASTER_PORT": text})


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.0.0.2", "::1", "192.0.2.7", "some-host"])
def test_ranks_that_meet_on_loopback_are_reached_from_this_host_alone(address):
    info = RankInfo.from_env({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    store = workers._store(info, 0, 5.0, address)
    is_of_host = address in ("192.0.2.7", "some-host")
    assert (listening(store.port) == [OF_LOOPBACK.get(address, "0100007F")]) == (not is_of_host)
    store.set("key", "value")
    assert store.get("key") == b"value"


def info(rank, world_size=2, local_world_size=2):
    return RankInfo(rank, rank % local_world_size, world_size, local_world_size, "test")


class Store(BaseHTTPRequestHandler):
    """Horovod's key-value server: PUT and GET of /scope/key; 404 for what is not there yet."""

    def do_PUT(self):
        self.server.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"")

    def do_GET(self):
        kept = self.server.kept.get(self.path)
        self.answer(404 if kept is None else 200, kept or b"")

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def environ():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.kept = {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    place = {"ADDR": "127.0.0.1", "PORT": str(server.server_address[1])}
    yield {f"HOROVOD_GLOO_RENDEZVOUS_{name}": value for name, value in place.items()}
    server.shutdown()
    thread.join()
    server.server_close()


def test_others_hear_what_rank_0_says_even_if_they_ask_first(environ):
    heard = []
    ask = over_horovodrun(info(1), environ, LIMIT_S)
    thread = threading.Thread(target=lambda: heard.append(ask("")))
    thread.start()
    assert over_horovodrun(info(0), environ, LIMIT_S)("127.0.0.1:4711") == "127.0.0.1:4711"
    thread.join(LIMIT_S)
    assert heard == ["127.0.0.1:4711"]


def test_proxy_of_the_environment_is_not_asked(environ, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert over_horovodrun(info(0), environ, 1.0)("here") == "here"
    assert over_horovodrun(info(1), environ, 1.0)("") == "here"


def test_rank_0_that_does_not_come_and_a_server_that_is_gone_are_said(environ):
    with pytest.raises(LaunchError, match=r"rank 1 cannot reach .*: rank 0 has not come within 0 s"):
        over_horovodrun(info(1), environ, 0.0)("")
    gone = {**environ, "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    with pytest.raises(LaunchError, match=r"rank 0 cannot reach horovodrun's server, http://127\.0\.0\.1:1/"):
        over_horovodrun(info(0), gone, 1.0)("x")


def test_address_is_the_users_else_loopback_on_one_host_else_the_hosts_name(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert (own_address(info(0), {}), own_address(info(0, 4, 2), {})) == ("127.0.0.1", "node7")
    assert own_address(info(0, 4, 2), {"MASTER_ADDR": "10.0.0.1"}) == "10.0.0.1"
    assert own_address(info(0, 4, 2), {"MASTER_ADDR": ""}) == "node7"
