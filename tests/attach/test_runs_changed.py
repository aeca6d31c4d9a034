"""What an arm changes in a script that runs in several processes."""

import pytest

from scaling.attach.marks import steady
from tests.attach.test_runs import PLAIN, isolated, ranks, run_as

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
