"""One LSTM layer, computed in three ways from the same weights: what `lstm-fused` compares.

At every step of the sequence, with gates i, f, g, o = W_ih x + b_ih + W_hh h + b_hh:

    c = sigmoid(f) c + sigmoid(i) tanh(g),    h = sigmoid(o) tanh(c)

- `elementary`: those lines as they stand, an operation of the framework for each;
- `cell`: a loop over `nn.LSTMCell`, which computes the gates' part in one kernel;
- `fused`: `nn.LSTM`, which is given the whole sequence: cuDNN on a GPU, oneDNN or native code on a CPU.

Reference: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9 (1997), with the
forget gate of F. Gers, J. Schmidhuber, F. Cummins, "Learning to forget", Neural Computation 12 (2000).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMPLEMENTATIONS = ("elementary", "cell", "fused")

FORGET_BIAS = 1.0
"""Added to the forget gate's bias: a new network remembers, and learns sooner.

Source: R. Jozefowicz, W. Zaremba, I. Sutskever, "An empirical exploration of recurrent network
architectures", ICML 2015.
"""


class ElementaryLstm(nn.Module):
    """Every operation on its own; parameters are named and shaped as in `nn.LSTMCell`.

    Args:
        inputs: numbers that are read at a step.
        width: of the state.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5  # range and order are those of nn.LSTM
        self.weight_ih = nn.Parameter(torch.empty(4 * width, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * width, width).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(4 * width).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(4 * width).uniform_(-bound, bound))

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> the last output, [n, width]."""
        hidden = cell = sequence.new_zeros(len(sequence), self.width)
        weight_ih, weight_hh = self.weight_ih.t(), self.weight_hh.t()
        for inputs in sequence.unbind(1):
            gates = inputs @ weight_ih + self.bias_ih + hidden @ weight_hh + self.bias_hh
            admit, forget, new, emit = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(admit) * torch.tanh(new)
            hidden = torch.sigmoid(emit) * torch.tanh(cell)
        return hidden


class CellLoopLstm(nn.Module):
    """A loop over `nn.LSTMCell`; see `ElementaryLstm`."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.LSTMCell(inputs, width)

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> the last output, [n, width]."""
        hidden = cell = sequence.new_zeros(len(sequence), self.width)
        for inputs in sequence.unbind(1):
            hidden, cell = self.cell(inputs, (hidden, cell))
        return hidden


class FusedLstm(nn.Module):
    """`nn.LSTM`; see `ElementaryLstm`."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> the last output, [n, width]."""
        outputs, _ = self.lstm(sequence)
        last: Tensor = outputs[:, -1]
        return last


class SequenceClassifier(nn.Module):
    """An LSTM layer and a linear layer on its last output.

    Two of different implementations have the same weights after the same `torch.manual_seed`: both draw the
    layer's four tensors in the same order from the same range.

    Args:
        implementation: one of `IMPLEMENTATIONS`.
        inputs: numbers that are read at a step.
        width: of the LSTM's state.
        num_classes: of the answer.
    """

    def __init__(self, implementation: str, inputs: int, width: int, num_classes: int) -> None:
        super().__init__()
        layers = {"elementary": ElementaryLstm, "cell": CellLoopLstm, "fused": FusedLstm}
        self.recurrent = layers[implementation](inputs, width)
        self.linear = nn.Linear(width, num_classes)
        with torch.no_grad():
            for name, parameter in self.recurrent.named_parameters():
                if "bias_ih" in name:
                    parameter[width : 2 * width] += FORGET_BIAS

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> logits [n, num_classes]."""
        logits: Tensor = self.linear(self.recurrent(sequence))
        return logits
