"""Exchanges in one kernel, over peer memory or host memory: the schedules that have one do what they say."""

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


def exchange_of(group, name, transport, dtype="float32", *, through_host=False):
    if through_host:
        group.through_host = True
    plan, device = schedule(name, group.world_size), torch.device("cpu")
    RankExchange(plan, group, 10, getattr(torch, dtype), device, transport=transport)


IN_ONE_KERNEL = "one_kernel runs stripes, and recursive_doubling of two ranks"


@pytest.mark.parametrize(("transport", "name", "world_size", "dtype", "said"), [
    *(("one_kernel", *case, IN_ONE_KERNEL) for case in
      (("ring", 3, "float32"), ("stripes", 3, "bfloat16"), ("recursive_doubling", 4, "float32"))),
    *(("host_memory", name, 2, dtype, f"{name}: transport: host_memory runs stripes on float32")
      for name, dtype in (("ring", "float32"), ("recursive_doubling", "float32"), ("stripes", "bfloat16"))),
])  # fmt: skip
def test_other_schedules_and_types_are_refused(transport, name, world_size, dtype, said):
    with pytest.raises(ScheduleError, match=said):
        run_in_process(world_size, lambda group: exchange_of(group, name, transport, dtype))


@pytest.mark.parametrize("interpreted", [False, True], ids=["no GPU", "a shared GPU"])
def test_host_memory_of_ranks_that_share_a_gpu_or_have_none_is_refused(monkeypatch, interpreted):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if interpreted:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ScheduleError, match="host_memory needs a GPU a worker"):
        run_in_process(
            2, lambda group: exchange_of(group, "stripes", "host_memory", through_host=interpreted)
        )


def assert_as_verified(world_size, folder, **environment):
    """What each rank of kernels_worker.py saw; gives that of rank 0."""
    ranks = run_ranks(Path(__file__).with_name("kernels_worker.py"), world_size, folder, **environment)
    for seen in ranks:
        for transport, cases in seen.items():
            for case, found in cases.items():
                assert (found["transport"], found["same"]) == (transport, [True] * 3), case
        assert not any(found["pads"] for found in seen["one_kernel"].values())
        assert all(found["counted"] == 3 * found["chunks"] for found in seen["host_memory"].values())
    num_sent = 3 * 2 * (world_size - 1)
    for transport, cases in ranks[0].items():
        for size in (1, 3, 301, 5000):
            sent = [rank[transport][f"stripes {size}"]["metered"][0] for rank in ranks]
            assert sum(sent) == num_sent * size * 4
        assert cases["stripes 5000"]["metered"][1] == num_sent
    rounds = ranks[0]["host_memory"]["rounds"]
    assert rounds["chunks"] > 6 * rounds["programs"]
    return ranks[0]


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_in_the_interpreter_ranks_get_the_bits_of_the_schedule(world_size, tmp_path, need):
    need(importlib.util.find_spec("triton"), "Triton is not installed; pip install -e '.[test]' brings it")
    assert_as_verified(world_size, tmp_path, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.processes
@pytest.mark.gpu(2)
def test_on_two_gpus_replayed_graphs_get_the_bits_of_the_schedule(tmp_path):
    seen = assert_as_verified(2, tmp_path)
    assert all(found["captured"] for found in seen["host_memory"].values())
