"""How workers of a launch find each other at the start: settings, read from the environment."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import closing

JOIN_TIMEOUT_VARIABLE = "SCALING_JOIN_TIMEOUT_S"

MEETING_TOKEN_VARIABLE = "SCALING_MEETING_TOKEN"  # noqa: S105 (its name)
"""A text that only workers of the launch know: what they say at the start of it is signed by it."""

LOOPBACK = "127.0.0.1"
LOOPBACK_LIMIT_S = 5.0

JOIN_TIMEOUT_S = 300.0
"""Without the variable: nodes of a batch job may come minutes apart."""


def join_timeout_s(environ: Mapping[str, str]) -> float:
    """SCALING_JOIN_TIMEOUT_S, or the default.

    Raises:
        ValueError: it is no positive number.
    """
    text = environ.get(JOIN_TIMEOUT_VARIABLE, "") or str(JOIN_TIMEOUT_S)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{JOIN_TIMEOUT_VARIABLE} is {text!r}; it must be a number of seconds above 0")
    return value


def require_loopback() -> None:
    """Raises a ValueError where workers of this host would wait for each other in vain."""
    try:
        with closing(socket.create_server((LOOPBACK, 0))) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_LIMIT_S).close()
    except OSError as error:
        mend = "bring up loopback (`ip link set lo up`), or allow connections to it"
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) and _has_loopback():
            mend = "no port is free: end what holds them, or widen net.ipv4.ip_local_port_range"
        raise ValueError(
            f"workers of this host meet at {LOOPBACK}, which cannot be used: "
            f"{error.strerror or error}; {mend}"
        ) from error


def _has_loopback() -> bool:
    """Whether the address is this host's: datagrams have ports of their own."""
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as tried:
            tried.bind((LOOPBACK, 0))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return True
