"""Numbers that no machine has are refused, or planned, in few calls: the real command in this process."""

import pytest
import yaml

from tests.faults.mutants import MOST_CALLS, complaint, run
from tests.faults.valid_inputs import PREDICTED

STUDY = {**yaml.safe_load(PREDICTED), "device": "cpu"}

MANY = list(range(20_001))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"threads": 10**6}, "threads is 1000000: "),
        ({"repeats": 300_000}, "repeats is 300000: "),
        ({"seed": 10**26}, f"seed.0 is {10**26}: "),
        ({"seed": MANY}, "cells; at most 20000 are planned"),
        ({"world_sizes": [2, 10**9]}, "world_sizes.1 is 1000000000: "),
        ({"stall_timeout": 1e300}, "stall_timeout is 1e+300: "),
        ({"world_sizes": ["auto", 10**9]}, "world_sizes"),
        ({"iterations": 10**30}, "iterations is "),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_number_that_no_machine_has_is_refused_in_few_calls(tmp_path, keys, said):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **keys}))
    words = ("plan", path)
    ended = run(words)
    assert complaint(words, ended, tmp_path) is None
    assert ended.code == 2, ended.err
    assert said in ended.err


def test_grid_that_is_large_and_allowed_is_planned_in_few_calls(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "seed": MANY[:100]}))
    words = ("plan", path, "--json")
    ended = run(words)
    assert (ended.code, complaint(words, ended, tmp_path)) == (0, None)


@pytest.mark.parametrize(
    ("aggregator", "world_size", "said"),
    [
        ("all_reduce", 1024, None),
        ("host_parallel", 256, "it does not run there; ask for up to 8 ranks"),
        ("one_bit", 1024, "1047552 messages in one step; up to 400000 are priced"),
        ("mpi_one_bit", 1024, "messages of MPI in one step; up to 100000 are priced"),
        ("mxnet_tree", 1024, "the trees of up to 256 are searched"),
    ],
)
def test_prediction_of_many_ranks_is_made_or_refused_in_few_calls(tmp_path, aggregator, world_size, said):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(PREDICTED), "aggregators": [aggregator]}))
    machine = ("--topology", "hgx-h200-x16-infiniband", "--what-if", "nodes=128")
    words = ("predict", path, *machine, "--world-sizes", world_size)
    ended = run(words)
    assert ended.num_calls < MOST_CALLS
    assert ended.code == (2 if said else 0), ended.err
    if said:
        assert said in " ".join(ended.out.split())


@pytest.mark.parametrize("world_size", [1025, 10**6, 10**26])
def test_schedule_of_more_ranks_than_are_proven_is_not_exported(tmp_path, world_size):
    ended = run(("schedule", "export", "ring", "--world-size", world_size, "--out", tmp_path / "x.xml"))
    assert ended.code == 2
    assert "less than or equal to 1024" in " ".join(ended.err.replace("│", " ").split())
