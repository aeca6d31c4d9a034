"""Why the steps of a script without DistributedDataParallel are not measured."""

import gc
import sys

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer

NO_SWITCH = "arms cannot be switched within the process: "
"""Then each arm is a process of its own."""

USES = {
    "deepspeed.runtime.engine": "DeepSpeed; its wall_clock_breakdown shows where a step's time goes",
    "megatron.core": "Megatron; its --timing-log-level 2 shows where a step's time goes",
    "horovod.torch": "Horovod; HOROVOD_TIMELINE=FILE writes what it does",
}
"""Modules that a script in which no DDP model steps has loaded -> what it uses, and what shows its time."""

HOLDS = {
    "FullyShardedDataParallel": "FSDP: its exchange cannot be left out; take a trace with torch.profiler",
    "DataParallel": "DataParallel, one process for all; DistributedDataParallel under torchrun is faster",
}
"""Classes of which such a script has an object, likewise."""

SHARDED = "FSDP2 or tensor parallelism: its exchange cannot be left out; take a trace with torch.profiler"


def without_ddp() -> str:
    reason = "it makes steps without DistributedDataParallel"
    if dist.is_initialized() and dist.get_world_size() > 1:
        return (
            f"{reason}; where it averages gradients in a way of its own, put "
            "`with scaling.attached(model, optimizer):` around its training loop"
        )
    return (
        f"{reason}, in one process; start it in several: torchrun --nproc-per-node=2, or "
        "accelerate launch --multi_gpu --num_processes=2"
    )


def what_it_uses(optimizer: Optimizer) -> str | None:
    kinds = {type(parameter).__name__ for group in optimizer.param_groups for parameter in group["params"]}
    if "DTensor" in kinds:
        return SHARDED
    if "FlatParameter" in kinds:
        return HOLDS["FullyShardedDataParallel"]
    for module, text in USES.items():
        if module in sys.modules:
            return text
    names = {type(thing).__name__ for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)}
    return next((text for name, text in HOLDS.items() if name in names), None)
