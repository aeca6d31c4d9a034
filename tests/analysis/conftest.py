"""Results folders made by hand."""

import pytest

from tests.made_studies import epoch_line, line, make_study, split_line, study, timed

__all__ = ["epoch_line", "line", "make_study", "split_line", "study", "timed"]


@pytest.fixture
def epochs(epoch_line):
    """epochs(accuracies): one run's lines, an epoch a second, ten steps each."""

    def make(accuracies, epoch_s=1.0, **more):
        return [
            {
                **epoch_line(number, number * epoch_s, 1.0 / number, accuracy),
                "step_losses": [1.0] * 10,
                "train_accuracy": min(1.0, accuracy + 0.01),
                "learning_rate": 0.1,
                **{name: value * number for name, value in more.items()},
            }
            for number, accuracy in enumerate(accuracies, 1)
        ]

    return make
