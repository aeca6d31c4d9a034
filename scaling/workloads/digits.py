"""Handwritten digits of 8x8 pixels that come with scikit-learn: real data without a download."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from scaling.errors import DataError
from scaling.workloads.base import Dataset, DataShape, DataSplits, Split

NUM_TRAIN = 1437  # four fifths of the 1,797; the other 360 are the test split
# The split is part of the data set, not of a study: the same for every seed, so accuracies can be compared.
# Legacy RandomState, because numpy promises that its stream never changes (NEP 19); default_rng's may.
SPLIT_SEED = 0


@final
@dataclass(frozen=True)
class Digits(Dataset):
    """1,797 images of digits, value 0 to 16 divided by 16: 1,437 to train on, 360 to test on."""

    name = "digits"
    num_train = NUM_TRAIN
    source = (
        "scikit-learn load_digits: the test part of E. Alpaydin, C. Kaynak, "
        '"Optical Recognition of Handwritten Digits", UCI Machine Learning Repository (1998)'
    )

    def shape(self, model_shape: DataShape | None) -> DataShape:
        return DataShape((1, 8, 8), 10)

    def available(self) -> bool:
        return importlib.util.find_spec("sklearn") is not None

    def fetch(self) -> None:
        if not self.available():
            raise DataError("data set 'digits' is part of scikit-learn; install it: pip install scikit-learn")

    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Inputs [n, 1, 8, 8] from 0 to 1 and targets [n]; `num_samples` and `seed` change nothing. The
        checksum is the SHA-256 of the images and then the targets, as bytes, in scikit-learn's order."""
        self.fetch()
        # As its load_digits reads them, without the seconds that each rank would need to import scikit-learn.
        spec = importlib.util.find_spec("sklearn")
        assert spec is not None
        package = Path(str(spec.origin)).parent
        rows = np.loadtxt(package / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
        images, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
        checksum = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
        inputs = torch.from_numpy(images).unsqueeze(1).to(torch.float32) / 16
        targets = torch.from_numpy(labels).to(torch.int64)
        order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(len(targets)))
        train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
        return DataSplits(
            Split(inputs[train], targets[train]),
            Split(inputs[test], targets[test]),
            {"load_digits": f"sha256:{checksum}"},
        )
