"""What the files of a folder hold besides runs and their samples: each read, and checked, at one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaling.errors import StoreError
from scaling.files.documents import from_json, from_yaml
from scaling.files.texts import is_clean
from scaling.store.content_schemas import (
    EnvironmentModel,
    LaunchTimesModel,
    PredictionsModel,
    SheetModel,
    StudyModel,
)
from scaling.store.files import read_document
from scaling.store.upgrades import upgraded_launch_times, upgraded_prediction, with_new_keys

MEND_TOPOLOGY = "restore it, or delete it: reports do without it"


def read_study(folder: Path) -> dict[str, Any]:
    """study.yaml. Raises StoreError: it is missing or damaged."""
    mend = f"`scaling run STUDY --out {folder}` with the study that was measured writes it again"
    study = read_document(folder / "study.yaml", from_yaml, StudyModel, mend)
    return {**study, "parts": [with_new_keys(part) for part in study["parts"]]} if "parts" in study else study


def read_environment(folder: Path) -> dict[str, Any]:
    """environment.json. Raises StoreError: it is missing or damaged."""
    mend = "restore it, or delete it: reports do without it, but nothing more can be measured in the folder"
    return read_document(folder / "environment.json", from_json, EnvironmentModel, mend)


def read_predictions(folder: Path) -> list[dict[str, Any]]:
    """predictions.json; nothing where there is none. Raises StoreError: it is damaged."""
    path = folder / "predictions.json"
    if not path.exists():
        return []
    mend = "delete it: it is what was predicted before the measurement, which stays as it is"
    rows = read_document(path, from_json, PredictionsModel, mend)["predictions"]
    return [upgraded_prediction(row) for row in rows]


def read_sheets(folder: Path) -> dict[str, dict[str, Any]]:
    """Aggregator -> sheets/<aggregator>.json. Raises StoreError: one is damaged."""
    sheets = {}
    for path in sorted(folder.glob("sheets/*.json")):
        if not is_clean(path.stem):
            raise StoreError(f"{path.parent}: {path.name!r} has control characters; rename it")
        mend = f"`scaling verify {path.stem} --save-to {folder}` writes it again"
        sheets[path.stem] = read_document(path, from_json, SheetModel, mend)
    return sheets


def read_launch_times(folder: Path, prefix: str = "") -> list[dict[str, Any]]:
    """launches/<prefix><number>.json of every launch, by number. Raises StoreError: one is damaged."""
    numbered = {path.stem.removeprefix(prefix): path for path in folder.glob(f"launches/{prefix}*.json")}
    files = [numbered[number] for number in sorted(filter(str.isdecimal, numbered), key=int)]
    mend = "delete it: it says where wall time went, and no more"
    return [upgraded_launch_times(read_document(path, from_json, LaunchTimesModel, mend)) for path in files]
