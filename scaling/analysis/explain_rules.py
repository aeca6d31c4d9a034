"""The table of rules that `explain` applies to a budget.

They are tried in this order; docs/how-to/read-a-report.md has the same table, with the words of each. A
threshold is a part of the step unless that table says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling.analysis import explain_doubts as doubts
from scaling.analysis import explain_exchange as exchange
from scaling.analysis import explain_limits as limits
from scaling.analysis import explain_ranks as ranks
from scaling.analysis.cautions import LARGEST_PROFILING_OVERHEAD
from scaling.analysis.explain_view import Values, View


@dataclass(frozen=True)
class Rule:
    """A rule: a condition, and the finding that it gives.

    Attributes:
        holds: the rule itself: the values of its finding, `share` among them; None where it does not hold.
        columns: of summary.csv that it rests on.
        threshold: the number it holds against; None where there is none.
    """

    holds: Callable[[View], Values | None]
    columns: tuple[str, ...]
    threshold: float | None = None

    @property
    def name(self) -> str:
        """The rule's name, which is the kind of its findings."""
        return self.holds.__name__


LIMITS = (
    Rule(limits.oversubscribed, ("world_size", "threads", "num_nodes")),
    Rule(ranks.throttled_gpu, ("warnings", "forward_s", "backward_s"), ranks.LOST_SHARE),
    Rule(ranks.shared_gpu, ("warnings", "forward_s", "backward_s"), ranks.LOST_SHARE),
    Rule(ranks.slow_rank, ("profiled_iteration_s",), ranks.LOST_SHARE),
    Rule(ranks.periodic, ("iteration_s",)),
    Rule(limits.busy_host, ("iteration_s",), limits.QUEUED_SHARE),
    Rule(
        exchange.tiny_buckets, ("exposed_comm_s", "wire_bytes_per_rank", "bucket_mb"), exchange.EXPOSED_SHARE
    ),
    Rule(limits.launches, ("step", "iteration_s", "mfu"), limits.BUSY_ENOUGH),
    Rule(limits.small_batch, ("local_batch", "forward_s", "backward_s"), limits.BATCH_SPEED),
    Rule(
        exchange.exposed_communication,
        ("exposed_comm_s", "hidden_comm_s", "wire_bytes_per_rank", "profiled_iteration_s"),
        exchange.EXPOSED_SHARE,
    ),
    Rule(
        exchange.not_hidden,
        ("exposed_comm_s", "hidden_comm_s", "profiled_iteration_s"),
        exchange.HIDDEN_SHARE,
    ),
    Rule(exchange.host_sums, ("d2h_s", "reduce_s", "h2d_result_s"), exchange.HOST_SHARE),
    Rule(exchange.codec, ("encode_s", "decode_s", "wire_bytes_per_rank"), exchange.CODEC_SHARE),
    Rule(limits.feeding, ("input_s", "h2d_s", "input_placement"), limits.INPUT_SHARE),
    Rule(limits.update, ("update_s",), limits.UPDATE_SHARE),
    Rule(limits.open_time, ("unattributed_s",), limits.OPEN_SHARE),
    Rule(exchange.waiting, ("wait_s",), exchange.WAIT_SHARE),
    Rule(limits.computation, ("forward_s", "backward_s", "mfu"), limits.COMPUTE_SHARE),
    Rule(
        exchange.compression,
        ("wire_bytes_per_rank", "exposed_comm_s", "hidden_comm_s", "encode_s", "decode_s"),
    ),
)
"""What takes the time."""

DOUBTS = (
    Rule(doubts.failed, ("state", "reason")),
    Rule(doubts.target, ("target_state",)),
    Rule(doubts.disturbed_gpu, ("warnings",)),
    Rule(doubts.straggler, ("skew_s", "profiled_iteration_s"), doubts.SKEW_SHARE),
    Rule(doubts.no_speedup, ("speedup",), doubts.NO_SPEEDUP),
    Rule(doubts.scatter, ("iteration_s_low", "iteration_s_high"), doubts.WIDE_INTERVAL),
    Rule(doubts.noise, ("noise_floor",), doubts.LARGE_FLOOR),
    Rule(
        doubts.profiling_effect, ("profiling_overhead_s", "profiled_iteration_s"), LARGEST_PROFILING_OVERHEAD
    ),
    Rule(doubts.one_launch, ("repeats",)),
)
"""What makes the numbers doubtful."""

RULES = (*LIMITS, *DOUBTS)
