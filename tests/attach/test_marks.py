"""What a rank's marks say, from marks that are made up."""

import pytest

from scaling.attach.marks import phases_s, steady, steps_of
from tests.attach.made_marks import ONE_STEP, made_rank


def test_steps_of_another_kind_are_left_out_on_all_ranks():
    kinds = [ONE_STEP, ONE_STEP, (1, 5, 1, 1), ONE_STEP]
    signature, steps = steady([made_rank(0, [0.1, 0.1, 0.9, 0.1], kinds), made_rank(1, [0.1] * 4)])
    assert signature == ONE_STEP
    assert [[step.number for step in rank] for rank in steps] == [[0, 1, 3], [0, 1, 3]]


def test_an_evaluation_is_a_part_of_its_own():
    rank = made_rank(0, [1.0])
    rank["phases"] = [
        ("evaluation", 0.0, 0.4), ("input", 0.1, 0.2), ("input", 0.5, 0.6), ("backward", 0.8, 0.9),
        ("update", 0.9, 1.0),
    ]  # fmt: skip
    (step,) = steps_of(rank)
    spans = {name: round(stop - start, 6) for name, start, stop in step.spans}
    assert spans == {
        "evaluation": 0.4, "input": 0.1, "forward": 0.2, "backward": 0.1, "gradients": 0.0, "update": 0.1,
    }  # fmt: skip


def test_what_is_marked_between_is_no_part_of_other_phases():
    rank = made_rank(0, [1.0])
    rank["phases"] = [
        ("input", 0.0, 0.1), ("collective", 0.2, 0.3), ("backward", 0.5, 0.6), ("collective", 0.7, 0.8),
        ("update", 0.9, 1.0),
    ]  # fmt: skip
    (step,) = steps_of(rank)
    spans = [(name, round(start, 6), round(stop, 6)) for name, start, stop in step.spans]
    assert [span for span in spans if span[0] == "forward"] == [("forward", 0.1, 0.2), ("forward", 0.3, 0.5)]
    assert [span for span in spans if span[0] == "gradients"] == [
        ("gradients", 0.6, 0.7), ("gradients", 0.8, 0.9),
    ]  # fmt: skip


def test_after_a_step_of_an_optimizer_the_next_forward_pass_begins():
    """As of a GAN: of its discriminator first, then of its generator."""
    rank = made_rank(0, [1.0])
    rank["phases"] = [
        *[("input", 0.0, 0.1), ("backward", 0.2, 0.3), ("update", 0.3, 0.4)],
        *[("backward", 0.7, 0.8), ("update", 0.85, 1.0)],
    ]
    (step,) = steps_of(rank)
    spans = [(name, round(start, 6), round(stop, 6)) for name, start, stop in step.spans]
    assert ("forward", 0.4, 0.7) in spans
    assert ("gradients", 0.8, 0.85) in spans


def test_a_collective_between_backward_passes_parts_the_forward_pass():
    rank = made_rank(0, [1.0])
    rank["phases"] = [
        *[("input", 0.0, 0.1), ("backward", 0.2, 0.3), ("collective", 0.5, 0.6)],
        *[("backward", 0.7, 0.8), ("update", 0.8, 1.0)],
    ]
    (step,) = steps_of(rank)
    spans = {(name, round(start, 6), round(stop, 6)) for name, start, stop in step.spans}
    assert spans >= {("forward", 0.1, 0.2), ("forward", 0.3, 0.5), ("forward", 0.6, 0.7)}


def test_collectives_in_a_backward_pass_are_no_part_of_it():
    """As of synchronized batch normalization."""
    rank = made_rank(0, [1.0])
    rank["phases"] = [
        *[("input", 0.0, 0.1), ("collective", 0.4, 0.5), ("collective", 0.6, 0.7), ("backward", 0.3, 0.8)],
        ("update", 0.8, 1.0),
    ]
    (step,) = steps_of(rank)
    phases = phases_s([step])
    assert {name: round(phases[name], 6) for name in ("backward", "collective")} == {
        "backward": 0.3, "collective": 0.2,
    }  # fmt: skip
    assert step.waited_s == pytest.approx(0.2)


def test_a_step_ends_with_the_outer_one_of_two_optimizers():
    rank = made_rank(0, [1.0, 1.0])
    rank["step_s"].append([end_s + 0.4 for end_s in rank["step_s"][0]])
    rank["counts"].append([[*counts[:3], counts[3] + 1] for counts in rank["counts"][0]])
    assert [step.start_s for step in steps_of(rank)] == [0.4, 1.4]
