"""A mirror that files are downloaded from."""

import http.server
import threading
from dataclasses import dataclass, field

import pytest


@dataclass
class Mirror:
    """A web server on a free loopback port.

    Attributes:
        address: of the server, with a "/" at the end.
        contents: path -> what is there; another path is not found.
        breaks_after_bytes: of every answer; None: sends it all.
        knows_ranges: answers a request for a range with that range, not with the whole.
        asked: (path, Range header) of every request so far.
    """

    address: str = ""
    contents: dict = field(default_factory=dict)
    breaks_after_bytes: int | None = None
    knows_ranges: bool = True
    asked: list = field(default_factory=list)

    def answer(self, path, wanted):
        """Status, headers and body."""
        self.asked.append((path, wanted))
        if path not in self.contents:
            return 404, {}, b""
        content = self.contents[path]
        if wanted is None or not self.knows_ranges:
            return 200, {}, content
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return 416, {}, b""
        return 206, {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}, content[start:]


@pytest.fixture
def start_mirror(monkeypatch):
    """start_mirror({path: content}, breaks_after_bytes=...) -> a running Mirror."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(contents, **behaviour):
        mirror = Mirror(contents=contents, **behaviour)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, headers, body = mirror.answer(self.path, self.headers.get("Range"))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": len(body)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body[: mirror.breaks_after_bytes])

            def log_message(self, *arguments):
                """Quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        mirror.address = f"http://127.0.0.1:{server.server_port}/"
        return mirror

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
