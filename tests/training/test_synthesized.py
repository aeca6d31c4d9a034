"""A synthesised schedule between real processes gives the mean that all_reduce gives."""

import pytest

from scaling.collectives.link_bound import PairLinks
from scaling.collectives.schedule_file import to_yaml
from scaling.collectives.synthesis import packings
from topologies.schema import load

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("world_size", [2, 4])
def test_mean_gradient_is_that_of_all_reduce(on_ranks, monkeypatch, tmp_path, world_size):
    machine = load("dual-k80")
    *_, (schedule, _) = packings(PairLinks.of(machine, machine.ranks(world_size)))
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(schedule))
    monkeypatch.setenv("SYNTHESIZED", str(path))
    for rank in on_ranks("synthesized_worker.py", world_size):
        assert rank["same"]
        assert rank["sent"] == rank["stated"] > 0
