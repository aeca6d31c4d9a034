"""The watchers of a launch's hosts in touch with each other: rank 0's decides, the others tell it and ask.

Lines of JSON over TCP. A connection that ends without a `bye` means that the host has gone, with its ranks.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

TOKEN_VARIABLE = "SCALING_WATCHERS_TOKEN"  # noqa: S105 (its name)
CONNECT_S = 10.0
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds, seconds and tries, until a host that answers no more counts as gone."""

GONE = "gone"


@dataclass(frozen=True)
class Meeting:
    host: str
    port: int
    token: str


def open_meeting(address: str) -> tuple[socket.socket, Meeting]:
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    listener = socket.create_server(("", 0), family=family, dualstack_ipv6=has_both)
    return listener, Meeting(address, listener.getsockname()[1], secrets.token_hex(16))


class _Channel:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = b""
        self.who: Message = {}
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, message: Message) -> None:
        with suppress(OSError):  # its end is heard of when it is read
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> list[Message] | None:
        try:
            read = self._socket.recv(1 << 20)
        except OSError:
            read = b""
        if not read:
            self._socket.close()
            return None
        *lines, self._read = (self._read + read).split(b"\n")
        with suppress(ValueError):
            return [message for line in lines if isinstance(message := json.loads(line), dict)]
        return []


class Peers:
    """Without any it hears and says nothing. `decides`: this is rank 0's watcher, or the only one."""

    def __init__(self) -> None:
        self.decides = True
        self._listener: socket.socket | None = None
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        self._channels: dict[int, _Channel] = {}
        self._verdict: Message | None = None
        self.ranks: set[int] = set()

    @classmethod
    def listening(cls, descriptor: int) -> Peers:
        made = cls()
        made._listener = socket.socket(fileno=descriptor)
        return made

    @classmethod
    def of(cls, host: str, port: int, own_host: str, ranks: Sequence[int]) -> Peers:
        """Rank 0's, where it can be reached; else this watcher speaks for its host alone."""
        made = cls()
        with suppress(OSError):
            channel = _Channel(socket.create_connection((host, port), CONNECT_S))
            made._channels[channel.fileno()] = channel
            made.decides = False
            channel.who = {"host": host, "ranks": [0]}
            channel.say({"token": made._token, "host": own_host, "ranks": list(ranks)})
        return made

    @property
    def descriptors(self) -> list[int]:
        listening = [] if self._listener is None else [self._listener.fileno()]
        return [*listening, *self._channels]

    @property
    def listens(self) -> bool:
        return self._listener is not None

    @property
    def num_members(self) -> int:
        return sum(bool(channel.who) for channel in self._channels.values())

    def take(self, descriptor: int) -> list[Message]:
        if self._listener is not None and descriptor == self._listener.fileno():
            with suppress(OSError):
                channel = _Channel(self._listener.accept()[0])
                self._channels[channel.fileno()] = channel
            return []
        if descriptor not in self._channels:
            return []
        channel, messages = self._channels[descriptor], []
        heard = channel.hear()
        for message in heard or []:
            if channel.who:
                messages.append(message)
            elif message.get("token") == self._token:
                channel.who = message
                self.ranks.update(message["ranks"])
                if self._verdict is not None:  # it has come late
                    channel.say(self._verdict)
        refused = bool(heard) and not channel.who
        if heard is None or refused or any("bye" in message for message in messages):
            del self._channels[descriptor]
            if heard is None and channel.who:
                messages.append({GONE: channel.who["host"], "ranks": channel.who["ranks"]})
            self.decides = self.decides or not self._channels
        return messages

    def say(self, **message: Any) -> None:
        if "verdict" in message:
            self._verdict = message
        for channel in self._channels.values():
            if channel.who:
                channel.say(message)
