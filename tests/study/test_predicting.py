"""What a cell's aggregation is taken to consist of."""

import pytest

from scaling.collectives.plan import Codec
from scaling.study.cells import Machine, resolve
from scaling.study.predicting import strategy_of
from scaling.study.schema import parse_study

STUDY = {
    "name": "s",
    "kind": "iteration",
    "scaling": "strong",
    "world_sizes": [2],
    "workloads": [{"model": "mlp", "dataset": "digits", "global_batch": 64}],
}
MACHINE = Machine(num_gpus=2, num_cores=8)


def bytes_moved(aggregator, device):
    """Read and written in all encodings and decodings."""
    study = parse_study({**STUDY, "aggregators": [aggregator], "device": device}, "s.yaml")
    cell = next(iter(resolve(study, MACHINE).cells.values()))
    stages = [stage for bucket in strategy_of(cell.to_dict()).buckets for stage in bucket]
    return sum(stage.num_bytes * stage.bytes_moved for stage in stages if isinstance(stage, Codec))


@pytest.mark.parametrize("name", ["one_bit", "one_bit_flat", "ef_sign", "qsgd"])
def test_kernels_are_those_that_the_device_takes(name):
    by_torch = bytes_moved({"name": name, "kernels": "torch"}, "cuda")
    assert bytes_moved(name, "cpu") == by_torch
    assert bytes_moved(name, "cuda") < by_torch / 1.5
