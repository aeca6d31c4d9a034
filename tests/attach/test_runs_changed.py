"""What an arm changes in a script that runs in several processes."""

import pytest

from scaling.attach.launch import run_arm
from scaling.attach.marks import steady
from tests.attach.test_runs import PLAIN, SCRIPTS, ranks
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes


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
    script = tmp_path / "unused.py"
    text = PLAIN.replace(
        "torch.nn.Linear(256, 1)))", "torch.nn.Linear(256, 1), Unused()), find_unused_parameters=True)"
    )
    text = text.replace("torch.set_num_threads(1)", UNUSED)
    script.write_text(text)
    waits = [] if arm == "baseline" else ["1", str(tmp_path / "tenth")]  # for the other rank's tenth step
    run = run_arm(
        [*ranks(), str(script), *waits], arm, tmp_path / arm, warmup=3, steps=10, deadline_s=LIMIT_S,
        cwd=tmp_path,
    )  # fmt: skip
    assert run.reason is None, run.reason
    assert [rank.get("exchanges_used") for rank in run.ranks] == [None if arm == "baseline" else False] * 2


def test_threads_fit_in_a_script_that_is_not_reached_by_itself_too(tmp_path):
    script = tmp_path / "isolated.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(SCRIPTS.parents[2])!r})\n"
        "import scaling\n"
        + PLAIN.replace("set_num_threads(1)", "set_num_threads(400)").replace(
            "while True:\n", "with scaling.attached(model, optimizer):\n  while True:\n"
        )
    )
    command = [*ranks(), "-E", str(script)]
    run = run_arm(command, "threads", tmp_path / "out", warmup=3, steps=5, deadline_s=LIMIT_S, cwd=tmp_path)
    assert run.reason is None, run.reason
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
    script = tmp_path / "ahead.py"
    draws = "for x, y in ahead(torch.utils.data.DataLoader(data, batch_size=8)):"
    script.write_text(
        AHEAD + PLAIN.replace("for x, y in torch.utils.data.DataLoader(data, batch_size=8):", draws)
    )
    run = run_arm(
        [*ranks(), str(script), "1"], "marked", tmp_path / "out", warmup=3, steps=10, deadline_s=LIMIT_S,
        cwd=tmp_path,
    )  # fmt: skip
    assert run.reason is None, run.reason
    signature, (_, steps) = steady(run.ranks)
    assert signature == (1, 0, 0, 1)
    assert run.ranks[0]["draws_in_thread"]
    assert {name for step in steps for name, _, _ in step.spans} >= {"forward", "backward", "update"}
    assert "input" not in {name for name, _, _ in run.ranks[0]["phases"]}
    assert sum(end - start for name, start, end in steps[0].spans if name == "forward") > 0.03
