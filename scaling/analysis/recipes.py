"""What a training's recipe says, in words: stated in every table and figure of convergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.analysis.formats import listed


def recipe_text(row: Mapping[str, Any]) -> str:
    """One line: `learning rate 0.1 x global batch / 128 (linear), ...`.

    Args:
        row: of the summary; what folders of before do not have was fixed and constant.
    """
    return "; ".join([_rate(row), _optimizer(row), *_data(row)])


def _rate(row: Mapping[str, Any]) -> str:
    rate, rule, base = f"{row['learning_rate']:g}", row["learning_rate_rule"] or "fixed", row["base_batch"]
    parts = {
        "fixed": f"learning rate {rate} (fixed: the same for every batch)",
        "linear": f"learning rate {rate} x global batch / {base} (linear)",
        "sqrt": f"learning rate {rate} x square root of global batch / {base} (sqrt)",
    }
    return ", ".join([parts[rule], *_over_time(row)])


def _over_time(row: Mapping[str, Any]) -> list[str]:
    warmup = row["warmup_epochs"] or 0
    settings = [f"{warmup:g} epoch{'' if warmup == 1 else 's'} of warm-up"] if warmup else []
    schedule = row["schedule"] or "constant"
    if schedule == "step":
        epochs = str(row["milestones"]).split()
        which = f"epoch{'s' if len(epochs) > 1 else ''} {listed(epochs)}"
        return [*settings, f"x {row['gamma']:g} after {which} (step)"]
    return [*settings, "to 0 along a cosine" if schedule == "cosine" else "constant"]


def _optimizer(row: Mapping[str, Any]) -> str:
    nesterov = "Nesterov " if row["nesterov"] else ""
    decay = f", weight decay {row['weight_decay']:g}" if row["weight_decay"] else ""
    return f"{nesterov}momentum {row['momentum']:g}{decay}"


def _data(row: Mapping[str, Any]) -> list[str]:
    augmented = (row["augmentation"] or "none") != "none"
    sync = row["batch_norm"] == "sync"
    return [
        "standard augmentation" if augmented else "no augmentation",
        f"batch normalisation, if any, {'over all workers' if sync else 'of each replica'}",
    ]
