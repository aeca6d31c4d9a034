"""Transformers for texts: `gpt`, the decoder of GPT-2 in three sizes.

The head is the token embedding itself ("tied"), without a bias. There is no dropout, as in today's training
of one pass over the data. References: A. Radford et al., "Language models are unsupervised multitask
learners", 2019, and openai/gpt-2, src/model.py; A. Karpathy's minGPT, model.py (gpt-nano).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from scaling.workloads.base import DataShape, Model

Size = Literal["nano", "small", "medium"]


class Dimensions(NamedTuple):
    num_layers: int
    num_heads: int
    width: int
    context: int
    vocab: int


SIZES: dict[Size, Dimensions] = {
    "nano": Dimensions(3, 3, 48, 64, 256),
    "small": Dimensions(12, 12, 768, 1024, 50_257),
    "medium": Dimensions(24, 16, 1024, 1024, 50_257),
}
"""Nano is for tests and for texts of bytes."""

WEIGHT_SD = 0.02


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, length, width] -> the same shape; each token sees those before it, and itself."""
        parts = self.inputs(tokens).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.output(seen.transpose(1, 2).flatten(-2))


class TransformerBlock(nn.Module):
    """Attention, then two layers with a GELU between, each added to what comes in."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.layers_norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.layers(self.layers_norm(tokens))


class Gpt(nn.Module):
    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        width = dimensions.width
        self.tokens = nn.Embedding(dimensions.vocab, width)
        self.positions = nn.Embedding(dimensions.context, width)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, dimensions.num_heads) for _ in range(dimensions.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        # Weights are normal, and smaller where a block ends, since that many blocks add up.
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=WEIGHT_SD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            for last in (block.attention.output, block.layers[-1]):
                assert isinstance(last, nn.Linear)
                nn.init.normal_(last.weight, std=WEIGHT_SD / math.sqrt(2 * dimensions.num_layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, length] int64 -> logits [n, length, vocab]; at most `context` tokens."""
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.linear(self.norm(hidden), self.tokens.weight)


def build_gpt(
    shape: DataShape,
    size: Size = "small",
    vocab: PositiveInt | None = None,
    context: PositiveInt | None = None,
) -> nn.Module:
    """GPT: nano, small (124,439,808 parameters) or medium (354,823,168 parameters); weights are normal.

    `shape` is texts as [context], with the vocabulary as classes; `vocab` and `context` are as it has them.
    """
    (length,) = shape.input_shape
    return Gpt(SIZES[size]._replace(context=length, vocab=shape.num_classes))


def gpt_shape(size: Size, vocab: int | None, context: int | None) -> DataShape:
    usual = SIZES[size]
    return DataShape((context or usual.context,), vocab or usual.vocab, tokens=True)


gpt = Model(
    name="gpt",
    build=build_gpt,
    shape=gpt_shape("small", None, None),
    dataset="synthetic",
    source='GPT-2: A. Radford et al., "Language models are unsupervised multitask learners" (2019)',
    parameters={"size": "small", "vocab": None, "context": None},
    shape_of=gpt_shape,
)
