"""Settings of a process that make its steps longer: which are on, and arms without them or with others."""

import json
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.distributed

from .libraries import around
from .plan import store_of_script

dist: Any = torch.distributed
_set_anomaly = torch.set_anomaly_enabled
_anomalies = {"mode": False, "check_nan": True, "is_allowed": True}  # but for the last as the script asks


def watch_anomalies() -> None:
    """The script's wish is kept, and followed while the arm allows it."""

    def ask(enabled: bool, check_nan: bool = True) -> None:
        _anomalies.update(mode=enabled, check_nan=check_nan)
        detect_anomalies(_anomalies["is_allowed"])

    torch.set_anomaly_enabled, torch.is_anomaly_enabled = ask, asks_for_anomalies


def asks_for_anomalies() -> bool:
    return _anomalies["mode"]


def detect_anomalies(is_allowed: bool) -> None:
    _anomalies["is_allowed"] = is_allowed
    _set_anomaly(_anomalies["mode"] and is_allowed, _anomalies["check_nan"])


def switched_on() -> str:
    on = ["CUDA_LAUNCH_BLOCKING"] if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0") else []
    if dist.is_available() and dist.get_debug_level() == dist.DebugLevel.DETAIL:
        on.append("TORCH_DISTRIBUTED_DEBUG=DETAIL")
    return " and ".join(on)


def switch_off() -> None:
    """For good; to be called before a process group is made and a GPU is used."""
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)
    if dist.is_available():
        dist.set_debug_level(dist.DebugLevel.OFF)
        dist.set_debug_level = dist.set_debug_level_from_env = lambda *_, **__: None


def place() -> dict[str, Any]:
    is_known = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0) if is_known else range(os.cpu_count() or 1))
    return {"host": os.uname().nodename, "affinity": cores}


def threads_that_fit(own: dict[str, Any], places: Sequence[dict[str, Any]]) -> int:
    """So many threads that each has a core, and the ranks that share cores have equal parts of them."""
    here = [set(other["affinity"]) for other in places if other["host"] == own["host"]]
    share = sum(Fraction(1, max(1, sum(core in other for other in here))) for core in own["affinity"])
    return max(1, int(share))


def fit_threads() -> None:
    own = place()
    torch.set_num_threads(threads_that_fit(own, _places(own)))
    pid = os.getpid()

    @around(torch, "set_num_threads")
    def _(set_num_threads: Any, nthreads: int) -> None:
        if os.getpid() != pid:  # a loader's worker, which takes one
            set_num_threads(nthreads)


def _places(own: dict[str, Any]) -> list[dict[str, Any]]:
    if not dist.is_initialized():
        return [own]
    if (store := store_of_script()) is None:
        return [own] * int(os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size())
    name = "scaling_attach_place_{}"
    store.set(name.format(dist.get_rank()), json.dumps(own))
    return [json.loads(store.get(name.format(rank))) for rank in range(dist.get_world_size())]
