"""The decoder `gpt`: its sizes, its shape and that it sees no later token."""

import math

import pytest
import torch

from scaling.errors import StudyError
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

PUBLISHED = {"small": 124_439_808, "medium": 354_823_168}


def made(dataset="synthetic", **parameters):
    model = create_model("gpt", parameters)
    return build_module(model, resolve_shape(model, create_dataset(dataset)))


@pytest.mark.parametrize("size", PUBLISHED)
def test_sizes_have_the_published_number_of_parameters(size):
    with torch.device("meta"):
        module = made(size=size)
    assert sum(parameter.numel() for parameter in module.parameters()) == PUBLISHED[size]


def test_number_of_parameters_follows_from_layers_width_vocabulary_and_context():
    width, layers, vocab, context = 48, 3, 100, 16
    block = 12 * width**2 + 13 * width  # 4 matrices of attention, 8 of the layers, their biases, two norms
    expected = (vocab + context) * width + layers * block + 2 * width
    module = made(size="nano", vocab=vocab, context=context)
    assert sum(parameter.numel() for parameter in module.parameters()) == expected


def test_logits_of_a_token_do_not_depend_on_later_ones():
    torch.manual_seed(0)
    module = made(size="nano", context=8, vocab=11)
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    logits, others = module(tokens), module(changed)
    assert logits.shape == (2, 8, 11)
    torch.testing.assert_close(logits[:, :5], others[:, :5])
    assert not torch.allclose(logits[:, 5:], others[:, 5:])


def test_it_begins_at_the_loss_of_a_guess():
    torch.manual_seed(0)
    module = made(size="nano")
    tokens = torch.randint(256, (4, 64))
    loss = torch.nn.functional.cross_entropy(module(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    assert float(loss.detach()) == pytest.approx(math.log(256), rel=0.02)


def test_vocabulary_has_to_be_that_of_the_text():
    with pytest.raises(StudyError, match=r"50257 classes, the data set has .* 256 classes"):
        made("text")
    assert made("text", size="small", vocab=256, context=32).tokens.weight.shape == (256, 768)
