"""A training that is cut off and resumed has the same bits as one that is not, on every rank."""

import io

import pytest
import torch

from scaling.training.checkpoint import SCHEMA_VERSION, Checkpoint
from scaling.training.convergence import Progress

EPOCHS, CUT_AFTER = 4, 2
CELLS = (
    *("all_reduce", "one_bit", "host_parallel", "all_reduce, overlapped", "one_bit, overlapped"),
    *("all_reduce, sync", "qsgd", "one_bit_flat, overlapped"),
)
"""Those of checkpoint_worker.py."""

LEARNED = ("epoch", "samples", "learning_rate", "step_losses", "train_loss", "train_accuracy", "test_loss",
           "test_accuracy", "bytes_sent")  # fmt: skip


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("checkpoint_worker.py", 2)


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
        return Checkpoint(Progress(1, 2.5, None), rows, step, [torch.get_rng_state()], ["one/0123abcd"])

    def test_what_is_written_is_read(self):
        read = Checkpoint.from_bytes(self.checkpoint().to_bytes())
        assert read is not None
        assert read.progress == Progress(1, 2.5, None)
        assert torch.equal(read.step["update"]["0:3"], torch.ones(3))
        assert read.rows[0]["step_losses"] == [1.0]
        assert read.hosts == ["one/0123abcd"]

    def test_hosts_of_one_that_does_not_say_are_not_known(self):
        values = torch.load(io.BytesIO(self.checkpoint().to_bytes()), weights_only=True)
        del values["hosts"]
        buffer = io.BytesIO()
        torch.save(values, buffer)
        read = Checkpoint.from_bytes(buffer.getvalue())
        assert read is not None
        assert read.hosts == []

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04cut"])
    def test_damaged_one_is_none(self, content):
        assert Checkpoint.from_bytes(content) is None

    def test_part_of_one_is_none(self):
        content = self.checkpoint().to_bytes()
        assert Checkpoint.from_bytes(content[: len(content) // 2]) is None

    def test_one_of_another_version_is_none(self, monkeypatch):
        monkeypatch.setattr("scaling.training.checkpoint.SCHEMA_VERSION", SCHEMA_VERSION + 1)
        content = self.checkpoint().to_bytes()
        monkeypatch.undo()
        assert Checkpoint.from_bytes(content) is None
