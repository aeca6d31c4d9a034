"""Steps built out of steps."""

from scaling.collectives.composition import mirrored, pipelined, placed, side_by_side
from scaling.collectives.schedule import Transfer

UP = [(Transfer(1, 0, 0, 1, "add"), Transfer(3, 2, 0, 1, "add")), (Transfer(2, 0, 0, 1, "add"),)]


def test_mirror_goes_back_in_reverse_as_copies():
    assert mirrored(UP) == [
        (Transfer(0, 2, 0, 1, "copy"),),
        (Transfer(0, 1, 0, 1, "copy"), Transfer(2, 3, 0, 1, "copy")),
    ]


def test_pipeline_runs_level_d_of_chunk_c_in_step_d_plus_c():
    steps = pipelined(UP, 3)
    assert len(steps) == 4
    assert [sorted((t.source, t.start) for t in step) for step in steps] == [
        [(1, 0), (3, 0)],
        [(1, 1), (2, 0), (3, 1)],
        [(1, 2), (2, 1), (3, 2)],
        [(2, 2)],
    ]


def test_pipeline_of_nothing_is_nothing():
    assert pipelined([], 5) == []


def test_side_by_side_lasts_as_long_as_the_longest():
    assert side_by_side([UP, UP[:1]]) == [UP[0] + UP[0], UP[1]]


def test_placed_renames_nodes_and_widens_chunks():
    assert placed(UP[1:], [7, 8, 9], first_chunk=4, width=2) == [(Transfer(9, 7, 4, 6, "add"),)]
