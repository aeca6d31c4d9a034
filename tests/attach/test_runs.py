"""Scripts that know nothing of this project run as each arm, and are stopped after their steps."""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

from launchers import processes
from scaling.attach.inside.arms import NO_SWITCH, TRACED_STEPS
from scaling.attach.launch import Blocks, run_arm
from scaling.attach.marks import medians_s, phases_s, steady
from scaling.attach.measured import Measured
from scaling.attach.trace import read_traces
from tests.ranks import free_port
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.processes
SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = (SCRIPTS / "plain.py").read_text()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def ranks(number=2):
    """What starts so many ranks of the script that follows, with one import of torch for all launches."""
    return [*_server(), str(number), str(free_port())]


@cache
def _server():
    """Starts what forks the ranks; it ends with this process."""
    place = Path(tempfile.mkdtemp(prefix="ranks-"), "socket")
    words = [sys.executable, "-E", str(SCRIPTS / "ranks.py"), str(place)]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=processes.killed_with_parent)  # noqa: PLW1509
    atexit.register(shutil.rmtree, place.parent)
    atexit.register(server.kill)
    wait_until(place.exists)
    return words


def run_as(arm, folder, script, *words, command=None, reason="", out="out", **more):
    """The script, or the text of one, as this arm, in the folder `work`, where it may have files already;
    `reason` is a pattern of why its steps are not taken."""
    (cwd := folder / "work").mkdir(exist_ok=True)
    if "\n" in str(script):
        (folder / "script.py").write_text(script)
        script = folder / "script.py"
    how = {"warmup": 3, "steps": 10, "deadline_s": LIMIT_S, "cwd": cwd, **more}
    run = run_arm((*(command or ranks()), str(SCRIPTS / script), *words), arm, folder / out, **how)
    assert re.fullmatch(reason, run.reason or "", re.DOTALL), run.reason
    return run


@pytest.mark.parametrize(("arm", "world_size"), [("baseline", 1), ("cached_input", 1), ("marked", 2)])
def test_an_arm_makes_its_steps_and_leaves_no_checkpoint(arm, world_size, tmp_path):
    run = run_as(arm, tmp_path, "plain.py", command=ranks(world_size))
    assert [len(rank["step_s"][0]) for rank in run.ranks] == [13] * world_size
    expected = {"input", "backward", "update", "save"} if arm == "marked" else {"save"}
    assert {name for name, _, _ in run.ranks[0]["phases"]} == expected
    assert not list((tmp_path / "work").iterdir())


def test_the_clock_tells_evaluations_from_steps(tmp_path):
    script = PLAIN.replace("optimizer.step()", "optimizer.step(); model.eval(); model.train()")
    assert steady(run_as("clock", tmp_path, script).ranks)[0] == (0, 1, 1, 1)


def _switched(folder, script, arms, *words, **more):
    """A launch in which arms are switched until there are three rounds."""
    blocks = Blocks(arms, LIMIT_S, lambda run: max(label[1] for label in run.ranks[0]["labels"]) >= 2)
    return run_as("switched", folder, script, *words, warmup=5, steps=5, seed=3, blocks=blocks, **more)


def test_arms_are_switched_on_all_ranks_after_the_same_steps(tmp_path):
    arms = ("baseline", "aa", "no_exchange", "cached_input", "fp16_hook", "one_bit_hook")
    run = _switched(tmp_path, "plain.py", arms, "1")
    first, second = (rank["labels"] for rank in run.ranks)
    assert first == second
    by_round = {number: {arm for arm, at, _ in first if at == number} for number in range(3)}
    assert list(by_round.values()) == [set(arms)] * 3
    measured = Measured()
    measured.add(0, run)
    fast_s, slow_s = measured.steps_s["no_exchange"][0]
    assert slow_s > fast_s  # rank 1 waits 30 ms in each step: without exchange rank 0 does not wait for it
    assert measured.signatures["cached_input"] == measured.signatures["baseline"]


DRIFT = """
import sys, torch.distributed as dist, torch
agent = sys.modules["_scaling_attach_inside"].start
def compare(model, step=[0, "baseline"]):
    arm = agent().arm
    if arm.exchanges and not arm.name == step[1]:
        value = sum(p.detach().double().abs().sum() for p in model.module.parameters())
        both = [torch.zeros_like(value) for _ in range(2)]
        dist.all_gather(both, value)
        print("same" if both[0] == both[1] else "differ", arm.name, flush=True)
    step[1] = arm.name
"""


def test_replicas_that_drifted_are_made_equal_before_they_exchange(tmp_path):
    script = DRIFT + PLAIN.replace("optimizer.step()", "optimizer.step(); compare(model)")
    _switched(tmp_path, script, ("baseline", "no_exchange"))
    said = (tmp_path / "out" / "output.log").read_text()
    assert ("same baseline" in said, "differ" in said) == (True, False)


REGISTERS = "model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)\nwhile True:"


def test_a_script_with_a_hook_of_its_own_is_not_switched_and_its_hook_is_left_out_too(tmp_path):
    script = PLAIN.replace("while True:", REGISTERS)
    reason = f"{NO_SWITCH}the script has a communication hook of its own, FP16_COMPRESS"
    _switched(tmp_path, script, ("baseline", "aa"), command=ranks(1), reason=reason)
    run = run_as("no_exchange", tmp_path, script, command=ranks(1), out="without")
    assert run.ranks[0]["script_hook"] == "FP16_COMPRESS"


ATOMIC = """
        os.makedirs("ck", exist_ok=True)
        torch.save({"step": 1}, "ck/newest.pt.tmp")
        os.replace("ck/newest.pt.tmp", "ck/newest.pt")
        shutil.copyfile("ck/newest.pt", "ck/best.pt")
        assert os.path.getsize("ck/best.pt") and torch.load("ck/newest.pt")["step"] == 1
        with open("partial.pt", "wb") as file:
            torch.save({}, file)
"""

ROTATES = """
        torch.save(model.state_dict(), f"tmp{dist.get_rank()}.pt")
        os.replace(src=f"tmp{dist.get_rank()}.pt", dst="last.pt")
        torch.load("last.pt")
        if os.path.exists("old.pt"):
            os.remove("old.pt")
        shutil.rmtree("folder", ignore_errors=True)
        shutil.rmtree("links", ignore_errors=True)
        assert not {"old.pt", "folder", "links"} & set(os.listdir())
        open("log.txt", "w").close()
        with open("table.csv", "a") as file:
            file.write("row")
        own = f"own-{dist.get_rank()}"
        open(own, "w").close()
        os.remove(own)
        assert not os.path.exists(own)
"""

PAST_PYTHON = """
import os, sqlite3, subprocess, sys, h5py
torch.save({}, "initial.pt")
file = os.open("low.txt", os.O_WRONLY | os.O_TRUNC)
os.write(file, b"written over")
os.close(file)
os.truncate("cut.txt", 1)
h5py.File("data.h5", "a").write(b"changed")
base = sqlite3.connect("runs.db")
base.execute("create table if not exists t (x)")
base.commit()
for environment in (None, {"PATH": os.environ["PATH"]}):
    code = "import os; os.remove('child.txt'); open('child.txt', 'w').close()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
"""

H5PY = """
import _io
class File:
    def __init__(self, name, mode="r"):
        self.write = _io.FileIO(name, mode.replace("a", "r+")).write
"""

ROTATED = ("last.pt", "old.pt", "folder/x", "log.txt", "table.csv")
WRITTEN_PAST_OPEN = ("initial.pt", "low.txt", "cut.txt", "data.h5", "runs.db", "child.txt")


def _before(name):
    return "" if name == "runs.db" else f"mine: {name}"


def test_saves_are_read_back_in_the_runs_folder_and_what_was_there_before_stays(tmp_path):
    """Of a script that saves, deletes, renames and writes in many ways, in a folder that has files."""
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    before = {name: _before(name) for name in (*ROTATED, *WRITTEN_PAST_OPEN)}
    for name, text in before.items():
        (work / name).write_text(text)
    (work / "links").mkdir()
    (work / "links" / "latest").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "h5py.py").write_text(H5PY)
    first = PLAIN.replace("dist.init_process_group", f"exec({PAST_PYTHON!r})\ndist.init_process_group")
    run = run_as("baseline", tmp_path, f"import shutil\n{first}{ATOMIC}{ROTATES}", command=ranks(1))
    saved = {path.name: path for path in (tmp_path / "out" / "files").rglob("*.pt")}
    assert saved.keys() >= {"newest.pt", "best.pt", "partial.pt", "checkpoint.pt"}
    assert all(path.stat().st_size for path in saved.values())
    after = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert after == before
    assert (work / "links" / "latest").is_symlink()
    kept = {str(Path(path).relative_to(work)) for path in run.ranks[0]["kept"]}
    assert kept == {*ROTATED, "folder", "links", "links/latest", *WRITTEN_PAST_OPEN}


def test_what_an_arm_before_wrote_is_not_the_users(tmp_path):
    script = f'{PLAIN}        open("metrics.csv", "w").close()\n'
    began_s = time.time()
    for arm in ("baseline", "aa"):
        run = run_as(arm, tmp_path, script, command=ranks(1), steps=5, out=arm, began_s=began_s)
        assert [path.name for path in (tmp_path / "work").iterdir()] == []
        assert ((tmp_path / arm / "files" / "metrics.csv").exists(), run.ranks[0]["kept"]) == (True, [])


def test_an_error_of_one_rank_is_said_and_a_long_output_is_shortened(tmp_path):
    last = "        print('x' * 300_000)\n        if dist.get_rank() == 1: raise ValueError('empty')\n"
    run_as("no_exchange", tmp_path, PLAIN + last, reason="a rank raised ValueError: empty")
    log = (tmp_path / "out" / "output.log").read_bytes()
    assert (len(log) < 600_000, b"bytes left out" in log) == (True, True)


def test_when_it_is_ended_the_script_is_too(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text("import time\nopen('started', 'w').close()\nwhile True:\n    time.sleep(0.1)\n")
    attach = [sys.executable, "-m", "scaling", "attach", "--out", "out", "--", sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parents[2])}
    process = subprocess.Popen(attach, cwd=tmp_path, env=environment)
    wait_until((tmp_path / "started").exists)
    process.terminate()
    assert process.wait(LIMIT_S) == 143
    found = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, text=True, check=False)
    assert found.stdout == ""


def test_without_exchange_parameters_are_not_sent_either(tmp_path):
    run = run_as("no_exchange", tmp_path, "zero.py")
    assert {name for name, _, _ in run.ranks[0]["phases"]} == {"backward", "update"}
    assert steady(run.ranks)[0] == (1, 0, 0, 2)


def test_one_worker_has_one_rank(tmp_path):
    for out, script, command in (("a", "plain.py", TORCHRUN), ("b", "imagenet.py", [sys.executable])):
        words = [f"--port={free_port()}"] if out == "b" else []
        run = run_as("one_worker", tmp_path, script, *words, command=command, out=out)
        assert [rank["world_size"] for rank in run.ranks] == [1]


STANDS = f"import time\ntime.sleep({LIMIT_S})\n{PLAIN}"  # a quick machine makes 13 steps within any deadline
SHORT = PLAIN.replace("while True:", "for _ in range(1):")


@pytest.mark.parametrize(("script", "how", "reason"), [
    ("without_ddp.py", {"command": [sys.executable]},
     "it makes steps without DistributedDataParallel, in one process; start it.*"),
    (STANDS, {"deadline_s": 0.5}, r"fewer than 13 steps of it were seen in 0\.5 s; its last line is: .*"),
    (SHORT, {"warmup": 5}, "it ended by itself after 8 steps; let it make more, or take --warmup 3"),
], ids=["without DDP", "past its deadline", "ends early"])  # fmt: skip
def test_a_script_without_enough_steps_is_refused_with_a_reason(script, how, reason, tmp_path):
    run_as("baseline", tmp_path, script, reason=reason, **{"command": ranks(1), **how})


@pytest.mark.parametrize(("script", "backward", "world_size"), [
    ("nanogpt.py", 2, 2), ("wgan.py", 6, 1), ("compiled.py", 1, 1), ("unused.py", 2, 1),
])  # fmt: skip
def test_scripts_in_the_style_of_real_ones(script, backward, world_size, tmp_path):
    run = run_as("marked", tmp_path, script, command=ranks(world_size))
    signature, steps = steady(run.ranks)
    assert (signature[0], len(run.ranks)) == (backward, world_size)
    names = {name for one in steps for step in one for name, _, _ in step.spans}
    assert names >= {"forward", "backward", "update"}
    assert not list((tmp_path / "work").iterdir())


def test_ranks_that_the_script_spawns_itself(tmp_path):
    run = run_as("no_exchange", tmp_path, "imagenet.py", f"--port={free_port()}", command=[sys.executable])
    assert [rank["world_size"] for rank in run.ranks] == [2, 2]
    assert run.ranks[0]["fetches"]


def isolated(text):
    """That script with the two lines of one that is not reached by itself."""
    attached = text.replace("while True:\n", "with scaling.attached(model, optimizer):\n  while True:\n")
    return f"import sys; sys.path.insert(0, {str(SCRIPTS.parents[2])!r})\nimport scaling\n{attached}"


def test_a_script_that_is_not_reached_by_itself_takes_two_lines(tmp_path):
    command, reason = [*ranks(1), "-E"], "the model was wrapped before `attached` could change it"
    blocks = Blocks(("baseline", "aa"), 1.0, bool)
    for arm, how, expected in (
        ("baseline", None, ""),
        ("no_exchange", None, reason),
        ("switched", blocks, f"{NO_SWITCH}{reason}"),  # each arm that can be is a process of its own then
    ):
        run_as(arm, tmp_path, isolated(PLAIN), command=command, reason=expected, out=arm, blocks=how)


@pytest.mark.parametrize(("script", "package"), [
    ("hf_trainer.py", "transformers"), ("accelerate_loop.py", "accelerate"),
    ("lightning_fit.py", "lightning"),
])  # fmt: skip
def test_scripts_of_frameworks_leave_no_checkpoint(script, package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[frameworks]'")
    command = [sys.executable] if package == "lightning" else ranks()  # Lightning starts its own ranks
    run = run_as("marked", tmp_path, script, command=command)
    assert [rank["world_size"] for rank in run.ranks] == [2, 2]
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file()]


@pytest.mark.gpu
def test_a_trace_and_phases_of_a_network_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parents[2]))
    network = str(Path(__file__).parents[2] / "benchmarks" / "attach_network.py")
    words = [*TORCHRUN[:3], "--nproc-per-node=1", "--standalone", network, "resnet-56", "--batch=64"]
    runs = {
        arm: run_arm(words, arm, tmp_path / arm, warmup=5, steps=10, deadline_s=LIMIT_S, cwd=tmp_path)
        for arm in ("baseline", "marked", "trace")
    }
    assert {arm: run.reason for arm, run in runs.items()} == dict.fromkeys(runs)
    assert runs["baseline"].ranks[0]["device"] == "cuda"
    traced = read_traces([tmp_path / "trace" / "trace-rank0.json.gz"], TRACED_STEPS)
    (step_s,) = medians_s(steady(runs["baseline"].ranks)[1])
    assert 0.1 * step_s < traced.busy_s < 1.5 * step_s
    _, (steps,) = steady(runs["marked"].ranks)
    assert min(phases_s(steps)[name] for name in ("forward", "backward", "update")) > 0
    assert not list(tmp_path.glob("*.pt"))


def test_a_second_node_joins_every_run(tmp_path):
    port = str(free_port())
    started = []
    for node, where in enumerate(("--out", "--join")):
        launcher = [*TORCHRUN[:3], "--nproc-per-node=1", "--nnodes=2", f"--node-rank={node}"]
        launcher += ["--master-addr=127.0.0.1", f"--master-port={port}", str(SCRIPTS / "plain.py")]
        attach = ["--arms=aa", "--launches=1", "--seconds=1", "--warmup=3", where, str(tmp_path / "out")]
        words = [sys.executable, "-m", "scaling", "attach", *attach, "--", *launcher]
        started.append(subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    first, second = (process.communicate(timeout=2 * LIMIT_S)[0] for process in started)
    assert ([process.returncode for process in started], first[:13], second) == ([0, 0], "A step takes ", "")
    assert len(list((tmp_path / "out" / "launches" / "000-switched").glob("rank*.json"))) == 2


UNUSED = """
class Unused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
    def forward(self, x):
        return x
torch.set_num_threads(1)
"""


@pytest.mark.parametrize("arm", ["no_exchange", "marked", "baseline"])
def test_which_parameters_are_used_is_not_exchanged_either(arm, tmp_path):
    last = "torch.nn.Linear(256, 1)"
    text = PLAIN.replace(f"{last}))", f"{last}, Unused()), find_unused_parameters=True)")
    waits = [] if arm == "baseline" else ["1", str(tmp_path / "tenth")]  # for the other rank's tenth step
    run = run_as(arm, tmp_path, text.replace("torch.set_num_threads(1)", UNUSED), *waits)
    assert [rank.get("exchanges_used") for rank in run.ranks] == [None if arm == "baseline" else False] * 2


def test_threads_fit_in_a_script_that_is_not_reached_by_itself_too(tmp_path):
    script = isolated(PLAIN.replace("set_num_threads(1)", "set_num_threads(400)"))
    run = run_as("threads", tmp_path, script, command=[*ranks(), "-E"], steps=5)
    cores = run.ranks[0]["cores"]
    assert [rank["threads"] for rank in run.ranks] == [max(1, cores // 2)] * 2
    assert len(run.ranks[0]["affinity"]) == cores


AHEAD = """
import queue, threading
def ahead(loader):
    drawn = queue.Queue(2)
    def put():
        for batch in loader:
            drawn.put(batch)
        drawn.put(None)
    threading.Thread(target=put, daemon=True).start()
    return iter(drawn.get, None)
"""


def test_phases_of_a_script_that_draws_in_a_thread_are_those_of_its_steps(tmp_path):
    loader = "torch.utils.data.DataLoader(data, batch_size=8)"
    run = run_as("marked", tmp_path, AHEAD + PLAIN.replace(f"in {loader}:", f"in ahead({loader}):"), "1")
    signature, (_, steps) = steady(run.ranks)
    assert signature == (1, 0, 0, 1)
    assert run.ranks[0]["draws_in_thread"]
    assert {name for step in steps for name, _, _ in step.spans} >= {"forward", "backward", "update"}
    assert "input" not in {name for name, _, _ in run.ranks[0]["phases"]}
    assert sum(end - start for name, start, end in steps[0].spans if name == "forward") > 0.03
