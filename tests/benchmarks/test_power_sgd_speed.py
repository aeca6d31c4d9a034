"""The benchmark of PowerSGD runs, ends, and says what its samples give."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def table(program):
    return program("power_sgd_table")


def network(**times):
    """Contenders by name; the loss falls alike."""
    contenders = {}
    for name, seconds in times.items():
        kind = name.partition("_")[0]
        own = {"kind": kind if kind in ("hook", "ours") else "other", "iteration_s": seconds}
        contenders[name] = {**own, "losses": [2.0, 1.5, 1.0, 1.0, 1.0, 1.0]}
    rounds = len(next(iter(times.values())))
    return {"global_batch": 8, "num_rounds": rounds, "contenders": contenders, "failed": {}}


HOOK = [0.004, 0.005, 0.004, 0.006, 0.004, 0.004]


class TestTable:
    def test_ratios_are_of_the_same_round_to_the_fastest_hook_or_there_is_no_verdict(self, table):
        ours = [one / 2 for one in HOOK]
        said = table.summary(network(hook_1=[1.0] * 6, hook_2=HOOK, ours_1=ours, ours_2=[0.5] * 6, none=HOOK))
        assert (said["best_hook"], said["best_ours"]) == ("hook_2", "ours_1")
        one = said["contenders"]["ours_1"]
        assert [one[key] for key in ("ratio", "ratio_low", "ratio_high")] == pytest.approx([2.0] * 3)
        assert (one["median_s"], one["num_rounds"]) == (0.002, 6)
        assert said["contenders"]["none"]["ratio"] == pytest.approx(1.0)
        said = table.summary(network(hook=HOOK[:3], ours=HOOK[:3]))
        assert said["contenders"]["ours"]["ratio_low"] is None
        said = table.summary(network(ours=HOOK))
        assert said["contenders"]["ours"]["ratio"] is None
        assert "no verdict" in table.verdict(said)[0]

    def test_losses_that_differ_are_said(self, table):
        found = network(hook=HOOK, ours=HOOK)
        assert "the same" in table.verdict(table.summary(found))[-1]
        found["contenders"]["ours"]["losses"] = [2.0] * 6
        assert "NOT THE SAME" in table.verdict(table.summary(found))[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(the file, what was printed)."""
    out = tmp_path_factory.mktemp("power_sgd") / "found.json"
    words = ["--networks", "mlp:32", "--seconds", "0", "--out", str(out)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    told = {"env": {**os.environ, **own}, "capture_output": True, "text": True, "timeout": LIMIT_S}
    process = subprocess.run([*launcher, str(BENCHMARKS / "power_sgd_speed.py"), *words], **told)
    assert process.returncode == 0, process.stderr
    return json.loads(out.read_text()), process.stdout


@pytest.mark.processes
class TestOnTwoProcesses:
    def test_every_contender_has_a_sample_a_round_and_the_files_table_is_printed(self, run, table):
        document, printed = run
        found = document["networks"]["mlp"]
        assert {one["kind"] for one in found["contenders"].values()} == {"ddp", "hook", "ours"}
        assert found["failed"] == {}
        for name, one in found["contenders"].items():
            assert len(one["iteration_s"]) == found["num_rounds"] >= 6, name
            assert min(one["iteration_s"]) > 0, name
        assert document["environment"]["versions"]["torch"]
        assert (document["world_size"], document["device"]) == (2, "cpu")
        expected = table.lines(document, "mlp")
        assert "\n".join(expected) in printed
        assert all(len(line) <= 80 for line in expected)
        assert document["networks"]["mlp"]["summary"] == table.summary(document["networks"]["mlp"])
        assert len(table.markdown(document, "mlp")) == 2 + len(document["networks"]["mlp"]["contenders"])

    def test_torchs_hook_did_compress_and_ours_decreases_the_loss_alike(self, run):
        found = run[0]["networks"]["mlp"]
        ratios = [one["compression"] for one in found["contenders"].values() if one["kind"] == "hook"]
        assert len(ratios) >= 3
        assert min(ratios) > 2
        contenders = found["summary"]["contenders"]
        falls = {name: one["loss_first"] - one["loss_last"] for name, one in contenders.items()}
        hook = falls["hook, default buckets"]
        assert hook > 0
        ours = {name: fall for name, fall in falls.items() if name.startswith("power_sgd")}
        assert len(ours) >= 2
        assert ours == pytest.approx(dict.fromkeys(ours, hook), rel=0.3)
