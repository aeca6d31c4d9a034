"""One rank goes wrong before the ranks have met, once: PLANTED is `fault rank file`."""

import os
import signal
from pathlib import Path

FAULT, RANK, ONCE = os.environ.get("PLANTED", "none -1 none").split()
forks = {"depth": 0, "children": 0}


def go_wrong():
    if Path(ONCE).exists():
        return
    Path(ONCE).touch()
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        os._exit(int(FAULT))


def in_child():
    rank, forks["children"], forks["depth"] = forks["children"], 0, forks["depth"] + 1
    if forks["depth"] == 2 and rank == int(RANK):  # a zygote forks a leader, which forks the ranks
        go_wrong()


def in_parent():
    forks["children"] += 1


if os.environ.get("RANK") == RANK and "TORCHELASTIC_RUN_ID" in os.environ:
    go_wrong()
elif FAULT != "none":
    os.register_at_fork(after_in_child=in_child, after_in_parent=in_parent)
