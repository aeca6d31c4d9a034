"""What lossy aggregators make of seeded gradients has the recorded bits, on the CPU and on a GPU: all
that run in threads and are lossy from their first step.

Gradients are multiples of 1/8, so that sums are exact in any order and on any processor. `python
tests/codecs/test_digests.py [cuda]` prints what belongs into digests.json.
"""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.state import save_buckets
from scaling.bucket import BucketLayout
from scaling.process_group import run_in_process

LAYOUT = BucketLayout.of([("matrix", (300, 70)), ("vector", (517,)), ("kernel", (8, 4, 3, 3))])
BY_VALUE = {"power_sgd"}
"""Products of matrices are rounded as the processor likes: compared to 1e-4."""
CASTS = {"fp16", "bf16"}
"""Nothing is summed but two values: gradients that do not fit 16 bits."""
MADE = {name: create(name) for name in sorted(BUILT_IN)}
NAMES = [n for n, one in MADE.items() if one.lossy and one.library is None and not one.settling_steps()]


def outcome(name, device):
    """Bytes of rank 0's mean and of all that it keeps; of `BY_VALUE` some values of the mean."""

    def work(group):
        generator = torch.Generator().manual_seed(group.rank)
        gradient = torch.randint(-16, 17, (LAYOUT.num_elements,), generator=generator).float() / 8
        if name in CASTS:
            gradient *= 1.1
        aggregator = create(name)
        state = aggregator.start(LAYOUT, group, torch.float32, torch.device(device))
        mean = aggregator.aggregate(state, gradient.to(device))
        return mean.cpu(), {key: value.cpu() for key, value in save_buckets([state])["0"].items()}

    mean, kept = run_in_process(2, work)[0]
    if name in BY_VALUE:
        return [round(float(value), 6) for value in (mean.norm(), *mean[:: LAYOUT.num_elements // 7])]
    digest = hashlib.sha256(mean.numpy().tobytes())
    for key in sorted(kept):
        digest.update(key.encode() + kept[key].numpy().tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_that_were_recorded(name, device):
    recorded = json.loads(Path(__file__).with_name("digests.json").read_text())[device][name]
    expected = pytest.approx(recorded, rel=1e-4, abs=1e-5) if name in BY_VALUE else recorded
    assert outcome(name, device) == expected


if __name__ == "__main__":
    device = (sys.argv[1:] or ["cpu"])[0]
    print(json.dumps({device: {name: outcome(name, device) for name in NAMES}}, indent=2))
