"""The arms: a row of one table each. What an arm changes in a process of the script is in `changes`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

NO_SWITCH = "arms cannot be switched within the process: "  # then each arm is a process of its own
# What a rank says that has seen no error; one that `mp.spawn` started sees none of its own.
NO_STEP = "it ended before an optimizer's step"
TRACED_STEPS = 5
LONGEST_BLOCK = 7  # steps of an arm in a round, at most

# When an arm is on: in blocks of steps within one process of the script, or in a run for itself.
SWITCHED, LATER, PROCESS = "switched", "switched, from the second launch on", "a process of its own"


@dataclass(frozen=True)
class Arm:
    name: str
    when: str
    change: str
    question: str
    excluded_by: tuple[str, ...]  # arms that cannot be on in the same process; every row says it
    # Called with the agent where a block begins and ends, or at the start of a run of its own.
    on: Callable[[Any], None] = lambda _: None
    off: Callable[[Any], None] = lambda _: None
    exchanges: bool = True  # gradients and buffers are exchanged
    has_phases: bool = False  # the phases of a step are timed
    is_settled: bool = False  # after a GPU has finished each
    hook: str = "all_reduce"  # what DDP calls for each bucket: a name in `changes`, or an aggregator
    bucket_mb: float | None = None
    # Before the change of a step's time; `usual` is what processes know without it, `own` with it.
    said: str = ""
    finding: str = ""  # the kind where it is faster for sure; `<finding>_advice` is its template
    skipped: tuple[str, ...] = ()  # rules in `scaling.attach.arms` by which it is not run
    at_start: Callable[..., None] | None = None  # called before torch makes a process group
    without: str = ""  # the fact that is false then
    is_alone: bool = False  # one worker runs
    is_bare: bool = False  # nothing is hooked
    is_traced: bool = False  # under torch.profiler
    is_cached: bool = False  # loaders give kept batches
    replaces_hook: bool = False  # the script's own hook is not used


def _later(module: str, name: str, *arguments: Any) -> Callable[..., None]:
    """A call of what needs torch, which this module does without."""
    return lambda *_: getattr(import_module(f".{module}", __package__), name)(*arguments)


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda agent: setattr(agent, name, value)


ALL, NONE = ("*",), ()  # who excludes an arm

_ROWS = (
    Arm("baseline", SWITCHED, "nothing", "how long is a step", NONE),
    Arm("aa", SWITCHED, "nothing", "how much do steps differ for no reason", NONE),
    Arm("no_exchange", SWITCHED,
        "no gradients, buffers, shards of `ZeroRedundancyOptimizer` or used parameters are exchanged; "
        "on a CPU the phases of each step are timed",
        "what does the exchange cost, and which rank is slow", NONE, exchanges=False, has_phases=True,
        hook="local"),
    Arm("cached_input", SWITCHED, "each loader gives one batch again and again; evaluations load theirs",
        "what does the input cost", NONE, is_cached=True, skipped=("no_input",)),
    Arm("no_collectives", LATER, "the script's own all-reduces, gathers and barriers exchange nothing",
        "what do the script's own collectives cost", NONE, on=_set("leaves_out_collectives", True),
        off=_set("leaves_out_collectives", False), skipped=("no_collectives",),
        said="without the script's own collectives", finding="collectives"),
    Arm("no_anomaly", LATER, "no anomaly detection", "what does it cost to look for NaN", NONE,
        on=_later("settings", "detect_anomalies", False), off=_later("settings", "detect_anomalies", True),
        without="anomaly detection", skipped=("is_without",), said="without anomaly detection",
        finding="anomaly"),
    Arm("timed", LATER, "as `baseline`, and the phases of each step are timed", "what do time marks cost",
        NONE, has_phases=True, said="with its phases timed", skipped=("is_apart",)),
    *(Arm(f"{kind}_hook", LATER, f"DDP's `{kind}_compress_hook`", "what do half the bytes give", NONE,
          hook=kind, said=f"with {kind}_compress_hook", skipped=rules)
      for kind, rules in (("fp16", ("no_ddp", "no_gain")), ("bf16", ("no_ddp", "no_gain", "no_gpu")))),
    Arm("one_bit_hook", LATER, '`scaling.comm_hook("one_bit", model)`', "what does 1-bit compression give",
        NONE, on=lambda agent: _later("changes", "require_exchange", agent)(), hook="one_bit",
        said='with scaling.comm_hook("one_bit")', skipped=("no_ddp", "no_gain", "no_gpu")),
    Arm("marked", LATER, "as `no_exchange`, and a GPU finishes each phase before the next begins",
        "where does the time of a step on a GPU go", NONE, exchanges=False, has_phases=True, is_settled=True,
        hook="local", skipped=("no_gpu",)),
    Arm("clock", PROCESS, "nothing: no hook, no phases", "how long is a step of the script as it is", ALL,
        is_bare=True),
    Arm("trace", PROCESS, "nothing; five steps under torch.profiler", "when does the GPU idle", ALL,
        is_traced=True, skipped=("no_gpu",)),
    Arm("plain_all_reduce", PROCESS, "all-reduce in place of the script's own communication hook",
        "does that hook make steps shorter", ALL, replaces_hook=True, skipped=("no_own_hook",),
        said="with all-reduce in place of {usual[script_hook]}", finding="hook"),
    Arm("threads", PROCESS, "as many threads as fit on the cores of a rank", "do threads share cores", ALL,
        on=_later("settings", "fit_threads"), skipped=("threads_fit",), finding="threads",
        said="with {own[threads]} instead of {usual[threads]} threads a rank"),
    Arm("no_debugging", PROCESS, "no `TORCH_DISTRIBUTED_DEBUG=DETAIL` or `CUDA_LAUNCH_BLOCKING`",
        "what do debugging switches cost", ALL, at_start=_later("settings", "switch_off"),
        without="debugging", skipped=("is_without",), said="without {usual[debugging]}", finding="debugging"),
    *(Arm(f"buckets_{size}", PROCESS, f"DDP's `bucket_cap_mb={size}`", "would other buckets be faster", ALL,
          bucket_mb=float(size), skipped=("no_ddp", "one_bucket")) for size in (2, 25, 200)),
    Arm("one_worker", PROCESS, "one process in place of all", "how efficient are several workers", ALL,
        is_alone=True),
)  # fmt: skip

ARMS = {arm.name: arm for arm in _ROWS}


def row_of(name: str) -> Arm:
    """That arm's; of a launch in which arms are switched, the one's with which it begins."""
    return ARMS.get(name) or ARMS["baseline"]


# Collectives that can be left out: a rank makes their results of its own part.
SAFE = {"all_reduce", "barrier", "all_gather", "all_gather_object", "all_gather_into_tensor"}
BUCKETS = tuple(arm.name for arm in _ROWS if arm.bucket_mb)


def order_of(arms: Sequence[str], seed: int, number: int) -> list[str]:
    drawn = list(arms)
    random.Random(f"{seed}-{number}").shuffle(drawn)
    return drawn
