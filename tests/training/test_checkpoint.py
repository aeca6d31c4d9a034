"""A training that is cut off and resumed has the same bits as one that is not, on every rank."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from scaling.errors import CheckpointError
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.convergence import TrainingProgress

SHAPES = {"w": "[3] torch.float32"}
TARGET = Target("a", 1, 2, SHAPES)
EPOCHS, CUT_AFTER = 3, 2
CELLS = (
    *("all_reduce", "one_bit", "host_parallel", "all_reduce, overlapped", "one_bit, overlapped"),
    *("all_reduce, sync", "qsgd", "one_bit_flat, overlapped"),
    *("mxnet_device, overlapped", "mxnet_local, overlapped"),
    *("zero1", "zero2, overlapped", "zero_redundancy_optimizer", "power_sgd_hook", "one_bit_adam"),
)
"""Those of checkpoint_worker.py."""
LEARNED = ("epoch", "samples", "learning_rate", "step_losses", "train_loss", "train_accuracy", "test_loss",
           "test_accuracy", "bytes_sent")  # fmt: skip


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("checkpoint_worker.py", 2, CUDA_VISIBLE_DEVICES="")


@pytest.mark.processes
@pytest.mark.parametrize("name", CELLS)
class TestResume:
    def test_training_was_cut_before_its_end(self, ranks, name):
        for rank in ranks:
            assert [row["epoch"] for row in rank[name]["cut"]["rows"]] == list(range(1, CUT_AFTER + 2))

    def test_losses_and_accuracies_are_those_of_an_uncut_training(self, ranks, name):
        uncut, resumed = (ranks[0][name][how]["rows"] for how in ("uncut", "resumed"))
        assert [row["epoch"] for row in resumed] == list(range(1, EPOCHS + 1))
        for one, other in zip(uncut, resumed, strict=True):
            assert {key: other[key] for key in LEARNED} == {key: one[key] for key in LEARNED}

    def test_parameters_momenta_and_residuals_are_those_of_an_uncut_training(self, ranks, name):
        for rank in ranks:
            assert rank[name]["resumed"]["state"] == rank[name]["uncut"]["state"]

    def test_samples_of_the_epochs_before_the_cut_are_kept_as_they_were(self, ranks, name):
        for rank in ranks:
            kept = CUT_AFTER - (name == "one_bit")
            assert rank[name]["resumed"]["rows"][:kept] == rank[name]["cut"]["rows"][:kept]

    def test_run_says_where_it_went_on(self, ranks, name):
        epoch = CUT_AFTER - (name == "one_bit")  # the last that both ranks had written
        notes = ranks[0][name]["resumed"]["notes"]
        assert f"cut off after epoch {epoch}, and went on from there" in notes
        assert not [note for note in ranks[0][name]["uncut"]["notes"] if "cut off" in note]


class TestFormat:
    def checkpoint(self) -> Checkpoint:
        step = {"module": {"w": torch.arange(3.0)}, "aggregator": {}, "update": {"0:3": torch.ones(3)}}
        rows = [{"epoch": 1, "train_loss": float("nan"), "step_losses": [1.0]}]
        return Checkpoint(
            TrainingProgress(1, 2.5, None), rows, step, [torch.get_rng_state()], ["one/0123abcd"]
        )

    def read(self, content: bytes, **other: Any) -> Checkpoint:
        return Checkpoint.from_bytes(content, replace(TARGET, **other))

    def test_what_is_written_is_read(self):
        read = self.read(self.checkpoint().to_bytes(TARGET))
        assert read.progress == TrainingProgress(1, 2.5, None)
        assert torch.equal(read.step["update"]["0:3"], torch.ones(3))
        assert read.rows[0]["step_losses"] == [1.0]
        assert read.hosts == ["one/0123abcd"]

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04cut"])
    def test_other_bytes_are_no_checkpoint(self, content):
        with pytest.raises(CheckpointError, match="no checkpoint of version 4"):
            self.read(content)

    def test_half_of_one_is_told_by_its_digest(self):
        content = self.checkpoint().to_bytes(TARGET)
        with pytest.raises(CheckpointError, match="changed, or cut short"):
            self.read(content[: len(content) // 2])

    @given(st.data())
    def test_no_bit_can_be_flipped_unnoticed(self, data):
        content = bytearray(self.checkpoint().to_bytes(TARGET))
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            self.read(bytes(content))

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"world_size": 4}, "another world size: 2 there, 4 here"),
            ({"rank": 0}, "another rank: 1 there, 0 here"),
            ({"cell_id": "b"}, "another cell id: a there, b here"),
            ({"shapes": {"w": "[4] torch.float32"}}, r"another model: w is \[3\] .* there, \[4\] .* here"),
            ({"shapes": {"v": "[3] torch.float32"}}, "another model: w is .* missing here"),
            ({"shapes": {**SHAPES, "v": "[3] torch.float32"}}, "another model: it has no v"),
        ],
    )
    def test_one_of_something_else_says_what_differs(self, other, message):
        with pytest.raises(CheckpointError, match=message):
            self.read(self.checkpoint().to_bytes(TARGET), **other)

    def test_parameters_that_are_equal_have_equal_digests(self):
        one, other = self.checkpoint(), self.checkpoint()
        other.step["module"]["w"][0] = -0.0
        assert one.parameter_digest(["w"]) == other.parameter_digest(["w"])
        other.step["module"]["w"][0] = 1e-30
        assert one.parameter_digest(["w"]) != other.parameter_digest(["w"])


@pytest.mark.processes
class TestDamaged:
    """What checkpoint_worker.py damages, and how the training goes on."""

    @pytest.mark.parametrize(
        ("damage", "note"),
        [
            ("flipped", "rank1.pt is not used: its digest is another one"),
            ("other model", "rank1.pt is not used: it is of another model"),
            ("apart", "after epoch 2 are not used: the ranks' parameters differ"),
            ("moments apart", "after epoch 2 are not used: the ranks' optimizers' states differ"),
            ("of another save", "not used: that of rank 1 was not saved together with that of rank 0"),
        ],
    )
    def test_training_goes_on_from_the_one_before_with_the_same_bits(self, ranks, damage, note):
        for rank in ranks:
            notes = rank["damaged"][damage]["notes"]
            assert rank["damaged"][damage]["state"] == rank["all_reduce"]["uncut"]["state"]
            assert any(note in one for one in notes)
            assert any(f"cut off after epoch {CUT_AFTER - 1}" in one for one in notes)

    def test_rank_that_has_restored_something_else_is_named_on_every_rank(self, ranks):
        for rank in ranks:
            said = rank["restored wrong"]
            assert said.startswith("a checkpoint cannot be restored: aggregator residual/")
            assert "of rank 1 is not as it was saved; it is removed, and `scaling run --retry-failed`" in said

    def test_training_without_a_good_one_begins_anew(self, ranks):
        for rank in ranks:
            found = rank["damaged"]["both"]
            assert found["state"] == rank["all_reduce"]["uncut"]["state"]
            assert any("the training began anew" in one for one in found["notes"])
            assert not any("cut off" in one for one in found["notes"])


class Restored:
    """A step with this state of its aggregator."""

    def __init__(self, **state: list[int]) -> None:
        self.state = {name.replace("_of_", "/"): torch.tensor(values) for name, values in state.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"aggregator": self.state}


def test_parts_in_other_stripes_are_no_damage():
    state = {"stripe_borders_of_w": [0, 2, 4], "stripe_residual_of_w": [1, 2], "other": [5]}
    step = Restored(**state).state_dict()
    checkpoint = Checkpoint(TrainingProgress(1, 1.0), [], step, [])
    assert checkpoint.not_restored(Restored(**state)) is None
    moved = {**state, "stripe_borders_of_w": [0, 1, 4], "stripe_residual_of_w": [3, 4]}
    assert checkpoint.not_restored(Restored(**moved)) is None
    assert checkpoint.not_restored(Restored(**{**moved, "other": [6]})) == "aggregator other"
    wrong = {**state, "stripe_residual_of_w": [1, 3]}
    assert checkpoint.not_restored(Restored(**wrong)) == "aggregator stripe_residual/w"


TARGET_CHECKPOINT_CONTENT = Target.of(nn.Linear(3, 2), "cell", 0, 2)
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
    read = Checkpoint.from_bytes(made.to_bytes(TARGET_CHECKPOINT_CONTENT), TARGET_CHECKPOINT_CONTENT)
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
    content = Checkpoint(**{**MADE, name: value}).to_bytes(TARGET_CHECKPOINT_CONTENT)
    with pytest.raises(CheckpointError, match=f"its {name}.* is not what it should be: "):
        Checkpoint.from_bytes(content, TARGET_CHECKPOINT_CONTENT)
