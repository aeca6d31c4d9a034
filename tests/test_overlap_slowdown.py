"""The study of what messages under the backward pass cost: it has what the fit of the slowdown needs."""

from pathlib import Path

from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve

STUDY = Path(__file__).parents[1] / "benchmarks" / "overlap_slowdown.yaml"


def test_every_network_has_its_step_alone_under_ddp_and_beside_messages_with_and_without_access():
    arms = {}
    for cell in resolve(load_study(str(STUDY)), AvailableMachine(2, 16)).trained:
        assert (cell.step, cell.world_size, cell.device) == ("overlapped", 2, "cuda")
        arms.setdefault((cell.model_label, cell.local_batch), set()).add((cell.aggregator, cell.peer_access))
    assert len(arms) == 5
    wanted = {(name, access) for name in ("none", "no_op", "all_reduce") for access in (True, False)}
    assert all(of_network == wanted for of_network in arms.values())
