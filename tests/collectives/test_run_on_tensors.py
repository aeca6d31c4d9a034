"""The reference that every executor must equal: the rules of a schedule, read literally."""

import pytest
import torch

from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners
from scaling.collectives.schedule import Schedule, Transfer
from scaling.errors import ScheduleError
from tests.collectives.run_on_tensors import run_on_tensors


def made_of(*steps, world_size=2, num_chunks=1, num_hosts=0, chunk_elements=None):
    return Schedule("made up", world_size, num_chunks, steps, num_hosts, chunk_elements)


def singles(*values):
    return [torch.tensor([float(value)]) for value in values]


def items(results):
    return [result.item() for result in results]


def test_all_transfers_of_a_step_read_the_values_from_before_it():
    swap = (Transfer(0, 1, 0, 1, "copy"), Transfer(1, 0, 0, 1, "copy"))
    assert items(run_on_tensors(made_of(swap), singles(1, 2))) == [2, 1]
    both_add = (Transfer(0, 1, 0, 1, "add"), Transfer(1, 0, 0, 1, "add"))
    assert items(run_on_tensors(made_of(both_add), singles(1, 2))) == [3, 3]


def test_later_steps_read_what_earlier_ones_wrote():
    chain = [(Transfer(rank, rank + 1, 0, 1, "add"),) for rank in range(2)]
    assert items(run_on_tensors(made_of(*chain, world_size=3), singles(1, 2, 4))) == [1, 3, 7]


def test_adds_into_one_place_apply_in_the_order_listed():
    first, second = Transfer(1, 0, 0, 1, "add"), Transfer(2, 0, 0, 1, "add")
    inputs = singles(1e8, 1, -1e8)
    assert run_on_tensors(made_of((first, second), world_size=3), inputs)[0].item() == 0
    assert run_on_tensors(made_of((second, first), world_size=3), inputs)[0].item() == 1


def test_host_memory_starts_as_zero_and_is_not_among_the_results():
    up = tuple(Transfer(rank, 2, 0, 1, "add") for rank in (0, 1))
    back = tuple(Transfer(2, rank, 0, 1, "copy") for rank in (0, 1))
    assert items(run_on_tensors(made_of(up, back, num_hosts=1), singles(3, 4))) == [7, 7]


def test_only_the_chunks_of_a_transfer_are_moved():
    plan = made_of((Transfer(0, 1, 1, 3, "copy"),), num_chunks=4)
    _, moved = run_on_tensors(plan, [torch.arange(8.0), torch.zeros(8)])
    assert moved.tolist() == [0, 0, 2, 3, 4, 5, 0, 0]


def test_chunks_that_are_tensors_have_their_own_sizes():
    plan = made_of((Transfer(0, 1, 1, 2, "copy"),), num_chunks=3, chunk_elements=(1, 4, 2))
    _, moved = run_on_tensors(plan, [torch.arange(7.0), torch.zeros(7)])
    assert moved.tolist() == [0, 1, 2, 3, 4, 0, 0]


def test_contributions_are_left_as_they_are_and_results_are_new():
    inputs = singles(1, 2)
    results = run_on_tensors(made_of(), inputs)
    results[0].fill_(9)
    assert items(inputs) == [1, 2]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_is_the_sum_on_integers(name):
    for world_size in (1, 2, 5, 17):
        plan = schedule(name, world_size)
        if plan.chunk_elements:
            plan = sharded_owners(world_size, (3, 5, 1))
        inputs = list(torch.arange(9 * world_size).view(world_size, 9))
        total = torch.stack(inputs).sum(dim=0)
        assert all(torch.equal(result, total) for result in run_on_tensors(plan, inputs))


@pytest.mark.parametrize("num_contributions", [1, 3])
def test_other_numbers_of_contributions_are_refused(num_contributions):
    with pytest.raises(ScheduleError, match=f"made up: {num_contributions} contributions for 2 ranks"):
        run_on_tensors(made_of(), singles(*range(num_contributions)))


def test_buffers_of_another_size_than_the_tensors_are_refused():
    with pytest.raises(ScheduleError, match="made for tensors of 3 elements together, run on 1"):
        run_on_tensors(made_of(num_chunks=2, chunk_elements=(1, 2)), singles(1, 2))
