"""The order of an attached script's runs, and the command of one worker."""

import pytest

from scaling.attach.arms import ONCE, REPEATED, one_worker, order


def test_every_launch_has_every_repeated_arm_once() -> None:
    runs = order(3, seed=1)
    for launch in range(3):
        assert sorted(arm for at, arm in runs[:15] if at == launch) == sorted(REPEATED)
    assert [arm for _, arm in runs[15:]] == list(ONCE)


def test_the_launches_differ_in_their_order() -> None:
    assert len({tuple(arm for at, arm in order(8, 3) if at == launch) for launch in range(8)}) > 1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node=2 train.py", "torchrun --nproc-per-node=1 train.py"),
        ("torchrun --nproc_per_node 4 train.py", "torchrun --nproc_per_node 1 train.py"),
        ("torchrun train.py --nproc-per-node=2", None),
        ("python train.py", None),
    ],
)
def test_one_worker_replaces_only_the_launchers_option(command: str, expected: str | None) -> None:
    assert one_worker(command.split()) == (expected.split() if expected else None)
