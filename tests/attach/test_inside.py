"""The agent in this process, without a script."""

from pathlib import Path

import torch

from scaling.attach.inside import agent as inside


class _Event:
    """One of a GPU's, at a time of its clock."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def elapsed_time(self, other: "_Event") -> float:
        return other.ms - self.ms


def test_steps_on_a_gpu_end_when_the_gpu_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(inside, "register_optimizer_step_post_hook", lambda hook: None)  # global, for good
    agent = inside.Agent({"out": str(tmp_path), "arm": "baseline", "warmup": 1, "steps": 5, "deadline_s": 1})
    # The host has run ahead: it asked for three steps in 1 ms, which took the GPU 20 ms.
    agent._marks, agent._events = (
        {0: [5.0, 5.0005, 5.001]},
        {0: [_Event(100.0), _Event(110.0), _Event(120.0)]},
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert [[round(end_s, 6) for end_s in marks] for marks in agent._times_s()] == [[5.0, 5.01, 5.02]]
