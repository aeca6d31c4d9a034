"""Random numbers for stochastic rounding: uniform, new at each step, alike where the seed and state are."""

import torch

from scaling.codecs.noise import Noise

CPU = torch.device("cpu")
NUM = 50_000


def test_numbers_are_uniform_and_below_one():
    drawn = torch.stack([Noise(NUM, 3, CPU).uniform(), Noise(NUM, 4, CPU).uniform()])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    shares = torch.histc(drawn, 10, 0, 1) / drawn.numel()
    assert (shares - 0.1).abs().max() < 0.005


def test_steps_and_neighbours_do_not_go_together():
    noise = Noise(NUM, 3, CPU)
    steps = torch.stack([noise.uniform() for _ in range(8)])
    together = torch.corrcoef(steps).fill_diagonal_(0).abs().max()
    neighbours = torch.corrcoef(torch.stack([steps[0, 1:], steps[0, :-1]]))[0, 1].abs()
    assert together < 0.03
    assert neighbours < 0.03


def test_one_elements_numbers_are_uniform_over_steps():
    noise = Noise(20, 3, CPU)
    over_steps = torch.stack([noise.uniform() for _ in range(4000)])
    assert (over_steps.mean(0) - 0.5).abs().max() < 0.03
    assert ((over_steps < 0.1).float().mean(0) - 0.1).abs().max() < 0.03


def test_state_of_two_numbers_decides_what_comes_next():
    one, other, apart = (Noise(100, seed, CPU) for seed in (5, 5, 6))
    for _ in range(3):
        one.uniform()
    other.drawn.copy_(one.drawn)
    assert torch.equal(one.uniform(), other.uniform())
    assert not torch.equal(one.uniform(), apart.uniform())
