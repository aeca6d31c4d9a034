"""One rank of test_synthesized.py: the mean gradient by all_reduce and by a synthesised schedule."""

import json
import os
import sys
from pathlib import Path

import torch

from launchers.rank_info import RankInfo
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.runtime.workers import Workers

LAYOUT = BucketLayout.of([("weights", (200, 301)), ("bias", (7,))])


def main(out: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workers = Workers(RankInfo(rank, rank, world_size, world_size, "test"))
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
    out.write_text(json.dumps({"same": torch.equal(*means), "sent": sent[1], "stated": stated}))
    workers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
