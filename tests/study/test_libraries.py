"""A study whose aggregators need another library is refused before its first launch."""

import importlib.util

import pytest

from scaling.errors import LaunchError
from scaling.study.cells import Machine, resolve
from scaling.study.libraries import check_libraries
from scaling.study.schema import parse_study


def study(*aggregators):
    raw = {
        "name": "mine",
        "device": "cpu",
        "workloads": [{"model": "mlp", "dataset": "digits", "global_batch": 64}],
        "aggregators": list(aggregators),
        "world_sizes": [2],
        "scaling": "strong",
    }
    return resolve(parse_study(raw, "test"), Machine(0, 2))


@pytest.fixture
def without_horovod(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("name", ["mpi", "mpi_one_bit"])
def test_mpi_needs_workers_that_mpi_has_started(name):
    check_libraries(study("all_reduce", name), by_mpi=True)
    with pytest.raises(LaunchError, match=f"mine: aggregator '{name}' cannot run in this launch: .*mpirun"):
        check_libraries(study("all_reduce", name), by_mpi=False)


def test_horovod_needs_to_be_there_whoever_starts_the_workers(without_horovod):
    for by_mpi in (False, True):
        with pytest.raises(LaunchError, match=r"aggregator 'horovod\(compression=fp16\)' .*`make horovod`"):
            check_libraries(study({"name": "horovod", "compression": "fp16"}), by_mpi=by_mpi)


def test_others_need_nothing(without_horovod):
    check_libraries(study("none", "ring", "host_serial", "cntk"), by_mpi=False)
