"""Exchanges in one kernel: the schedules that have one, and that it does what they say."""

import importlib.util
from pathlib import Path

import pytest
import torch

from scaling.collectives.exchange import RankExchange
from scaling.collectives.execute_kernels import kernel_of
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process
from tests.ranks import run_ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_stripes_have_a_kernel_and_recursive_doubling_of_two_ranks(world_size):
    kernels = {name: kernel_of(schedule(name, world_size)) for name in COLLECTIVES}
    found = {name: kernel for name, kernel in kernels.items() if kernel}
    if world_size == 1:
        assert found == {}
        return
    assert found["stripes"] == "two_shot"
    assert (found.get("recursive_doubling") == "one_shot") == (world_size == 2)
    for name in found:  # what runs in the kernel is what is proven
        verify(schedule(name, world_size))


def test_a_schedule_that_differs_in_one_transfer_has_none():
    swap = [Transfer(0, 1, 0, 1, "add"), Transfer(1, 0, 0, 1, "add")]
    assert kernel_of(Schedule("mine", 2, 1, (tuple(swap),))) == "one_shot"
    assert kernel_of(Schedule("mine", 2, 1, (tuple(swap[:1]),))) is None
    assert kernel_of(Schedule("mine", 2, 1, (tuple(swap), tuple(swap)))) is None


@pytest.mark.parametrize(("name", "world_size", "dtype"), [("ring", 3, "float32"), ("stripes", 3, "bfloat16"),
                                                           ("recursive_doubling", 4, "float32")])  # fmt: skip
def test_others_are_refused(name, world_size, dtype):
    def work(group):
        plan, device = schedule(name, world_size), torch.device("cpu")
        RankExchange(plan, group, 10, getattr(torch, dtype), device, transport="one_kernel")

    with pytest.raises(ScheduleError, match="one_kernel runs stripes, and recursive_doubling of two ranks"):
        run_in_process(world_size, work)


def ranks_of(world_size, folder, **environment):
    """What each rank of fused_worker.py saw."""
    return run_ranks(Path(__file__).with_name("fused_worker.py"), world_size, folder, **environment)


def assert_as_verified(ranks):
    for seen in ranks:
        for sizes in seen.values():
            for size, found in sizes.items():
                assert found["transport"] == "one_kernel"
                assert found["same"] == [True] * 3, size
                assert found["pads"] == 0


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_in_the_interpreter_ranks_get_the_bits_of_the_schedule(world_size, tmp_path, need):
    need(importlib.util.find_spec("triton"), "Triton is not installed; pip install -e '.[test]' brings it")
    ranks = ranks_of(world_size, tmp_path, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert_as_verified(ranks)
    metered = ranks[0]["stripes"]["5000"]["metered"]
    assert metered[1] == 3 * 2 * (world_size - 1)
    assert sum(rank["stripes"]["5000"]["metered"][0] for rank in ranks) == 3 * 2 * (world_size - 1) * 5000 * 4


@pytest.mark.processes
@pytest.mark.gpu(2)
def test_on_two_gpus_ranks_get_the_bits_of_the_schedule(tmp_path):
    assert_as_verified(ranks_of(2, tmp_path))
