"""How a benchmark of several processes ends: all at once, in order, without NCCL's own end.

NCCL's communicators wait at their end until every CUDA graph that holds one of their operations is gone,
however long that takes, and the end of one rank's can wait for another's. So a benchmark writes its results
first; here the ranks let their graphs go, meet on the host, and leave by `os._exit`, which waits for nothing.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

import torch

from scaling.process_group import TorchGroup


def let_go() -> None:
    """Frees what nobody refers to any more: graphs, the operations in them, and their memory."""
    gc.collect()  # steps and DDP refer to themselves in circles
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def leave(group: TorchGroup) -> NoReturn:
    """Ends this process with exit code 0 once every rank is here. Collective.

    Args:
        group: the ranks; nothing runs in it any more.
    """
    let_go()
    group.barrier()  # over the host: it needs no communicator
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
