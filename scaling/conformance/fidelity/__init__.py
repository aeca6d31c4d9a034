"""The fidelity sheet of an aggregator that is lossy: what it loses, what it sends, and when that pays.

1. Loss: the gradients of a real training, recorded once (a perceptron on the digits, 4 ranks, 50 steps of
   exact SGD), go through the aggregator. Its results are compared with the float64 mean: the first one, and
   the sum of all 50, in which error feedback has made good what single steps lack.
2. Agreement: every rank takes 50 steps with its own results; their parameters are compared bit for bit.
3. Bytes that a rank sends for a larger gradient: by the formula, and as its group has metered them.
4. Encode and decode rates: seconds of these phases on rank 0, of a step over that gradient, the median of
   several, on the GPU if there is one, else on one thread of the processor.
5. Break-even bandwidth: the link speed B below which a step with the aggregator takes less time than one with
   `all_reduce`. Seconds of the exact exchange: A / B, with A = 2(n-1)/n S; of this one: W / B + E + D, with W
   its bytes, E and D the seconds of encoding and decoding. So B = (A - W) / (E + D). Latency, the library's
   own additions and any overlap with the backward pass are left out of both.

Ranks are threads that compute one at a time, so a rank's phases are its own.
"""

from scaling.conformance.fidelity.gradients import recorded_gradients
from scaling.conformance.fidelity.measure import has_sheet, make_sheet, sheet_of
from scaling.conformance.fidelity.sheet import Sheet

__all__ = ["Sheet", "has_sheet", "make_sheet", "recorded_gradients", "sheet_of"]
