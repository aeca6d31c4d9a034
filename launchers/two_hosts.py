"""Two hosts on one machine, with a link as slow as you say between them: network namespaces (Linux, root).

    python -m launchers.two_hosts --rate 100mbit COMMAND [ARGUMENT]...

starts the same command on both, named host1 and host2, and waits. The two directions of the link are limited
each for itself (token bucket, tc-tbf(8)); `--delay` holds every packet back (tc-netem(8)), if the kernel has
that. The network is the only thing that is emulated. A study records SCALING_LINK_RATE and
SCALING_LINK_DELAY.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers import processes

HOSTS = ("host1", "host2")
ADDRESSES = ("198.18.0.1", "198.18.0.2")
"""Of the range that RFC 2544 keeps for tests of networks; seen inside alone."""

INTERFACE = "link0"
NAMES_FOLDER = Path("/etc/netns")
"""`ip netns exec` shows the files that it has for a namespace in place of those in /etc."""

RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")
DELAY = re.compile(r"\d+(?:\.\d+)?(?:us|ms|s)")
BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
MIN_BURST_BYTES = 16_384
BURST_S = 0.01  # of the rate: more than comes in a tick of the kernel's clock, 4 ms and less
QUEUE = "1s"  # what waits is not dropped before that
GRACE_S = 15.0  # when one host's command has failed, the other's has this long to find out

NO_SUCH_QUEUE = "Specified qdisc kind is unknown"


@dataclass(frozen=True)
class HostLink:
    """Each way, as tc writes it. `rate`: "100mbit"; None: unlimited; `delay`: one way: "5ms"."""

    rate: str | None = None
    delay: str | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not self.bits_per_s:
            raise ValueError(f"rate {self.rate!r} is not of the form 500kbit, 100mbit or 2.5gbit")
        if self.delay is not None and not DELAY.fullmatch(self.delay):
            raise ValueError(f"delay {self.delay!r} is not of the form 200us, 5ms or 1s")

    @property
    def bits_per_s(self) -> float | None:
        match = RATE.fullmatch(self.rate or "")
        return float(match[1]) * BITS[match[2]] if match else None

    @property
    def variables(self) -> dict[str, str]:
        """What the environment says of it: part of what identifies a measurement."""
        settings = {"SCALING_LINK_RATE": self.rate, "SCALING_LINK_DELAY": self.delay}
        return {name: value for name, value in settings.items() if value is not None}

    @property
    def burst_bytes(self) -> int:
        return max(MIN_BURST_BYTES, int((self.bits_per_s or 0) / 8 * BURST_S))


def why_not() -> str | None:
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if missing := [name for name in ("ip", "tc", "unshare", "hostname") if shutil.which(name) is None]:
        return f"not installed: {', '.join(missing)}; Debian: apt-get install iproute2 util-linux hostname"
    if os.geteuid():
        return "network namespaces are made by root alone"
    try:
        with two_hosts(HostLink(rate="1gbit")):
            return None
    except RuntimeError as error:
        return f"no network namespaces can be made here: {error}"


def set_up_commands(names: Sequence[str], link: HostLink) -> list[list[str]]:
    made = [["ip", "netns", "add", name] for name in names]
    ends = [["name", INTERFACE, "netns", name] for name in names]
    made.append(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]])
    for name, address in zip(names, ADDRESSES, strict=True):
        inside = ["ip", "-n", name]
        made.append([*inside, "address", "add", f"{address}/30", "dev", INTERFACE])
        made += [[*inside, "link", "set", device, "up"] for device in ("lo", INTERFACE)]
        queue = ["tc", "-n", name, "qdisc", "add", "dev", INTERFACE]
        place = ["root"]
        if link.rate:
            limit = ["rate", link.rate, "burst", f"{link.burst_bytes}b", "latency", QUEUE]
            made.append([*queue, "root", "handle", "1:", "tbf", *limit])
            place = ["parent", "1:1"]
        if link.delay:
            made.append([*queue, *place, "netem", "delay", link.delay, "limit", "100000"])
    return made


@contextlib.contextmanager
def two_hosts(link: HostLink) -> Iterator[tuple[str, str]]:
    """Yields the names of their namespaces. RuntimeError: they cannot be made; what the system said."""
    names = (f"scaling-{os.getpid()}-1", f"scaling-{os.getpid()}-2")
    try:
        _make(names, link)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
            shutil.rmtree(NAMES_FOLDER / name, ignore_errors=True)
        with contextlib.suppress(OSError):  # where others have theirs
            NAMES_FOLDER.rmdir()


def _make(names: Sequence[str], link: HostLink) -> None:
    hosts = "".join(f"{address} {host}\n" for address, host in zip(ADDRESSES, HOSTS, strict=True))
    try:
        for name in names:
            (NAMES_FOLDER / name).mkdir(parents=True)
            (NAMES_FOLDER / name / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        for command in set_up_commands(names, link):
            _carry_out(command)
    except OSError as error:
        raise RuntimeError(str(error)) from error


def _carry_out(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    message = done.stderr.strip()
    if "netem" in command and NO_SUCH_QUEUE in message:
        message += " This kernel has no netem: leave the delay out, or load its module sch_netem."
    raise RuntimeError(f"`{' '.join(command)}` says: {message}")


def on_host(index: int, name: str, command: Sequence[str]) -> list[str]:
    as_host = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', HOSTS[index]]
    return ["ip", "netns", "exec", name, *as_host, *command]


def run(link: HostLink, command: Sequence[str]) -> int:
    """At the same time; returns the first status that is not 0. What they print goes to standard error.
    However this ends, both have ended. RuntimeError: the hosts cannot be made."""
    environment = {**os.environ, **link.variables}
    with two_hosts(link) as names, contextlib.ExitStack() as stack:
        started = []
        for index, name in enumerate(names):
            process = processes.start(on_host(index, name, command), environment, sys.stderr.buffer)
            stack.callback(processes.end, process)
            started.append(process)
        return _wait(started)


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> int:
    deadline = float("inf")
    while any(process.poll() is None for process in started) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.returncode for process in started):
            deadline = time.monotonic() + GRACE_S
        time.sleep(0.05)
    return next((process.returncode for process in started if process.returncode), 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launchers.two_hosts", description=__doc__.split("\n")[0])
    parser.add_argument("--rate", help="of the link, each way: 500kbit, 100mbit, 2.5gbit")
    parser.add_argument("--delay", help="of every packet, one way: 200us, 5ms (kernels with netem)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="started on host1 and on host2")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("which command?")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return run(HostLink(options.rate, options.delay), options.command)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
