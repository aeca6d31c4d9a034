"""ranks.py NUMBER PORT [-E] SCRIPT [WORD ...]: so many ranks of it, as by torchrun, with one import of torch.

It is started with -E, as if nothing was injected, and imports torch before it forks the ranks. A rank then
takes what PYTHONPATH says, and runs the sitecustomize that is there, unless it is to have -E itself.
"""

import importlib
import os
import signal
import sys

import torch._dynamo  # noqa: F401 (the first optimizer, and DDP, would import it)


def be_rank() -> None:
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


world_size, port, *words = sys.argv[1:]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world_size}
ranks = set()
for rank in range(int(world_size)):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if not (pid := os.fork()):
        be_rank()
        sys.exit()
    ranks.add(pid)
code = 0
while ranks and not code:
    pid, status = os.wait()
    ranks.remove(pid)
    code = abs(os.waitstatus_to_exitcode(status))
for pid in ranks:
    os.kill(pid, signal.SIGKILL)  # as torchrun, where one has failed
sys.exit(code)
