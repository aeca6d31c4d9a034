"""A worker that is killed in the middle of a training: the next one goes on from its last checkpoint."""

import hashlib
import io
import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from scaling.analysis.columns import to_rows
from scaling.analysis.summary import summary_table
from scaling.store import ResultsFolder
from scaling.training.checkpoint import DIGEST_BYTES, MAGIC
from tests.end_to_end.conftest import trained
from tests.ranks import free_port
from tests.waiting import LIMIT_S, wait_until
from topologies.detect_host import this_start

STUDY = trained("killed", 16, 32, aggregators=["all_reduce"], world_sizes=[1], epochs=150, schedule="cosine")


def start(study, out, *overrides) -> subprocess.Popen:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scaling.worker", str(study), "--out", str(out), *overrides]
    return subprocess.Popen(command, env={**os.environ, **place, **meeting}, stderr=subprocess.DEVNULL)


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def as_if_from(host: str, out) -> None:
    """The checkpoints, as a host of another name would have left them."""
    for path in out.glob("runs/*/0/*checkpoint*"):
        values = torch.load(io.BytesIO(path.read_bytes()[len(MAGIC) + DIGEST_BYTES :]), weights_only=True)
        assert values["hosts"] == [this_start()]
        content = io.BytesIO()
        torch.save({**values, "hosts": [host]}, content)
        digest = hashlib.blake2b(content.getvalue(), digest_size=DIGEST_BYTES).digest()
        path.write_bytes(MAGIC + digest + content.getvalue())


@pytest.mark.processes
def test_killed_worker_goes_on_with_the_same_bits_and_leaves_no_checkpoint(tmp_path):
    study, out = tmp_path / "killed.yaml", tmp_path / "out"
    study.write_text(yaml.safe_dump(STUDY))
    first = start(study, out)
    try:
        wait_until(lambda: list(out.glob("runs/*/0/checkpoint-rank0.pt")) or first.poll() is not None)
        assert first.poll() is None, "it ended before it could be killed"
    finally:
        first.kill()
        first.wait()
    (record,) = ResultsFolder(out).runs()
    assert record.state == "running"
    as_if_from("elsewhere/01234567", out)
    second = start(study, out)
    try:
        assert second.wait(LIMIT_S) == 0
    finally:
        second.kill()
        second.wait()
    (record,) = ResultsFolder(out).runs()
    assert record.state == "done"
    (note,) = [note for note in record.notes if note.startswith("cut off after epoch")]
    assert note.endswith(f"; seconds and joules are of elsewhere/01234567 and {this_start()} together")
    (row,) = to_rows(summary_table(ResultsFolder(out)))
    assert row["hosts"] == f"elsewhere/01234567 | {this_start()}"
    (rows,) = ResultsFolder(out).samples(record.cell_id, 0)
    assert [row["epoch"] for row in rows] == list(range(1, 151))
    # What the first attempt recorded behind its last checkpoint was computed again, with the same bits.
    before = lines(out / "runs" / record.cell_id / "0" / "attempt-1" / "rank0.jsonl")
    assert int(note.split()[4].rstrip(",")) <= len(before)
    assert [row["step_losses"] for row in rows[: len(before)]] == [row["step_losses"] for row in before]
    assert not list(out.rglob("*checkpoint*"))
