"""The table of rules by which `explain` turns a budget into sentences.

Each has a threshold, which is its own part of a step unless its text says otherwise, the columns of
summary.csv that it rests on, and what it says. They are tried in this order; docs/reading-the-report.md holds
the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling.analysis import explain_doubts as doubts
from scaling.analysis import explain_exchange as exchange
from scaling.analysis import explain_limits as limits
from scaling.analysis.cautions import LARGEST_LOOKING
from scaling.analysis.explain_look import Look, Told


@dataclass(frozen=True)
class Rule:
    """When a finding is told.

    Attributes:
        name: for JSON.
        threshold: the number it holds against; None where there is none.
        when: what is held against it, for people.
        says: the sentence, with its numbers left open.
        then: the next experiment.
        columns: of summary.csv that it rests on.
        look: the rule itself.
        is_limit: whether it tells what takes the time; else what makes the numbers doubtful.
    """

    name: str
    threshold: float | None
    when: str
    says: str
    then: str
    columns: tuple[str, ...]
    look: Callable[[Look], Told | None]
    is_limit: bool = True


LIMITS = (
    Rule("oversubscribed", None, "workers x threads of a node > its cores, on CPUs",
         "N workers with T threads in all share C CPU cores: they take turns", "world_sizes up to C",
         ("world_size", "threads", "num_nodes"), limits.oversubscribed),
    Rule("launches", limits.BUSY_ENOUGH, "iteration of the captured step / own iteration < 0.7, on GPUs",
         "bound by Python launches: GPU busy at most 23% of the step", "step=captured",
         ("step", "iteration_s"), limits.launches),
    Rule("small_batch", limits.BATCH_SPEED,
         "samples a second of forward and backward < 0.5 of those at the largest batch per GPU measured",
         "batch per GPU 32 leaves the GPU idle", "step=captured, a larger batch, fewer GPUs",
         ("local_batch", "forward_s", "backward_s"), limits.small_batch),
    Rule("straggler", exchange.SKEW_SHARE, "skew_s >= 10% of the step",
         "stragglers: rank 2 comes last to the exchange in 98% of the steps, 2.2 ms after the first",
         "budget.csv, the chrome trace", ("skew_s", "split_iteration_s"), exchange.straggler),
    Rule("exposed_communication", exchange.EXPOSED_SHARE, "exposed_comm_s >= 20% of the step",
         "exposed communication 88% of the step on the host link, 24 GB/s a rank",
         "peer access, step=overlapped, the fastest aggregator measured, a larger batch",
         ("exposed_comm_s", "comm_hidden_s", "wire_bytes_per_rank", "split_iteration_s"),
         exchange.exposed_communication),
    Rule("not_hidden", exchange.HIDDEN_SHARE,
         "in the step overlapped, less than 20% of the exchange hidden and 10% of the step exposed",
         "the step is overlapped, but 0% of its exchange is hidden", "bucket_mb, a hook that does not wait",
         ("exposed_comm_s", "comm_hidden_s", "split_iteration_s"), exchange.not_hidden),
    Rule("host_sums", exchange.HOST_SHARE, "d2h_s + reduce_s + h2d_result_s >= 20% of the step",
         "bound by the host's memory: copies up 12%, sums 30%, copies back 10% of the step",
         "the fastest aggregator measured, or all_reduce", ("d2h_s", "reduce_s", "h2d_result_s"),
         exchange.host_sums),
    Rule("codec", exchange.CODEC_SHARE, "encode_s + decode_s >= 20% of the step",
         "encoding and decoding take 40% of the step", "an aggregator without a codec",
         ("encode_s", "decode_s", "wire_bytes_per_rank"), exchange.codec),
    Rule("feeding", limits.INPUT_SHARE, "input_s + h2d_s >= 10% of the step",
         "input over pageable memory: 35% of the step", "input_placement=pinned, more loader_workers",
         ("input_s", "h2d_s", "input_placement"), limits.feeding),
    Rule("waiting", exchange.WAIT_SHARE, "wait_s >= 20% of the step, on the rank that waits least",
         "waiting for other ranks 25% of the step", "arrived_after_first_s in budget.csv", ("wait_s",),
         exchange.waiting),
    Rule("update", limits.UPDATE_SHARE, "update_s >= 25% of the step, where launches do not bind it",
         "the update takes 30% of the step", "a larger batch per worker", ("update_s",), limits.update),
    Rule("open_time", limits.OPEN_SHARE, "unexplained_s >= 10% of the step",
         "12% of the step lies in no phase", "the chrome trace", ("unexplained_s",), limits.open_time),
    Rule("computation", limits.COMPUTE_SHARE,
         "forward_s + backward_s >= 60% of the step, and neither launches, small_batch nor oversubscribed",
         "bound by computation: forward and backward 90% of the step", "more workers; tf32=true",
         ("forward_s", "backward_s"), limits.computation),
    Rule("compression", None,
         "bytes saved / time of a lossy codec measured beside, against bytes/s; not if overlapped",
         "one_bit breaks even below 19 GB/s, measured 24: it does not pay", "its accuracy, where it may pay",
         ("wire_bytes_per_rank", "exposed_comm_s", "comm_hidden_s", "encode_s", "decode_s"),
         exchange.compression),
)  # fmt: skip
"""What takes the time."""

DOUBTS = (
    Rule("failed", None, "a repeat failed", "failed: its reason", "a smaller batch, or `--retry-failed`",
         ("state", "reason"), doubts.failed, is_limit=False),
    Rule("target", None, "a training missed its target accuracy", "the target of 97% was not reached",
         "more epochs", ("target_state",), doubts.target, is_limit=False),
    Rule("disturbed_gpu", None, "a GPU was throttled, or others computed on it", "throttled: power cap",
         "a quiet machine", ("warnings",), doubts.disturbed_gpu, is_limit=False),
    Rule("no_speedup", doubts.NO_SPEEDUP, "speedup < 1 with several workers",
         "4 workers get through fewer samples than one: speedup 0.8", "fewer workers, a larger batch",
         ("speedup",), doubts.no_speedup, is_limit=False),
    Rule("scatter", doubts.WIDE_INTERVAL, "half of the 95% interval > 5% of iteration_s",
         "the 95% interval is +-12%", "more repeats", ("iteration_s_low", "iteration_s_high"),
         doubts.scatter, is_limit=False),
    Rule("noise", doubts.LARGE_FLOOR, "noise_floor > 5%",
         "two measurements of the same differ by up to 8% here", "a quiet machine", ("noise_floor",),
         doubts.noise, is_limit=False),
    Rule("looking", LARGEST_LOOKING, "looking_s > 5% of the step, either way",
         "the split steps are 7% longer than unsplit ones", "trust iteration_s",
         ("looking_s", "split_iteration_s"), doubts.looking, is_limit=False),
    Rule("one_launch", None, "one repeat of a timing", "measured in one launch", "repeats=3", ("repeats",),
         doubts.one_launch, is_limit=False),
)  # fmt: skip
"""What makes the numbers doubtful."""

RULES = (*LIMITS, *DOUBTS)


def rules_as_markdown() -> str:
    """The table for the documents: a line a rule."""
    lines = ["| rule | holds when | says | then | columns |", "|---|---|---|---|---|"]
    for rule in RULES:
        columns = ", ".join(f"`{name}`" for name in rule.columns)
        lines.append(f"| `{rule.name}` | {rule.when} | {rule.says} | {rule.then} | {columns} |")
    return "\n".join(lines) + "\n"
