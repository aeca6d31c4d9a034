"""A study without the cells that are not worth it: what is left is what the user wrote of them."""

from functools import partial

import pytest
import yaml

from scaling.study.cell import AvailableMachine
from scaling.study.pruning import CellChoice, study_of
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study
from tests.made import made_study

HERE = AvailableMachine(num_gpus=4, num_cores=8)
RESNET = {"model": "resnet-56", "dataset": "synthetic", "global_batch": 8}
made = partial(made_study, device="cuda", workloads=[RESNET], aggregators=["all_reduce"], noise_pair=False)


def pruned_to(whole, resolved, keep=lambda cell: True):
    """What is left of a study of which those cells are kept."""
    verdicts = [CellChoice(cell, keep(cell), "", 0.0) for cell in resolved.trained]
    return resolve(parse_study(yaml.safe_load(study_of(whole, verdicts, resolved)), "pruned.yaml"), HERE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"workloads": [RESNET]}, {"workloads": [{**RESNET, "model": "alexnet-r"}]}),
        ({"workloads": [RESNET]}, {"workloads": [{**RESNET, "global_batch": 16}]}),
        ({"tf32": False}, {"tf32": True}),
        ({"tf32": True}, {"precision": "bf16", "accumulate": 2}),
        ({"wire": "float32"}, {"wire": "bf16"}),
        ({"momentum": 0.5}, {"optimizer": "adamw", "beta2": 0.95, "clip_norm": 1}),
        ({"seed": 0}, {"seed": 1}),
        ({"peer_access": True}, {"peer_access": False}),
        ({"batch_norm": "replica"}, {"batch_norm": "sync"}),
        ({"memory_format": "contiguous"}, {"memory_format": "channels_last"}),
        ({"augmentation": "none"}, {"augmentation": "standard"}),
        ({"step": "overlapped", "bucket_mb": 1}, {"step": "overlapped", "bucket_mb": 25}),
    ],
    ids=" ".join,
)
def test_parts_that_differ_in_one_key_keep_their_cells_and_their_iterations(one, other):
    parts = [{**one, "iterations": 50}, {**other, "iterations": 200}]
    whole = made(parts=parts)
    resolved = resolve(whole, HERE)
    pruned = pruned_to(whole, resolved, lambda cell: cell.world_size == 2)
    left = {cell.id: cell.iterations for cell in pruned.trained}
    assert left == {cell.id: cell.iterations for cell in resolved.trained if cell.world_size == 2}
    assert sorted(left.values()) == [50, 200]


@pytest.mark.parametrize("key", ["learning_rate", "momentum", "weight_decay"])
def test_workloads_that_differ_in_how_the_optimizer_is_set_stay_two(key):
    whole = made(workloads=[{**RESNET, key: 0.1}, {**RESNET, key: 0.2}])
    resolved = resolve(whole, HERE)
    assert len(resolved.cells) == 4
    assert set(pruned_to(whole, resolved).cells) == set(resolved.cells)


def test_a_cell_of_two_parts_keeps_the_larger_number_of_repeats():
    whole = made(parts=[{"repeats": 5}, {"repeats": 1, "world_sizes": [2]}])
    resolved = resolve(whole, HERE)
    assert pruned_to(whole, resolved).repeats == resolved.repeats
    assert set(resolved.repeats.values()) == {5}
