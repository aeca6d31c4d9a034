"""What the ranks of test_zygote.py run: `main` of the words that they are given."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from launchers.rank_info import RankInfo
from scaling.runtime.workers import Workers


def main(arguments):
    what, folder = arguments[0], Path(arguments[1])
    rank = int(os.environ["RANK"])
    if what == "facts":
        workers = Workers(RankInfo.from_env(os.environ))
        facts = {"pid": os.getpid(), "variable": os.environ.get("OF_THE_LAUNCH"), "words": sys.argv}
        facts |= {"threads": torch.get_num_threads(), "hash": hash("the same in one zygote")}
        facts |= {"sum_of_ranks": sum(workers.gather(rank))}
        (folder / f"{rank}.json").write_text(json.dumps(facts))
        print(f"out of {rank}\n", end="")  # one write, also where output is not buffered
        print(f"err of {rank}\n", end="", file=sys.stderr)
        workers.close()
        return 0
    if what == "fails" and rank == 1:
        return 3
    if what == "raises" and rank == 1:
        raise ValueError("planted")
    if what == "dies" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
