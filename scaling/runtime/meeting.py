"""How the ranks of a launch meet at a store: each says who it is, and waits for the others with open eyes.

Nothing else watches them yet. A rank of this host that has left, or is stopped, is named here (`Present`);
what one rank finds, the store tells all. Then the first rank of the host starts
its watcher (`launchers.watch`).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its list of names
from torch.distributed.distributed_c10d import PrefixStore

from launchers.base import MEETING_TOKEN_VARIABLE
from launchers.rank_info import RankInfo
from launchers.watch.heartbeat import DEFAULT_STALL_TIMEOUT_S, SILENT, Heartbeat, SharedHeartbeat
from launchers.watch.peers import Meeting, open_meeting
from launchers.watch.start import Present, end_watcher, start_watcher
from scaling.errors import LaunchError

POLL_S = 0.02
LOOK_S = 1.0
CONNECT_S = 2.0
RETRY_S = 0.05

PIDS = "pids"
TROUBLE = "trouble"
PREFIX = "scaling-meeting"
SIGNATURE_LENGTH = 64


@dataclass(frozen=True)
class RankPlace:
    """A rank, as a process of its host can find it."""

    processes: str  # host and process numbers: containers of one host have their own, and maybe one name
    pid: int  # of its process
    page: int  # the descriptor of its heartbeat there; -1: it has none
    meeting: tuple[str, int, str] | None = None  # of watchers: host, port, token, if rank 0 offers one


def here() -> str:
    """`RankPlace.processes` of this process."""
    namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
    return f"{platform.node()} {namespace}"


class Signed:
    """What ranks tell each other at a store that others can reach too: signed with the launch's token."""

    def __init__(self, store: Any) -> None:
        self._store = PrefixStore(f"{PREFIX}-{_signature(PREFIX)}", store)

    def check(self, names: list[str]) -> bool:
        """Whether something is there under all names."""
        return bool(self._store.check(names))

    def set(self, name: str, text: str) -> None:
        self._store.set(name, _signature(f"{name} {text}") + text)

    def get(self, name: str) -> str:
        """What is there. Raises LaunchError: it is of somebody else."""
        said: str = self._store.get(name).decode(errors="replace")
        signature, text = said[:SIGNATURE_LENGTH], said[SIGNATURE_LENGTH:]
        if not hmac.compare_digest(signature.encode(), _signature(f"{name} {text}").encode()):
            raise LaunchError(
                f"where the ranks meet, {name!r} was written by somebody else: another user of this host or "
                f"network, or a rank with another {MEETING_TOKEN_VARIABLE}"
            )
        return text


def _signature(text: str) -> str:
    token = os.fsencode(os.environ.get(MEETING_TOKEN_VARIABLE, ""))
    return hmac.new(token, text.encode(), hashlib.sha256).hexdigest()


class Waiting:
    """This rank, as it waits for the others. `limit_s`: how long it waits."""

    def __init__(self, info: RankInfo, limit_s: float) -> None:
        self._info = info
        self._limit_s = limit_s
        self._present = Present(info, time.monotonic())
        self._until_s = time.monotonic() + limit_s
        self._looked_s = time.monotonic()

    def connect(self, host: str, port: int) -> Any:
        """A connection to the store. LaunchError: its rank has gone; RuntimeError: it is not there in time"""
        while not (is_there := _answers(host, port)) and time.monotonic() < self._until_s:
            self._look(None)
            time.sleep(RETRY_S)
        if not is_there:  # torch's own error would come after as long, with its stack
            raise RuntimeError(
                f"nobody answered at {host}, port {port} (MASTER_ADDR, MASTER_PORT) within "
                f"{self._limit_s:g} s (SCALING_JOIN_TIMEOUT_S)"
            )
        limit = timedelta(seconds=self._limit_s)
        return TCPStore(host, port, self._info.world_size, False, timeout=limit, wait_for_workers=False)

    def meet(self, store: Any, place: RankPlace) -> list[RankPlace]:
        """The places of all ranks, in rank order. Collective. LaunchError: one left, stopped or is late."""
        shared = Signed(store)
        shared.set(str(self._info.rank), json.dumps(asdict(place)))
        names = [str(rank) for rank in range(self._info.world_size)]
        while not shared.check(names):
            if time.monotonic() > self._until_s:
                self._find_trouble(shared, 0.0)
                missing = [name for name in names if not shared.check([name])]
                raise LaunchError(
                    f"{len(missing)} of {len(names)} ranks did not come within {self._limit_s:g} s "
                    f"(SCALING_JOIN_TIMEOUT_S): {', '.join(missing)}"
                )
            self._look(shared)
            time.sleep(POLL_S)
        return [_place(shared.get(name)) for name in names]

    def _look(self, shared: Any) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        if shared is not None:
            if shared.check([TROUBLE]):
                raise LaunchError(shared.get(TROUBLE))
            self._know_ranks(shared)
        self._present.look()
        self._find_trouble(shared, min(DEFAULT_STALL_TIMEOUT_S, self._limit_s))

    def _find_trouble(self, shared: Any, stall_timeout_s: float) -> None:
        """Raises a LaunchError where a rank of this host has left or was stopped for so long; all hear it."""
        now_s = time.monotonic()
        if (trouble := self._present.trouble(now_s, stall_timeout_s)) is None:
            return
        rank, how = trouble
        text = f"rank {rank} left first on {platform.node()}, before the ranks had met"
        if how == "stopped":
            with suppress(ProcessLookupError):  # its launcher could not end it otherwise
                os.kill(self._present.pids[rank], signal.SIGKILL)
            text = (
                f"rank {rank} is behind on {platform.node()}, stopped by a signal, before the ranks had met"
            )
        if shared is not None:
            shared.set(TROUBLE, text)
        raise LaunchError(text)

    def _know_ranks(self, shared: Any) -> None:
        """The ranks of this host: those who forked them, or they themselves, have said who they are."""
        if shared.check([PIDS]):
            self._present.pids.update(enumerate(json.loads(shared.get(PIDS))))
        for rank in self._present.local:
            if rank not in self._present.pids and shared.check([str(rank)]):
                place = _place(shared.get(str(rank)))
                if place.processes == here():
                    self._present.pids[rank] = place.pid


def _answers(host: str, port: int) -> bool:
    """Whether somebody listens there: a store that tries for long could not look at the ranks meanwhile."""
    try:
        with socket.create_connection((host, port), CONNECT_S) as tried:
            # Without a listener, a connection within a host can have itself as its other end.
            return bool(tried.getsockname() != tried.getpeername())
    except OSError:
        return False


def require_here(host: str, port: int) -> None:
    """Raises a LaunchError where the address that all use refuses a connection to this host's store."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except ConnectionRefusedError:
        raise LaunchError(
            f"rank 0 is on {platform.node()}, and MASTER_ADDR says {host}, where nobody answers at port "
            f"{port}: start rank 0 there, or set MASTER_ADDR to its host"
        ) from None
    except OSError:
        return


def say_pids(store: Any, pids: Sequence[int]) -> None:
    """Tells the ranks, by whom they were forked, which processes they are."""
    Signed(store).set(PIDS, json.dumps(list(pids)))


def _place(document: str) -> RankPlace:
    values = json.loads(document)
    meeting = values.pop("meeting")
    return RankPlace(**values, meeting=None if meeting is None else (meeting[0], meeting[1], meeting[2]))


Share = Callable[[str], str]  # gives every rank what rank 0 says, whatever the others say. Collective, once.

REQUEST_LIMIT_S = 5.0

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy: it is our own host


def own_address(info: RankInfo, environ: Mapping[str, str]) -> str:
    """An address of this host that the other ranks can reach: MASTER_ADDR if that is set."""
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    return "127.0.0.1" if info.local_world_size == info.world_size else socket.gethostname()


def reachable_address(environ: Mapping[str, str]) -> str:
    """An address of this host that those can reach who reach MASTER_ADDR; where it is that, by its name."""
    name = environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        family, kind, _, _, there = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]  # discard
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
        time.sleep(RETRY_S)


class Watched:
    """This rank's heartbeat, heard on Linux alone, and the watcher that the first rank of its host starts."""

    def __init__(self) -> None:
        self.heartbeat: Heartbeat = SharedHeartbeat() if sys.platform == "linux" else SILENT
        self._listener: socket.socket | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def place(self, info: RankInfo) -> RankPlace:
        """What the others are told of this rank; rank 0 says where the watchers of several hosts meet."""
        page = self.heartbeat.descriptor if isinstance(self.heartbeat, SharedHeartbeat) else -1
        meeting = None
        if info.rank == 0 and info.world_size > info.local_world_size and page >= 0:
            self._listener, offered = open_meeting(reachable_address(os.environ))
            meeting = (offered.host, offered.port, "" if _token() else offered.token)
        return RankPlace(here(), os.getpid(), page, meeting)

    def begin(self, places: Sequence[RankPlace], rank: int) -> None:
        """Starts the watcher, if that is this rank's part. `places`: of all ranks, in rank order."""
        local = {n: (place.pid, place.page) for n, place in enumerate(places) if place.processes == here()}
        if rank == min(local) and self.heartbeat is not SILENT:
            offered = places[0].meeting
            has_others = offered is not None and len(local) < len(places)
            meeting = Meeting(*offered[:2], _token() or offered[2]) if offered and has_others else None
            self._watcher = start_watcher(local, len(places), meeting, self._listener if meeting else None)
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        """This rank ends in order; the watcher that it has started is gone."""
        self.heartbeat.leave()
        if self._watcher is not None:
            end_watcher(self._watcher)


def _token() -> str:
    """That of the launch, which is never said where others could read it; "" where the launcher set none."""
    return os.environ.get(MEETING_TOKEN_VARIABLE, "")
