"""A checkpoint is read back as it was written, and refused where it holds something else."""

import pytest
import torch
from torch import nn

from scaling.errors import CheckpointError
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.convergence import TrainingProgress

TARGET = Target.of(nn.Linear(3, 2), "cell", 0, 2)
STEP = {"module": {"weight": torch.ones(2, 3)}, "update": {}, "aggregator": {}}
MADE = {
    "progress": TrainingProgress(2, 1.5, None),
    "rows": [{"epoch": 1, "train_s": 0.5}, {"epoch": 2}],
    "step": STEP,
    "random_states": [torch.get_rng_state()],
    "hosts": ["here"],
    "saved_together": "ab",
}


@pytest.mark.parametrize("train_j", [None, 0.0, 3])
def test_checkpoint_is_read_as_it_was_written(train_j):
    made = Checkpoint(**{**MADE, "progress": TrainingProgress(2, 1.5, train_j)})
    read = Checkpoint.from_bytes(made.to_bytes(TARGET), TARGET)
    assert (read.progress, read.rows, read.hosts) == (made.progress, made.rows, made.hosts)
    assert torch.equal(read.step["module"]["weight"], STEP["module"]["weight"])
    assert torch.equal(read.random_states[0], made.random_states[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 3),
        ("rows", [1]),
        ("step", []),
        ("random_states", []),
        ("random_states", [1]),
        ("hosts", "here"),
        ("saved_together", 7),
        ("progress", TrainingProgress("last", 0.0)),
        ("progress", TrainingProgress(1, "long")),
    ],
)
def test_content_of_another_type_is_named(name, value):
    content = Checkpoint(**{**MADE, name: value}).to_bytes(TARGET)
    with pytest.raises(CheckpointError, match=f"its {name}.* is not what it should be: "):
        Checkpoint.from_bytes(content, TARGET)
