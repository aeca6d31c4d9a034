"""What a process writes of its steps."""

import inspect
import json
import os
import sys
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .libraries import LEFT_OUT
from .settings import place, switched_on

# Modules that log experiments: off in these runs, or writing to the run's folder.
TRACKERS = ("wandb", "comet_ml", "neptune", "mlflow", "clearml", "tensorboard")
# What the agent knows under the same name.
AS_IT_IS = "warmup own_s phases batches cached_batches digests collectives passed device all_used"

_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters  # before it is wrapped
# Of the torch that runs:
BUFFERS_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"


def write(agent: Any) -> None:
    (rank, world_size), own = agent.place, place()
    known = [model._get_ddp_logging_data() for model in agent.ddp()]
    sizes = [str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "") for data in known]
    record = {
        "rank": rank, "world_size": world_size, "is_last": agent.is_stopping,
        "arms": agent.plan.arms, "labels": agent.plan.labels, "step_s": times_s(agent),
        "host_s": list(agent.marks.values()), "counts": list(agent.counts_of.values()),
        **{name: getattr(agent, name) for name in AS_IT_IS.split()},
        "num_models": len(agent.models), "pid": os.getpid(), "threads": torch.get_num_threads(),
        **own, "cores": len(own["affinity"]), "host_cores": os.cpu_count() or 1,
        "host_only": os.environ.get("NCCL_P2P_DISABLE", "0") not in ("", "0")
        or os.environ.get("NCCL_P2P_LEVEL", "") in ("0", "LOC"),
        "gradients": [list(one.shape) for of in agent.models for one in of.parameters() if one.requires_grad],
        "float32_products": torch.get_float32_matmul_precision() == "highest"
        and not agent.facts.get("autocasts"),
        "buffers_option": BUFFERS_OPTION, "debugging": switched_on(),
        "trackers": {name: LEFT_OUT[name] for name in TRACKERS if name in sys.modules},
        "uploads": LEFT_OUT["uploads"],
        "bucket_bytes": [int(size) for text in sizes for size in text.split(",") if size.strip()],
        "buffer_bytes": sum(one.nbytes for of in agent.ddp() if of.broadcast_buffers for one in of.buffers()),
        "bucket_mb": next((model.bucket_bytes_cap / 2**20 for model in agent.ddp()), None),
        **agent.facts,
    }  # fmt: skip
    unfinished = agent.out / f".rank{rank}.json"
    unfinished.write_text(json.dumps(record))
    unfinished.rename(agent.out / f"rank{rank}.json")


def times_s(agent: Any) -> list[list[float]]:
    """The end of every step; of a GPU's by its own clock, which the host's runs ahead of."""
    if not agent.events:
        return list(agent.marks.values())
    torch.cuda.synchronize()
    index, events = next(iter(agent.events.items()))
    first, first_s = events[0], agent.marks[index][0]
    return [[first_s + first.elapsed_time(end) / 1e3 for end in ends] for ends in agent.events.values()]
