"""`stripes` through host memory that all ranks share, in one kernel."""

import importlib.util
from pathlib import Path

import pytest
import torch

from scaling.collectives.exchange import RankExchange
from scaling.collectives.listing import schedule
from scaling.collectives.owners import stripes
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process
from tests.ranks import run_ranks

CPU = torch.device("cpu")


def ranks_of(world_size, folder, **environment):
    """What each rank of pinned_worker.py saw."""
    return run_ranks(Path(__file__).with_name("pinned_worker.py"), world_size, folder, **environment)


def assert_as_verified(ranks):
    world_size = len(ranks)
    for seen in ranks:
        for case, found in seen.items():
            assert found["transport"] == "host_memory"
            assert found["same"] == [True] * 3, case
            assert found["counted"] == 3 * found["chunks"], case
    for size in (1, 3, 301, 5000):
        metered = [rank[str(size)]["metered"][0] for rank in ranks]
        assert sum(metered) == 3 * 2 * (world_size - 1) * size * 4
    assert ranks[0]["5000"]["metered"][1] == 3 * 2 * (world_size - 1)
    assert ranks[0]["rounds"]["chunks"] > 6 * ranks[0]["rounds"]["programs"]


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_in_the_interpreter_ranks_get_the_bits_of_the_schedule(world_size, tmp_path, need):
    need(importlib.util.find_spec("triton"), "Triton is not installed; pip install -e '.[test]' brings it")
    assert_as_verified(ranks_of(world_size, tmp_path, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""))


@pytest.mark.processes
@pytest.mark.gpu(2)
def test_on_two_gpus_replayed_graphs_get_the_bits_of_the_schedule(tmp_path):
    ranks = ranks_of(2, tmp_path)
    assert_as_verified(ranks)
    assert all(found["captured"] for found in ranks[0].values())


@pytest.mark.parametrize(("name", "dtype"), [("ring", "float32"), ("recursive_doubling", "float32"),
                                             ("stripes", "bfloat16")])  # fmt: skip
def test_other_schedules_and_types_are_refused(name, dtype):
    def work(group):
        RankExchange(schedule(name, 2), group, 10, getattr(torch, dtype), CPU, transport="host_memory")

    with pytest.raises(ScheduleError, match=f"{name}: transport: host_memory runs stripes on float32"):
        run_in_process(2, work)


def test_ranks_that_share_a_gpu_or_have_none_are_refused(monkeypatch):
    def work(group):
        RankExchange(stripes(2), group, 10, torch.float32, CPU, transport="host_memory")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ScheduleError, match="host_memory needs a GPU a worker"):
        run_in_process(2, work)

    def work_through_host(group):
        group.through_host = True
        work(group)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ScheduleError, match="host_memory needs a GPU a worker"):
        run_in_process(2, work_through_host)
