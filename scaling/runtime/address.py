"""Where the ranks meet, sent by rank 0 over what the launcher has: MPI, or horovodrun's key-value server."""

from __future__ import annotations

import ipaddress
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError

Share = Callable[[str], str]
"""Gives every rank what rank 0 has said; the others' text is ignored. Collective, once."""

POLL_S = 0.05
REQUEST_LIMIT_S = 5.0
DISCARD_PORT = 9

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy: it is our own host


def own_address(info: RankInfo, environ: Mapping[str, str]) -> str:
    """An address of this host that the other ranks can reach: MASTER_ADDR if that is set."""
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    return "127.0.0.1" if info.local_world_size == info.world_size else socket.gethostname()


def reachable_address(environ: Mapping[str, str]) -> str:
    """An address of this host that those can reach who reach MASTER_ADDR. Its own address on the way there;
    where that is this host, by the name that all use."""
    name = environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        family, kind, _, _, there = socket.getaddrinfo(name, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sent_nothing:
            sent_nothing.connect(there)
            address: str = sent_nothing.getsockname()[0]
    except OSError:
        return name
    return name if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address


def over_horovodrun(info: RankInfo, environ: Mapping[str, str], limit_s: float) -> Share:
    """Rank 0 puts its text on the server that horovodrun runs for its workers; the others fetch it."""
    host, port = (environ[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] for name in ("ADDR", "PORT"))
    url = f"http://{host}:{port}/scaling/address"

    def share(text: str) -> str:
        try:
            if info.rank:
                return _fetch(url, limit_s)
            request = urllib.request.Request(url, data=text.encode(), method="PUT")
            _OPENER.open(request, timeout=REQUEST_LIMIT_S).close()
            return text
        except OSError as error:
            raise LaunchError(f"rank {info.rank} cannot reach horovodrun's server, {url}: {error}") from error

    return share


def _fetch(url: str, limit_s: float) -> str:
    """What is there, once it is there."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with _OPENER.open(url, timeout=REQUEST_LIMIT_S) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 has not come within {limit_s:.0f} s") from error
        time.sleep(POLL_S)
