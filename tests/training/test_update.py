"""Both update sites take torch's SGD step; where it is taken changes no bit."""

import pytest
import torch
from torch import nn

from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.replica import Replica
from scaling.training.update import HostUpdate, ReplicaUpdate, SgdSettings, update_at

NUM_STEPS = 10

SETTINGS = [
    SgdSettings(0.1),
    SgdSettings(0.1, momentum=0.9),
    SgdSettings(0.1, weight_decay=0.01),
    SgdSettings(0.1, momentum=0.9, weight_decay=0.01),
    SgdSettings(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
]


def small_replica() -> Replica:
    torch.manual_seed(3)
    return Replica(nn.Linear(7, 3))


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(24, generator=generator) for _ in range(NUM_STEPS)]


def parameters_after(site: str, settings: SgdSettings, world_size: int) -> list[list[torch.Tensor]]:
    """[rank][step] parameters, all ranks given the same mean."""

    def work(group: InProcessGroup) -> list[torch.Tensor]:
        replica = small_replica()
        update = update_at(site, replica, settings, group)
        taken = []
        for mean in gradients():
            update.apply(mean.clone() if site == "replica" or group.rank == 0 else None)
            taken.append(replica.parameters.clone())
            group.barrier()
        return taken

    return run_in_process(world_size, work)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
class TestBothSites:
    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_host_update_equals_replica_update_bit_for_bit(self, settings, world_size):
        on_replicas = parameters_after("replica", settings, world_size)
        on_host = parameters_after("host", settings, world_size)
        for rank in range(world_size):
            for step in range(NUM_STEPS):
                assert torch.equal(on_host[rank][step], on_replicas[0][step]), (rank, step)

    def test_update_is_torchs_sgd(self, settings):
        module = small_replica().module
        flat = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
        optimizer = torch.optim.SGD(
            [flat],
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
        )
        for step, mean in enumerate(gradients()):
            flat.grad = mean
            optimizer.step()
            assert torch.equal(parameters_after("replica", settings, 1)[0][step], flat.detach())


@pytest.mark.parametrize("site", ["replica", "host"])
def test_update_does_not_change_the_mean(site):
    def work(group: InProcessGroup) -> bool:
        update = update_at(site, small_replica(), SETTINGS[-1], group)
        mean = gradients()[0]
        for _ in range(3):
            update.apply(mean)
        return torch.equal(mean, gradients()[0])

    assert run_in_process(1, work) == [True]


def test_module_sees_the_new_parameters():
    def work(group: InProcessGroup) -> bool:
        replica = small_replica()
        HostUpdate(replica, SETTINGS[0], group).apply(gradients()[0] if group.rank == 0 else None)
        weight, bias = replica.module.weight, replica.module.bias
        return torch.equal(torch.cat([weight.reshape(-1), bias]), replica.parameters)

    assert run_in_process(2, work) == [True, True]


def test_host_update_starts_from_rank_0s_parameters():
    def work(group: InProcessGroup) -> torch.Tensor:
        replica = small_replica()
        with torch.no_grad():
            replica.parameters.add_(group.rank)
        HostUpdate(replica, SETTINGS[0], group).apply(torch.zeros(24) if group.rank == 0 else None)
        return replica.parameters

    expected = small_replica().parameters
    assert all(torch.equal(result, expected) for result in run_in_process(2, work))


def test_phases_are_marked():
    def work(group: InProcessGroup) -> list[str]:
        marked = []

        def phase(name: str):
            marked.append(name)
            return torch.no_grad()

        update_at("host", small_replica(), SETTINGS[0], group).apply(
            gradients()[0] if group.rank == 0 else None, phase
        )
        return marked

    assert run_in_process(2, work) == [["update", "wait", "h2d_result"], ["wait", "h2d_result"]]


def test_mean_missing_where_it_is_needed_is_our_own_mistake():
    update = ReplicaUpdate(small_replica(), SETTINGS[0])
    with pytest.raises(AssertionError, match="every rank"):
        update.apply(None)
