"""A training that is cut off and resumed has the same bits as one that is not, on every rank."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling.aggregators.state import AggregatorState
from scaling.errors import CheckpointError
from scaling.registry import trust
from scaling.store import ResultsFolder
from scaling.study.rank import convergence as run_convergence
from scaling.study.rank import prepared_step
from scaling.study.rank.launch import CellRunner
from scaling.study.rank.prepared_step import PreparedStep
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.convergence import TrainingProgress
from tests.made import cell_of
from tests.ranks import as_rank, refusal
from tests.training.small import CPU

EPOCHS, CUT_AFTER = 3, 2
BASE = cell_of(
    **{"kind": "convergence", "model": "slow_parts:dropping", "aggregator": "all_reduce", "seed": 3},
    **{"local_batch": 200, "global_batch": 400, "weight_decay": 1e-4, "epochs": EPOCHS, "warmup_epochs": 1.0},
    **{"learning_rate_rule": "linear", "base_batch": 200, "schedule": "cosine", "augmentation": "standard"},
)
SMALL = {"step": "overlapped", "bucket_mb": 0.01}
ADAMW = {
    **{"optimizer": "adamw", "learning_rate": 0.002, "momentum": 0.0},
    **{"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
}
OTHERS = {
    **{name: {"aggregator": name} for name in ("one_bit", "host_parallel", "qsgd")},
    "all_reduce, overlapped": {"step": "overlapped", "bucket_mb": 25.0},
    "all_reduce, sync": {"batch_norm": "sync"},
    **{f"{name}, overlapped": {"aggregator": name, **SMALL} for name in ("one_bit", "one_bit_flat")},
    "mxnet_device, overlapped": {"aggregator": "mxnet_device", "step": "overlapped"},
    "mxnet_local, overlapped": {"aggregator": "mxnet_local", "step": "overlapped", **ADAMW},
    "zero1": {"aggregator": "zero1", **ADAMW},
    "zero2, overlapped": {"aggregator": "zero2", **SMALL, **ADAMW},
    "zero_redundancy_optimizer": {"aggregator": "zero_redundancy_optimizer", **SMALL, **ADAMW},
    "power_sgd_hook": {"aggregator": "power_sgd_hook", **SMALL},
    "one_bit_adam": {
        **{"aggregator": "one_bit_adam", "aggregator_parameters": {"warmup_steps": 5}, "momentum": 0.0}
    },
}
CELLS = {"all_reduce": BASE, **{name: replace(BASE, **changes) for name, changes in OTHERS.items()}}
MOVED = {"apart": "module", "moments apart": "update", "of another save": None}
"""Damage -> what of the last checkpoint's step is another."""
DAMAGES = {
    "flipped": "rank1.pt is not used: its digest is another one",
    "other model": "rank1.pt is not used: it is of another model",
    "apart": "after epoch 2 are not used: the ranks' parameters differ",
    "moments apart": "after epoch 2 are not used: the ranks' optimizers' states differ",
    "of another save": "not used: that of rank 1 was not saved together with that of rank 0",
}
"""Damage -> what is said of it."""
LEARNED = ("epoch", "samples", "learning_rate", "step_losses", "train_loss", "train_accuracy", "test_loss",
           "test_accuracy", "bytes_sent")  # fmt: skip


class CutError(Exception):
    """What ends a training in the middle."""


class KeptStep(PreparedStep):
    """Shows the step that was trained."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        KeptStep.last = self


def fingerprint(value):
    """Of parameters, buffers, momenta and residuals."""
    if isinstance(value, dict):
        content = "".join(f"{key} {fingerprint(value[key])} " for key in sorted(value)).encode()
    else:
        content = value.detach().contiguous().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()


def trained(cell, group, files, cut_after=None):
    rows = []

    def record(new):
        rows.extend(new)
        if cut_after is not None and rows[-1]["epoch"] > cut_after:
            raise CutError

    try:
        summary = CellRunner(CPU).run(cell, group, record, files)
    except CutError:
        return {"rows": rows}
    state = fingerprint(KeptStep.last.step.state_dict())
    return {"rows": rows, "notes": summary.notes, "state": state}


def damaged(group, folder):
    """How trainings go on of which checkpoints of rank 1 were damaged after the cut."""
    seen = {}
    for repeat, damage in enumerate((*DAMAGES, "both"), 1):
        files = folder.checkpoints(BASE.id, repeat, group.rank)
        trained(BASE, group, files, CUT_AFTER)
        for path, content in files.read() if group.rank == 1 else ():
            is_last = path == files._last
            if damage == "both" or (damage == "flipped" and is_last):
                path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
            elif is_last:
                path.write_bytes(rewritten(content, group, damage))
        seen[damage] = trained(BASE, group, files)
    return seen


def rewritten(content, group, damage):
    """A good checkpoint of other content."""
    target = Target.of(KeptStep.last.step.replica.module, BASE.id, group.rank, group.world_size)
    read = Checkpoint.from_bytes(content, target)
    if part := MOVED.get(damage):
        read.step[part][next(iter(read.step[part]))] += 1e-3
    if damage == "of another save":
        read = replace(read, saved_together="another")
    if damage == "other model":
        target = replace(target, shapes={"weight": "[3] torch.float32"})
    return read.to_bytes(target)


def restored_wrong(group, files):
    """What a training says that does not get back its residuals on one rank."""
    cell, real = CELLS["one_bit"], AggregatorState.load_state_dict
    trained(cell, group, files, CUT_AFTER)

    def load(state, tensors):
        real(state, tensors)
        if group.rank == 1:
            for values in state.checkpoint_tensors().values():
                values.zero_()

    with mock.patch.object(AggregatorState, "load_state_dict", load):
        return refusal(CheckpointError, lambda: trained(cell, group, files))


def seen_by(workers):
    rank, folder = workers.info.rank, ResultsFolder(Path(sys.argv[1]).with_name("results"))
    trust([BASE.model])
    vars(run_convergence)["PreparedStep"] = KeptStep
    run_convergence.LARGEST_WRITING_SHARE = float("inf")  # after every epoch
    vars(prepared_step).update(FIRST_STEPS=1, LATER_STEPS=1)  # are checked, of each of so many trainings
    seen = {}
    for name, cell in CELLS.items():
        group, files = workers.group(CPU), folder.checkpoints(cell.id, 0, rank)
        uncut = trained(cell, group, folder.checkpoints(f"uncut-{cell.id}", 0, rank))
        cut = trained(cell, group, files, CUT_AFTER)
        if name == "one_bit" and rank == 1:  # cut off while it wrote: the other has one more
            files._last.unlink()
        again = folder.checkpoints(cell.id, 0, rank)
        seen[name] = {"uncut": uncut, "cut": cut, "resumed": trained(cell, group, again)}
    seen["damaged"] = damaged(workers.group(CPU), folder)
    seen["restored wrong"] = restored_wrong(workers.group(CPU), folder.checkpoints("wrong", 0, rank))
    return seen


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks(__file__, 2, CUDA_VISIBLE_DEVICES="")


@pytest.mark.processes
@pytest.mark.parametrize("name", CELLS)
class TestResume:
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
            cut, kept = rank[name]["cut"]["rows"], CUT_AFTER - (name == "one_bit")
            assert [row["epoch"] for row in cut] == list(range(1, CUT_AFTER + 2))  # before its end
            assert rank[name]["resumed"]["rows"][:kept] == cut[:kept]

    def test_run_says_where_it_went_on(self, ranks, name):
        epoch = CUT_AFTER - (name == "one_bit")  # the last that both ranks had written
        notes = ranks[0][name]["resumed"]["notes"]
        assert f"cut off after epoch {epoch}, and went on from there" in notes
        assert not [note for note in ranks[0][name]["uncut"]["notes"] if "cut off" in note]


@pytest.mark.processes
class TestDamaged:
    @pytest.mark.parametrize(("damage", "note"), DAMAGES.items())
    def test_training_goes_on_from_the_one_before_with_the_same_bits(self, ranks, damage, note):
        for rank in ranks:
            found = rank["damaged"][damage]
            assert found["state"] == rank["all_reduce"]["uncut"]["state"]
            for said in (note, f"cut off after epoch {CUT_AFTER - 1}"):
                assert any(said in one for one in found["notes"])

    def test_rank_that_has_restored_something_else_is_named_on_every_rank(self, ranks):
        for said in (rank["restored wrong"] for rank in ranks):
            assert said.startswith("a checkpoint cannot be restored: aggregator residual/")
            assert "of rank 1 is not as it was saved; it is removed, and `scaling run --retry-failed`" in said

    def test_training_without_a_good_one_begins_anew(self, ranks):
        for rank in ranks:
            found = rank["damaged"]["both"]
            assert found["state"] == rank["all_reduce"]["uncut"]["state"]
            assert any("the training began anew" in one for one in found["notes"])
            assert not any("cut off" in one for one in found["notes"])


SHAPES = {"w": "[3] torch.float32"}
TARGET = Target("a", 1, 2, SHAPES)


def checkpoint(**changes):
    step = {"module": {"w": torch.arange(3.0)}, "aggregator": {}, "update": {"0:3": torch.ones(3)}}
    rows = [{"epoch": 1, "train_loss": float("nan"), "step_losses": [1.0]}, {"epoch": 2}]
    made = {"progress": TrainingProgress(2, 1.5, None), "rows": rows, "step": step, "saved_together": "ab"}
    made |= {"random_states": [torch.get_rng_state()], "hosts": ["one/0123abcd"]}
    return Checkpoint(**{**made, **changes})


WHOLE = checkpoint().to_bytes(TARGET)


@pytest.mark.parametrize("train_j", [None, 0.0, 3])
def test_checkpoint_is_read_as_it_was_written(train_j):
    made = checkpoint(progress=TrainingProgress(2, 1.5, train_j))
    read = Checkpoint.from_bytes(made.to_bytes(TARGET), TARGET)
    assert (read.progress, repr(read.rows), read.hosts) == (made.progress, repr(made.rows), made.hosts)
    assert torch.equal(read.step["module"]["w"], torch.arange(3.0))
    assert torch.equal(read.step["update"]["0:3"], torch.ones(3))
    assert torch.equal(read.random_states[0], made.random_states[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((other, "no checkpoint of version 4") for other in (b"", b"no archive", b"PK\x03\x04cut")),
        (WHOLE[: len(WHOLE) // 2], "changed, or cut short"),
    ],
    ids=["nothing", "no archive", "no whole archive", "half of one"],
)
def test_other_bytes_are_no_checkpoint(content, said):
    with pytest.raises(CheckpointError, match=said):
        Checkpoint.from_bytes(content, TARGET)


@given(st.data())
def test_no_bit_can_be_flipped_unnoticed(data):
    content = bytearray(WHOLE)
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CheckpointError):
        Checkpoint.from_bytes(bytes(content), TARGET)


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
def test_one_of_something_else_says_what_differs(other, message):
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.from_bytes(WHOLE, replace(TARGET, **other))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rows", 3), ("rows", [1]), ("step", []), ("random_states", []), ("random_states", [1])),
        *(("hosts", "here"), ("saved_together", 7), ("progress", TrainingProgress("last", 0.0))),
        ("progress", TrainingProgress(1, "long")),
    ],
)
def test_content_of_another_type_is_named(name, value):
    content = checkpoint(**{name: value}).to_bytes(TARGET)
    with pytest.raises(CheckpointError, match=f"its {name}.* is not what it should be: "):
        Checkpoint.from_bytes(content, TARGET)


def test_parameters_that_are_equal_have_equal_digests():
    one, other = checkpoint(), checkpoint()
    other.step["module"]["w"][0] = -0.0
    assert one.parameter_digest(["w"]) == other.parameter_digest(["w"])
    other.step["module"]["w"][0] = 1e-30
    assert one.parameter_digest(["w"]) != other.parameter_digest(["w"])


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"stripe_borders/w": [0, 1, 4], "stripe_residual/w": [3, 4]}, None),  # in other stripes
        ({"stripe_borders/w": [0, 1, 4], "stripe_residual/w": [3, 4], "other": [6]}, "aggregator other"),
        ({"stripe_residual/w": [1, 3]}, "aggregator stripe_residual/w"),
    ],
)
def test_parts_in_other_stripes_are_no_damage(changes, found):
    state = {"stripe_borders/w": [0, 2, 4], "stripe_residual/w": [1, 2], "other": [5]}

    def step_of(**values):
        return {"aggregator": {name: torch.tensor(own) for name, own in values.items()}}

    saved, now = step_of(**state), mock.Mock()
    now.state_dict.return_value = step_of(**{**state, **changes})
    assert Checkpoint(TrainingProgress(1, 1.0), [], saved, []).not_restored(now) == found


if __name__ == "__main__":
    as_rank(seen_by)
