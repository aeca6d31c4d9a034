"""The launched processes as a whole: start-up, the control channel between them, and the groups they work in.

Control (which cell is next, who has failed) runs over the rendezvous store and a Gloo group of its own, so
that it outlives a cell whose data group broke, which is made anew: the rank that fails leaves its group,
which ends the others' pending operations on CPU; on a GPU they may hang, and the launch is given up. Workers
that share a GPU, which NCCL refuses, have a second Gloo group through host memory.

A thread hears of SIGTERM and SIGUSR1, as a handler would run only after an exchange that may never end. Rank
0 puts the run that is cut off back to planned, which is no death; the others leave that time to it.
"""

from __future__ import annotations

import errno
import gc
import ipaddress
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its list of names
from torch.distributed.distributed_c10d import PrefixStore

from launchers.base import LOOPBACK, join_timeout_s, require_loopback
from launchers.processes import say_line
from launchers.rank_info import RankInfo
from scaling.errors import DiskFullError, LaunchError
from scaling.process_group import Group, ThroughHostGroup, TorchGroup
from scaling.process_group.over_torch import share_json
from scaling.runtime.meeting import RankPlace, Waiting, Watched, here, require_here
from scaling.store import ResultsFolder
from scaling.store.failures import DEVICE_LOST, DISK_FULL, OTHER_FAILURE, OUT_OF_MEMORY

T = TypeVar("T")

MAX_PORT = 65535
COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # of a rank's wait in a cell, as for a control arm's others
EXIT_LIMIT_S = float(os.environ.get("SCALING_CELL_EXIT_LIMIT_S", "60"))  # to leave a failed cell
_POLL_S = 0.05  # longest pause between looks for the others at a cell's end; the first are shorter


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended on all ranks."""

    reason: str | None  # why it failed, from the rank that failed first; None if every rank finished
    can_go_on: bool  # every rank has left the cell, and none has lost its device
    summaries: list[Any]  # what each finished rank has to say, by rank
    failure_kind: str | None = None  # of the same failure (`scaling.store.failures`)


class Workers:
    """This process among the launched ones. `share`: gives every rank what rank 0 says; None where the
    launcher's variables say where the ranks meet (`MASTER_ADDR`, `MASTER_PORT`); `address`: of rank 0's host,
    with `share` only; `watch`: watches the ranks once all have come. LaunchError: they do not come, or not so
    many."""

    def __init__(
        self,
        info: RankInfo,
        share: Callable[[str], str] | None = None,
        address: str = LOOPBACK,
        watch: Watched | None = None,
    ) -> None:
        self.info = info
        # What groups can delegate messages to: name -> makes such a group. Collective.
        self.libraries: dict[str, Callable[[Group], Group]] = {}
        self.on_leave: Callable[[], None] = lambda: None  # called when this rank gives up a group
        self.closed = False  # this rank has left the others in order
        try:
            limit_s = join_limit_s()
            waiting = Waiting(info, limit_s)
            store = _meet(info, share, address, waiting, limit_s)
            places = waiting.meet(store, watch.place(info) if watch else RankPlace(here(), os.getpid(), -1))
            if watch:
                watch.begin(places, info.rank)
            dist.init_process_group(
                "gloo",
                store=PrefixStore("scaling-control", store),
                rank=info.rank,
                world_size=info.world_size,
                timeout=COLLECTIVE_TIMEOUT,
            )
        except LaunchError:
            raise
        except (KeyError, OSError, ValueError, RuntimeError) as error:
            if "EADDRINUSE" in str(error) or getattr(error, "errno", None) == errno.EADDRINUSE:
                raise LaunchError(
                    f"port {os.environ.get('MASTER_PORT')} of this host, at which the ranks were to meet "
                    "(MASTER_PORT), is occupied by another program; set MASTER_PORT to a free one"
                ) from error
            raise LaunchError(f"rank {info.rank} cannot join the other workers: {error}") from error
        self._store = PrefixStore("scaling-cells", store)
        self._group: TorchGroup | None = None
        self._gloo_groups: list[dist.ProcessGroup] = []

    def share(self, value: T) -> T:
        """Rank 0's `value` (see `scaling.files.messages`) on every rank. Collective, between cells."""
        return share_json(value, 0)

    def gather(self, value: T) -> list[T]:
        """Every rank's `value` (likewise), in rank order, on every rank. Collective."""
        return [share_json(value, rank) for rank in range(self.info.world_size)]

    def group(
        self, device: torch.device, *, peer_access: bool = True, through_host: bool = False
    ) -> TorchGroup:
        """The group of cells on such devices. Collective at first use and after a failure. `peer_access`:
        between its GPUs; `through_host`: ranks share devices, and host memory carries tensors."""
        if self._group is None:
            host = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
            data = host
            if device.type == "cuda" or through_host:
                backend = "gloo" if through_host else "nccl"
                data = dist.new_group(backend=backend, timeout=COLLECTIVE_TIMEOUT)
            self._gloo_groups = [host, data] if through_host else [host]
            failures = self._num_failures()  # before the ranks meet: none of them can have failed in a cell
            # Connections are made on first use: here, where all ranks are, and not in somebody's iteration.
            dist.all_reduce(torch.zeros(1, device="cpu" if through_host else device), group=data)
            how: dict[str, Any] = {
                "has_failed": lambda: self._num_failures() > failures,
                "libraries": self.libraries,
            }
            if through_host:
                self._group = ThroughHostGroup(data, host, device, **how)
            else:
                local_size = self.info.local_world_size
                self._group = TorchGroup(data, host, local_size, peer_access=peer_access, **how)
        return self._group

    def first_failure(self, cell_key: str) -> int:
        """Counts a failure in that cell: 1 for the first. Before `leave_group`, by which others fail too."""
        self._store.add("failures", 1)
        return int(self._store.add(f"{cell_key}/failures", 1))

    def _num_failures(self) -> int:
        """Failures of ranks in this launch so far."""
        return int(self._store.add("failures", 0))

    def leave_group(self) -> None:
        """Gives up the group after a failure, which ends waits over Gloo; NCCL's end could wait for ever."""
        self._group = None
        self.on_leave()
        for process_group in self._gloo_groups:
            dist.destroy_process_group(process_group)
        self._gloo_groups = []
        gc.collect()  # connections end with the last reference, and a group's barriers refer back to it

    def outcome(
        self,
        cell_key: str,
        failure: str | None,
        summary: Any,
        *,
        failure_order: int = 0,
        failure_kind: str | None = None,
    ) -> CellOutcome:
        """Tells the others how the cell ended here, and hears the same of them. `summary`: JSON-able facts;
        `failure_order`: what `first_failure` gave; the smallest one's reason is the cell's; `failure_kind`:
        with DEVICE_LOST this rank's device can no longer be trusted."""
        status = {"failure": failure, "order": failure_order, "summary": summary, "kind": failure_kind}
        self._store.set(f"{cell_key}/{self.info.rank}", json.dumps(status))
        known: dict[int, dict[str, Any]] = {}
        deadline: float | None = None
        pause_s = _POLL_S / 64
        while len(known) < self.info.world_size:
            for rank in range(self.info.world_size):
                key = f"{cell_key}/{rank}"
                if rank not in known and self._store.check([key]):
                    known[rank] = json.loads(self._store.get(key))
            failures = [status for status in known.values() if status["failure"]]
            if failures and deadline is None:
                deadline = time.monotonic() + EXIT_LIMIT_S
            if deadline is not None and time.monotonic() > deadline:
                break
            if len(known) < self.info.world_size:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S)
        failures = sorted((s for s in known.values() if s["failure"]), key=lambda s: int(s["order"]))
        summaries = [known[rank]["summary"] for rank in sorted(known)]
        device_lost = any(status["kind"] == DEVICE_LOST for status in known.values())
        can_go_on = len(known) == self.info.world_size and not device_lost
        first = failures[0] if failures else {"failure": None, "kind": None}
        return CellOutcome(first["failure"], can_go_on, summaries, first["kind"])

    def close(self) -> None:
        """Leaves the other workers in order. Collective."""
        dist.barrier()
        dist.destroy_process_group()
        self.closed = True


def join_limit_s() -> float:
    """How long this rank waits for the others. LaunchError: SCALING_JOIN_TIMEOUT_S is no number for it."""
    try:
        return join_timeout_s(os.environ)
    except ValueError as error:
        raise LaunchError(str(error)) from None


def _meet(
    info: RankInfo, share: Callable[[str], str] | None, address: str, waiting: Waiting, limit_s: float
) -> Any:
    """The store at which the ranks meet: rank 0's, at MASTER_PORT or a free port, or the launcher's."""
    if share is None:
        host, port = os.environ["MASTER_ADDR"], _master_port(os.environ)
        if info.rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return waiting.connect(host, port)
        store = _store(info, port, limit_s, host)
        require_here(host, store.port)
        return store
    port, store = _master_port(os.environ), None
    if info.rank == 0:
        store = _store(info, port, limit_s, address)
        address = f"{address}:{store.port}"
    host, _, port_text = share(address).rpartition(":")
    return store or waiting.connect(host, int(port_text))


def _master_port(environ: Mapping[str, str]) -> int:
    """MASTER_PORT; 0, a free one, where it is not set. Raises LaunchError: it is no port."""
    text = environ.get("MASTER_PORT") or "0"
    if not (text.isdecimal() and int(text) <= MAX_PORT):
        raise LaunchError(f"MASTER_PORT is {text!r}; it must be the number of a port, 1 to {MAX_PORT}")
    return int(text)


def _store(info: RankInfo, port: int, limit_s: float, address: str) -> Any:
    """Rank 0's; waits for nobody. It listens on all interfaces, or at the ranks' loopback address alone."""
    require_loopback()  # of the store's own connection
    listener, host = None, LOOPBACK
    if address == "localhost" or _is_loopback(address):
        host = LOOPBACK if address == "localhost" else address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    return TCPStore(
        host,
        port if listener is None else listener.getsockname()[1],
        info.world_size,
        True,
        timeout=timedelta(seconds=limit_s),
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):  # a name
        return ipaddress.ip_address(address).is_loopback
    return False


def failure_kind(error: Exception, device: torch.device) -> str:
    """As it is recorded of the run (`scaling.store.failures`)."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, DiskFullError):
        return DISK_FULL
    return DEVICE_LOST if device.type == "cuda" and _is_lost(device) else OTHER_FAILURE


def _is_lost(device: torch.device) -> bool:
    """Whether the driver reports an earlier error to whatever comes next. A query waits for nothing."""
    try:
        torch.cuda.default_stream(device).query()
    except RuntimeError:
        return True
    return False


EXIT_STOPPED = 130  # what an interrupted shell command gives, and `scaling run`

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

RECORDING = threading.Lock()  # Held while a run's end is recorded: a run that is done is not put back
HEAD_START_S = 1.0  # what rank 0 has before the others leave: their end would fail the cell there


def close_runs(folder: ResultsFolder, rank: int, world_size: int) -> None:
    """Before a rank leaves its launch: rank 0 puts running runs of that size back to planned, others wait."""
    if rank:
        time.sleep(HEAD_START_S)
        return
    with RECORDING:
        for record in folder.runs():
            if record.state == "running" and record.cell["world_size"] == world_size:
                folder.reset_run(record)
    say_line("stopped by a signal: what is finished is kept, the rest is planned")


@contextmanager
def closing_on_signals(close: Callable[[], None]) -> Iterator[None]:
    """Within it, in the main thread, either signal ends this process after `close`, called in a thread."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # The interpreter writes the number to the pipe before it calls a handler.
    handlers_before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    thread = threading.Thread(target=_wait, args=(reader, close), daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _wait(reader: int, close: Callable[[], None]) -> None:
    while number := os.read(reader, 1):
        if number[0] in SIGNALS:
            try:
                close()
            finally:
                os._exit(EXIT_STOPPED)  # the main thread may be in a call that never returns
