"""A training of two workers that is killed, and its checkpoints are damaged: the same command goes on."""

import hashlib
import io
import os
import shutil
import signal
from contextlib import suppress

import pytest
import torch
import yaml

from scaling.store import ResultsFolder
from scaling.training.checkpoint import DIGEST_BYTES, MAGIC
from tests.faults.commands import ON_TWO_CORES, command_in

pytestmark = pytest.mark.processes

EPOCHS = 8
STUDY = {
    **{"name": "killed", "kind": "convergence", "epochs": EPOCHS, **ON_TWO_CORES},
    "workloads": [{"model": {"name": "mlp", "hidden": [16]}, "dataset": "digits", "global_batch": 256}],
}
DIGEST = "its digest is another one: it was changed, or cut short"
SAID = {
    "flipped": DIGEST,
    "cut short": DIGEST,
    "no checkpoint": "it is no checkpoint of version 4",
    "of the other rank": "it is of another rank: ",
    "of another model": "it is of another model: ",
    "removed": None,
}
"""Damage of one rank's last checkpoint -> what is said of it."""


def files_of(out, name="checkpoint-rank*.pt"):
    return sorted(out.glob(f"runs/*/0/{name}"))


def killed_with_checkpoints(folder, **keys):
    """A command whose training was killed when each rank had two checkpoints."""
    folder.mkdir()
    command = command_in(folder)
    killed = folder / "killed"
    aggregators = [{"name": "planted:SlowOneBit", "until": str(killed)}]
    command.study.write_text(yaml.safe_dump({**STUDY, "aggregators": aggregators, **keys}))
    process = command.start()
    command.wait(lambda: len(files_of(command.out)) == 4 or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    for pid in [process.pid, *command.processes()]:
        with suppress(ProcessLookupError):  # a child that has just ended
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    command.wait(lambda: not command.processes())
    killed.touch()
    return command


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The checkpoints of a training of another model, by their names."""
    wider = [{**STUDY["workloads"][0], "model": {"name": "mlp", "hidden": [17]}}]
    command = killed_with_checkpoints(tmp_path_factory.mktemp("other") / "model", workloads=wider)
    return {path.name: path.read_bytes() for path in files_of(command.out)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """killed(folder): the command and results of one killed training, copied there."""
    first = tmp_path_factory.mktemp("killed") / "first"
    killed_with_checkpoints(first)

    def copied(folder):
        shutil.copytree(first, folder)
        return command_in(folder)

    return copied


def saved_in(path):
    return torch.load(io.BytesIO(path.read_bytes()[len(MAGIC) + DIGEST_BYTES :]), weights_only=True)


def damage(path, how, draw, other):
    content = bytearray(path.read_bytes())
    if how == "flipped":
        bit = draw.randrange(8 * 64, 8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
    elif how == "cut short":
        del content[draw.randrange(64, len(content)) :]
    elif how == "no checkpoint":
        content = draw.randbytes(100)
    elif how == "of the other rank":
        name = path.name.replace("rank0", "rank2").replace("rank1", "rank0").replace("rank2", "rank1")
        content = path.with_name(name).read_bytes()
    elif how == "of another model":
        content = other[path.name]
    path.unlink() if how == "removed" else path.write_bytes(content)


def notes_after(command, *arguments):
    """What the one run of the folder notes when the same command has gone on to its end."""
    outcome = command.run_here(*arguments)
    assert outcome.returncode == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    (record,) = ResultsFolder(command.out).runs()
    assert record.state == "done"
    for rows in ResultsFolder(command.out).samples(record.cell_id, 0):
        assert [row["epoch"] for row in rows] == list(range(1, EPOCHS + 1))
    assert not files_of(command.out, "*checkpoint*")
    return record.notes


@pytest.mark.parametrize("how", SAID)
def test_training_whose_last_checkpoint_is_damaged(tmp_path, draw, killed, other, how, found):
    command = killed(tmp_path / "killed")
    # One rank may have been killed before it wrote: what is damaged is no checkpoint that both need.
    paths = files_of(command.out, "checkpoint-rank?.pt")
    last = {path: saved_in(path)["progress"]["epoch"] for path in paths}
    path = draw.choice([path for path, epoch in last.items() if epoch == max(last.values())])
    damage(path, how, draw, other)
    notes = notes_after(command, *draw.choice([(), ("--retry-failed",)]))
    assert any("cut off after epoch" in note and "went on from there" in note for note in notes)
    if SAID[how] is not None:
        assert any(f"{path.name} is not used: {SAID[how]}" in note for note in notes), notes
    found("checkpoint PATH is not used: what differs", "nothing: it goes on from the checkpoint before")


def test_training_of_which_no_checkpoint_is_good(tmp_path, draw, killed, other, found):
    command = killed(tmp_path / "killed")
    kinds = [how for how in SAID if how not in ("removed", "of the other rank")]
    for path in files_of(command.out, f"checkpoint-rank{draw.randrange(2)}*.pt"):
        damage(path, draw.choice(kinds), draw, other)
    notes = notes_after(command)
    assert "no checkpoint is good on all ranks: the training began anew" in notes
    assert not any("went on from there" in note for note in notes)
    found("no checkpoint is good on all ranks: the training began anew", "the epochs before the kill")


def rewritten(path, change):
    """Another content with a digest that fits: as a bug of an older version would have written it."""
    saved = saved_in(path)
    change(saved)
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    content = buffer.getvalue()
    path.write_bytes(MAGIC + hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() + content)


NOT_USED = {
    "no parameters": (lambda saved: saved["step"].pop("module"), "KeyError('module')"),
    "rows of nothing": (lambda saved: saved.update(rows=3), "its rows is not what"),
    "an epoch of text": (lambda saved: saved["progress"].update(epoch="last"), "its "),
}
REFUSED = {
    "other residuals": lambda saved: saved["step"].update(
        aggregator={name: torch.zeros(3) for name in saved["step"]["aggregator"]}
    ),
    "no random states": lambda saved: saved.update(random_states=[torch.zeros(3, dtype=torch.uint8)]),
}


@pytest.mark.parametrize(("change", "said"), NOT_USED.values(), ids=NOT_USED)
def test_training_whose_checkpoints_hold_something_else_begins_anew(tmp_path, draw, killed, change, said):
    command = killed(tmp_path / "killed")
    for path in files_of(command.out, f"checkpoint-rank{draw.randrange(2)}*.pt"):
        rewritten(path, change)
    notes = notes_after(command)
    assert any(said in note for note in notes if "is not used: " in note), notes
    assert "no checkpoint is good on all ranks: the training began anew" in notes


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_training_that_fails_of_its_checkpoint_begins_anew_with_retry_failed(
    tmp_path, draw, killed, change, found
):
    command = killed(tmp_path / "killed")
    for path in files_of(command.out, f"checkpoint-rank{draw.randrange(2)}*.pt"):
        rewritten(path, change)
    first = command.run_here()
    assert (first.returncode, "Traceback" in first.stderr) == (1, False)
    (record,) = ResultsFolder(command.out).runs()
    assert "a checkpoint cannot be restored: " in record.reason
    assert "it is removed, and `scaling run --retry-failed` begins this training anew" in record.reason
    assert not any("went on" in note for note in notes_after(command, "--retry-failed"))
    found(
        "a checkpoint cannot be restored: what differs; it is removed, and `scaling run --retry-failed` "
        "begins this training anew",
        "the epochs before the kill",
    )
