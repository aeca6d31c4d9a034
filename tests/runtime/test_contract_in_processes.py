"""Aggregators of MPI and Horovod keep the contract, in processes that a real launcher starts."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

WORKER = str(Path(__file__).with_name("contract_worker.py"))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def seen(tmp_path):
    """seen(launcher, world size, *names): what rank 0 wrote of these aggregators."""

    def run(launcher, world_size, *names):
        out = tmp_path / "seen.json"
        done = launcher.run(world_size, WORKER, str(out), *names, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(out.read_text())
        assert (told["launcher"], told["size"]) == (launcher.name, world_size)
        assert set(told["aggregators"]) == set(names)
        return told

    return run


def test_aggregators_over_mpi_keep_the_contract_and_refuse_what_mpi_cannot_add(seen, mpirun):
    told = seen(mpirun, 4, "mpi", "mpi_one_bit")
    versions = {"openmpi": "Open MPI v", "mpich": "MPICH Version"}
    assert told["libraries"]["mpi"].startswith(versions[mpirun.name])
    whole, one_bit = told["aggregators"]["mpi"], told["aggregators"]["mpi_one_bit"]
    assert whole["failures"] == one_bit["failures"] == []
    assert one_bit["has_residuals"]
    assert set(whole["refusals"]) == {"bfloat16", "float16"}
    for name, message in whole["refusals"].items():
        assert message.startswith(f"MPI cannot add {name}; it adds float32, float64, int32, int64")
    assert set(one_bit["refusals"].values()) == {None}, "its messages are bits, which nobody adds"


def test_aggregators_over_horovod_keep_the_contract_and_their_replicas_agree_in_16_bits(seen, horovodrun):
    told = seen(horovodrun, 3, "horovod", "horovod_optimizer")["aggregators"]
    for name, one in told.items():
        assert one["failures"] == [], name
        assert one["fp16_bits"] == 1, f"{name}: ranks differ"
        # Some roundings of values of the order of one to 11 bits.
        assert 0 < one["fp16_error"] < 3e-3, name
        said = "Horovod cannot average bfloat16; it averages float32, float64, float16"
        assert one["refusals"] == {"bfloat16": said, "float16": None}
