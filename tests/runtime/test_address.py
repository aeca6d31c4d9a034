"""Where ranks meet, told without torch: over horovodrun's server, here a stand-in of the same protocol."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.runtime.meeting import over_horovodrun, own_address
from tests.waiting import LIMIT_S


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
