"""What is left of a study, in words."""

from scaling.report.status import describe_status, status_table, what_is_left


def row(world_size, *states, reason=None, aggregator="ring", num_waiting=0):
    return {"kind": "iteration", "world_size": world_size, "aggregator": aggregator, "states": list(states),
            "reason": reason, "num_waiting": num_waiting}  # fmt: skip


def test_runs_that_are_left_are_counted_by_world_size_and_failed_ones_are_no_rest():
    rows = [
        row(1, "done", "planned"), row(2, "planned", "running"), row(2, "planned", "done"), row(4, "done"),
    ]  # fmt: skip
    expected = "4 of 7 runs are left: 1 with 1 worker, 3 with 2 workers; the same `run` or `submit` goes on"
    assert what_is_left(rows) == expected
    assert what_is_left([row(1, "done")]) == "nothing is left of 1 runs"
    expected = "nothing is left of 2 runs; 1 failed, `--retry-failed` runs them again"
    assert what_is_left([row(1, "done", "failed")]) == expected


def test_cells_that_differ_in_augmentation_are_told_apart(study):
    study.add(["planned"], aggregator="ring")
    study.add(["planned"], aggregator="ring", augmentation="standard")
    assert [row["name"] for row in status_table(study.folder)] == ["ring", "ring, augmentation standard"]


def test_runs_that_another_launch_must_do_are_told_apart():
    waiting = row(2, "planned", "planned", reason="the launch lacks mpi", num_waiting=2)
    expected = "2 of 3 runs are left: 2 with 2 workers; 2 of them need another launch, as said above"
    assert what_is_left([row(1, "done"), waiting]) == expected
    assert what_is_left([row(1, "planned"), waiting]) == (
        "3 of 3 runs are left: 1 with 1 worker, 2 with 2 workers; the same `run` or `submit` goes on; "
        "2 of them need another launch, as said above"
    )


def test_text_has_a_line_a_cell_and_the_rest_at_the_end():
    text = describe_status([row(2, "failed", reason="no memory"), row(1, "planned", aggregator=None)])
    cells, left = text.splitlines()[:2], text.splitlines()[2]
    expected = [["iteration", "2", "x", "ring", "failed", "no", "memory"], ["iteration", "1", "x", "planned"]]
    assert ([line.split() for line in cells], left.startswith("1 of 2 runs are left")) == (expected, True)


def test_long_names_reasons_and_many_states_are_folded_to_80_columns():
    name = "kernel-choices, convolution, AlexNet 11x11, 64, older-interface, float32, 64 MiB, cuda"
    reason = "rank 0: RuntimeError: " + "the library has no such algorithm, " * 4
    rows = [
        row(1, "failed", reason=reason, aggregator=name),
        row(1, *["done"] * 8, "planned", "planned", aggregator="all_reduce, overlapped, peer access off"),
    ]
    text = describe_status(rows)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert reason.strip() in words
    assert "8 done, 2 planned" in words
    assert text.splitlines()[1].startswith(" " * 18 + "64, older-interface")
    states = [*["done"] * 8, "planned", "planned", "running", "failed"]
    first, second, *_ = describe_status([row(1, *states, aggregator=name)]).splitlines()
    assert (len(first), first[-20:]) == (80, "8 done, 2 planned, 1")
    assert second.endswith("64   running, 1 failed")
