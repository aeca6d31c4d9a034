"""One rank of test_synthesized.py: the mean gradient by all_reduce and by a synthesised schedule."""

import os
from typing import Any

import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.runtime.workers import Workers
from tests.ranks import as_rank

LAYOUT = BucketLayout.of([("weights", (200, 301)), ("bias", (7,))])


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(torch.device("cpu"))
    generator = torch.Generator().manual_seed(group.rank)
    gradient = torch.randint(-50, 50, (LAYOUT.num_elements,), generator=generator).float()
    means, sent = [], []
    path = os.environ["SYNTHESIZED"]
    for aggregator in (create("all_reduce"), create("schedule", {"collective": path})):
        state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
        group.meter.reset()
        mean = aggregator.aggregate(state, gradient.clone())
        assert mean is not None
        means.append(mean.clone())
        sent.append(group.meter.bytes_sent)
    stated = aggregator.wire_bytes(LAYOUT, group.world_size, group.rank, 4)
    return {"same": torch.equal(*means), "sent": sent[1], "stated": stated}


if __name__ == "__main__":
    as_rank(seen_by)
