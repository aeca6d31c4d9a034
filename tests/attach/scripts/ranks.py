"""ranks.py SOCKET NUMBER PORT [-E] SCRIPT [WORD ...]: so many ranks of it, as by torchrun.

They are forked by `ranks.py SOCKET`, which imports torch once for all launches. Both are started with -E, as
if nothing was injected. A rank takes what PYTHONPATH says, and runs the sitecustomize that is there, but for
one that is to have -E itself.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys


def ask() -> int:
    """One launch, whose ranks end when this process does. Returns its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [request + b"\n"], [1, 2])
        return int(server.recv(8) or b"1")


def serve() -> None:
    """Imports, and forks a leader for each launch."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        importlib.import_module("torch._dynamo")  # the first optimizer, and DDP, would import it
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for leaders
        while True:
            connection, _ = server.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                lead(connection)
            connection.close()


def lead(connection: socket.socket) -> None:
    """Forks the ranks, and waits until all have ended, one has failed, or nobody waits any more."""
    text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    (world_size, port, *words), environment, folder = json.loads(text)
    for own, taken in enumerate(descriptors, 1):
        os.dup2(taken, own)
        os.close(taken)
    os.chdir(folder)
    os.environ.clear()
    os.environ |= environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world_size}
    seen, ranks, code = select.poll(), {}, 0
    for rank in range(int(world_size)):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if not (pid := os.fork()):
            connection.close()
            be_rank(words)
            sys.exit()
        ranks[os.pidfd_open(pid)] = pid
    seen.register(connection, select.POLLHUP)
    for descriptor in ranks:
        seen.register(descriptor, select.POLLIN)
    while ranks and not code:
        for descriptor, _ in seen.poll():
            seen.unregister(descriptor)
            status = os.waitpid(pid, 0)[1] if (pid := ranks.pop(descriptor, 0)) else signal.SIGTERM
            code = code or abs(os.waitstatus_to_exitcode(status))
    for pid in ranks.values():
        os.kill(pid, signal.SIGKILL)  # as torchrun, where one has failed
    connection.send(str(code).encode())
    os._exit(0)


def be_rank(words: list[str]) -> None:
    """The script, with what Python does before one."""
    is_isolated = words[0] == "-E"
    sys.argv = words[is_isolated:]
    sys.path[0] = os.path.dirname(sys.argv[0])
    if not is_isolated:
        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    with open(sys.argv[0], encoding="utf-8") as file:
        text = file.read()
    here = globals()
    here["__file__"] = sys.argv[0]
    exec(compile(text, sys.argv[0], "exec"), here)


if len(sys.argv) == 2:
    serve()
sys.exit(ask())
