"""The order of an attached script's runs, and the command of one worker."""

import pytest

from scaling.attach.arms import ONCE, REPEATED, confirming, one_worker, order


def test_every_launch_has_every_repeated_arm_once() -> None:
    runs = order(3, seed=1)
    for launch in range(3):
        assert sorted(arm for at, arm in runs[: 3 * len(REPEATED)] if at == launch) == sorted(REPEATED)
    once = runs[3 * len(REPEATED) :]
    assert once == [(0, arm) for arm in ONCE]
    assert [arm for _, arm in runs[:2]] == ["baseline", "no_exchange"]  # they say what else is worth its time


def test_what_was_faster_once_runs_next_to_two_more_pairs_of_the_same() -> None:
    assert confirming(3, []) == []
    assert confirming(3, ["threads", "buckets_2"]) == [
        *((3, arm) for arm in ("baseline", "threads", "buckets_2", "aa")),
        *((4, arm) for arm in ("buckets_2", "threads", "baseline", "aa")),
    ]


def test_the_launches_differ_in_their_order() -> None:
    assert len({tuple(arm for at, arm in order(8, 3) if at == launch) for launch in range(8)}) > 1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node=2 train.py", "torchrun --nproc-per-node=1 train.py"),
        ("torchrun --nproc_per_node 4 train.py", "torchrun --nproc_per_node 1 train.py"),
        ("torchrun train.py --nproc-per-node=2", None),
        ("torchrun -m pkg.train --nproc-per-node 2", None),
        (
            "torchrun --nnodes=2 --node-rank=1 --nproc-per-node=4 -m pkg.train",
            "torchrun --nnodes=1 --node-rank=0 --nproc-per-node=1 -m pkg.train",
        ),
        (
            "python -m torch.distributed.run --nproc-per-node 2 train.py",
            "python -m torch.distributed.run --nproc-per-node 1 train.py",
        ),
        (
            "accelerate launch --num_processes 2 train.py --num_processes 2",
            "accelerate launch --num_processes 1 train.py --num_processes 2",
        ),
        (
            "accelerate launch --multi_gpu --num_processes=2 train.py --multi_gpu",
            "accelerate launch --num_processes=1 train.py --multi_gpu",
        ),
        ("srun -N2 --ntasks-per-node=2 python train.py", "srun -N1 --ntasks-per-node=1 python train.py"),
        ("mpirun -np 4 python train.py", "mpirun -np 1 python train.py"),
        ("python train.py", None),
    ],
)
def test_one_worker_replaces_only_the_launchers_option(command: str, expected: str | None) -> None:
    assert one_worker(command.split()) == (expected.split() if expected else None)


def test_arms_that_are_named_run_in_every_launch() -> None:
    runs = order(3, 0, ["baseline", "aa", "buckets_25", "trace"], ["aa", "buckets_25"])
    assert [arm for _, arm in runs].count("buckets_25") == 3
    assert runs[-1] == (0, "trace")
