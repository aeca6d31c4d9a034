"""Horovod in a worker: whoever started it, Horovod's ranks are the launch's.

horovodrun has set what Horovod needs. Under mpirun it finds its ranks by MPI if it was built with it. Under
every other launcher rank 0 runs the rendezvous server that horovodrun would, and each rank sets its own
variables. Without them each process would quietly be a world of one.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
import threading
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.process_group import Group
from scaling.process_group.base import HOW_TO_BRING
from scaling.process_group.delegated import HorovodGroup
from scaling.runtime.meeting import own_address
from scaling.runtime.workers import Workers

HorovodSlot = tuple[str, int, int]  # host, local rank, ranks on that host


class HorovodWorld:
    """Horovod for this launch; started when a cell needs it. `by_mpi`: MPI is; `environ`: takes variables."""

    def __init__(
        self, workers: Workers, *, by_mpi: bool, environ: MutableMapping[str, str] = os.environ
    ) -> None:
        self._workers, self._by_mpi, self._environ = workers, by_mpi, environ
        self._hvd: Any = None
        self._was_stopped = False
        self._end_rendezvous: Callable[[], None] = lambda: None

    def group(self, outer: Group) -> Group:
        """The ranks of `outer`, all of them, with Horovod's all-reduces; raises as `start`. Collective."""
        self.start()
        return HorovodGroup(outer, self._hvd, self.description or "")

    @property
    def description(self) -> str | None:
        """What it is, and what its ranks agree and its processors exchange by; None before it is started."""
        if self._hvd is None:
            return None
        on_gpus = ", GPUs over NCCL" if self._hvd.nccl_built() else ""
        return f"Horovod {importlib.metadata.version('horovod')} over {self._controller(self._hvd)}{on_gpus}"

    def stop(self) -> None:
        """Ends Horovod on all ranks; what they wait for in it fails."""
        if self._hvd is not None:
            hvd, self._hvd = self._hvd, None
            hvd.shutdown()
            self._was_stopped = True
            self._end_rendezvous()
            self._end_rendezvous = lambda: None

    def start(self) -> None:
        """Starts it where it is not yet. Collective. LaunchError: it cannot, or has another world."""
        if self._hvd is not None:
            return
        hvd, info = _library(), self._workers.info
        self._set_variables(hvd)
        try:
            hvd.init()
        except Exception as error:
            raise LaunchError(f"rank {info.rank}: Horovod cannot start: {error}") from error
        if (hvd.rank(), hvd.size()) != (info.rank, info.world_size):
            raise LaunchError(
                f"{info.describe()}, but Horovod says rank {hvd.rank()} of {hvd.size()}; look for HOROVOD_* "
                "variables in the environment that another launch has left"
            )
        self._hvd = hvd

    def _controller(self, hvd: Any) -> str:
        """What Horovod's ranks agree and its processors exchange by."""
        return "MPI" if self._by_mpi and hvd.mpi_built() else "Gloo"

    def _set_variables(self, hvd: Any) -> None:
        """What Horovod reads when it starts. Collective."""
        info = self._workers.info
        # Not that of horovodrun a second time: it may still hold addresses of the first start, since its
        # server (horovod/runner/http/http_server.py, do_DELETE) forgets who has left once a scope is empty.
        if info.table == "horovodrun" and not self._was_stopped:
            return
        kind = self._controller(hvd).lower()
        self._environ.update(HOROVOD_CONTROLLER=kind, HOROVOD_CPU_OPERATIONS=kind)
        if kind == "mpi":
            return
        on_one_host = info.local_world_size == info.world_size
        if on_one_host and sys.platform == "linux":
            self._environ.setdefault("HOROVOD_GLOO_IFACE", "lo")
        place = socket.gethostname(), info.local_rank, info.local_world_size
        slots = slots_of(self._workers.gather(place))
        address = ""
        if info.rank == 0:
            # Kept until Horovod ends: the others may still be reading when this rank has started.
            port, self._end_rendezvous = _serve("127.0.0.1" if on_one_host else "", slots)
            address = f"{own_address(info, self._environ)}:{port}"
        host, _, port_text = self._workers.share(address).rpartition(":")
        self._environ.update(variables(slots, info, host, port_text))


def forget_network(info: RankInfo, environ: MutableMapping[str, str]) -> None:
    """Unsets what horovodrun tells NCCL of the network on one host, as it looks like another environment."""
    if info.table == "horovodrun" and info.local_world_size == info.world_size:
        environ.pop("NCCL_SOCKET_IFNAME", None)


def _library() -> Any:
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise LaunchError(f"horovod cannot be used: {error}; {HOW_TO_BRING['horovod']}") from error
    return hvd


class Slot(NamedTuple):
    """A rank's place, in the words and under the names that Horovod's rendezvous server reads."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def slots_of(places: Sequence[HorovodSlot]) -> list[Slot]:
    """Each rank's slot, in rank order. Equal local ranks tell nodes apart that are one machine."""
    nodes: list[tuple[str, set[int]]] = []  # each with its host and the local ranks on it
    node_of = []
    for host, local_rank, _ in places:
        free = (n for n, (name, there) in enumerate(nodes) if name == host and local_rank not in there)
        node = next(free, len(nodes))
        if node == len(nodes):
            nodes.append((host, set()))
        nodes[node][1].add(local_rank)
        node_of.append(node)
    slots = []
    for rank, (_, local_rank, local_size) in enumerate(places):
        across = sorted(n for n, (_, there) in enumerate(nodes) if local_rank in there)
        cross_rank = across.index(node_of[rank])
        name = f"node{node_of[rank]}"
        slots.append(Slot(name, rank, local_rank, cross_rank, len(places), local_size, len(across)))
    return slots


def variables(slots: Sequence[Slot], info: RankInfo, host: str, port: str) -> dict[str, str]:
    """What horovodrun would have set for this rank."""
    return {
        **{f"HOROVOD_{name.upper()}": str(value) for name, value in slots[info.rank]._asdict().items()},
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }


def _serve(host: str, slots: Sequence[Slot]) -> tuple[int, Callable[[], None]]:
    """Runs Horovod's rendezvous server on a free port; returns that, and what ends it."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((host, 0), RendezvousHandler, 0)
    server.init(slots)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return server.server_address[1], end
