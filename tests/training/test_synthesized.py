"""A synthesised schedule between real processes gives the mean that all_reduce gives."""

import os

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.link_bound import PairLinks
from scaling.collectives.schedule_file import to_yaml
from scaling.collectives.synthesis import packings
from tests.ranks import as_rank
from tests.training.small import CPU, all_of
from topologies.schema import load

LAYOUT = BucketLayout.of([("weights", (200, 301)), ("bias", (7,))])


def means(group):
    """Whether both are the same; what was sent, and what is stated."""
    generator, found = torch.Generator().manual_seed(group.rank), []
    gradient = torch.randint(-50, 50, (LAYOUT.num_elements,), generator=generator).float()
    schedule = create("schedule", {"collective": os.environ["SYNTHESIZED"]})
    for aggregator in (create("all_reduce"), schedule):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        group.meter.reset()
        found.append(aggregator.aggregate(state, gradient.clone()).clone())
    stated = schedule.wire_bytes(LAYOUT, group.world_size, group.rank, 4)
    return torch.equal(*found), group.meter.bytes_sent, stated


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 4])
def test_mean_gradient_is_that_of_all_reduce(on_ranks, tmp_path, world_size):
    machine = load("dual-k80")
    *_, (schedule, _) = packings(PairLinks.of(machine, machine.ranks(world_size)))
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(schedule))
    for rank in on_ranks(__file__, world_size, SYNTHESIZED=str(path)):
        same, sent, stated = rank["means"]
        assert (same, sent) == (True, stated)
        assert sent > 0


if __name__ == "__main__":
    as_rank(all_of(means))
