"""What is left of a study, in words."""

from scaling.report.status import describe_status, what_is_left


def row(world_size, *states, reason=None, aggregator="ring"):
    return {"kind": "iteration", "world_size": world_size, "aggregator": aggregator, "states": list(states),
            "reason": reason}  # fmt: skip


def test_runs_that_are_left_are_counted_by_world_size():
    rows = [
        row(1, "done", "planned"),
        row(2, "planned", "running"),
        row(2, "planned", "done"),
        row(4, "done"),
    ]
    assert what_is_left(rows) == (
        "4 of 7 runs are left: 1 with 1 worker, 3 with 2 workers; the same `run` or `submit` goes on"
    )


def test_nothing_left_is_said_and_failed_runs_are_no_rest():
    assert what_is_left([row(1, "done")]) == "nothing is left of 1 runs"
    assert what_is_left([row(1, "done", "failed")]) == (
        "nothing is left of 2 runs; 1 failed, `--retry-failed` runs them again"
    )


def test_text_has_a_line_a_cell_and_the_rest_at_the_end():
    text = describe_status([row(2, "failed", reason="no memory"), row(1, "planned", aggregator=None)])
    cells, left = text.splitlines()[:2], text.splitlines()[2]
    assert [line.split() for line in cells] == [
        ["iteration", "2", "x", "ring", "failed", "no", "memory"],
        ["iteration", "1", "x", "planned"],
    ]
    assert left.startswith("1 of 2 runs are left")
