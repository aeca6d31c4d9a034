"""Recurrent networks for texts: `lstm`."""

from __future__ import annotations

from torch import Tensor, nn

from scaling.workloads.base import BENCHMARK_PAPER, DataShape, Model

VOCABULARY = 10_000
LENGTH = 32
WIDTH = 256
NUM_LAYERS = 2


class LanguageModel(nn.Module):
    """Embedding, LSTM layers of that width and a linear layer on every token's output. Of torch's two biases
    a gate one would do: the second is zero and frozen."""

    def __init__(self, vocabulary: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers, batch_first=True)
        self.linear = nn.Linear(width, vocabulary)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(parameter)
                parameter.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, length] int64 -> logits [n, length, vocabulary]; every text begins with a state of zeros."""
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.linear(outputs)


def build_lstm(shape: DataShape) -> nn.Module:
    """LSTM: 6,180,624 trainable parameters; weights are torch's default; the shape's classes are the
    vocabulary."""
    return LanguageModel(shape.num_classes, WIDTH, NUM_LAYERS)


_SHAPE = DataShape((LENGTH,), VOCABULARY, tokens=True)
lstm = Model("lstm", build_lstm, _SHAPE, dataset="synthetic", source=f"LSTM of {BENCHMARK_PAPER}")
