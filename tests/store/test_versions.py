"""How an old record becomes one of today is in `scaling.store.upgrades` alone."""

import ast
from pathlib import Path

import pytest

from scaling.store.upgrades import RENAMED_KEYS
from tests.read_imports import Module, planted, read_modules

UPGRADES = "scaling.store.upgrades"
OF_AXES = ("later", "was", "older")

ALLOWED = {
    "scaling.store.records": {"SCHEMA_VERSION", "schema_version"},
    "scaling.store": {"SCHEMA_VERSION"},  # part of the package's interface
    "scaling.store.schemas": {"schema_version"},  # the key of a record
    "scaling.axes": {*OF_AXES, "twin"},
    "scaling.study.cell": {"was", "split_iterations"},  # the identity, which does not change
    # Files with a format of their own, study.yaml among them.
    "scaling.store.folder": {"SCHEMA_VERSION", "schema_version"},
    "scaling.training.checkpoint": {"SCHEMA_VERSION"},
    "scaling.measure.environment": {"schema_version"},
    "scaling.study.prepare": {"schema_version"},
    "scaling.study.schema": {"schema_version"},
    "scaling.attach.records": {"schema_version"},
}
"""Module -> what it knows of versions and old names."""


def known_of_versions(module: Module) -> set[str]:
    """The names of versions, fields of axes about them, and old keys that the module's code has."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    has_axes = {"AXES", "Axis"} & found
    return found & {"SCHEMA_VERSION", "schema_version", *RENAMED_KEYS, *(OF_AXES if has_axes else ())}


@pytest.fixture(scope="module")
def known():
    modules = read_modules(Path(__file__).parents[2])
    names = {name: known_of_versions(module) for name, module in modules.items()}
    return {name: what for name, what in names.items() if what and not name.startswith(UPGRADES)}


def test_versions_and_old_names_are_known_in_these_places_alone(known):
    assert known == ALLOWED


@pytest.mark.parametrize("source", [
    "def f(run):\n    return run['twin']", "def f(run):\n    return run.schema_version < 3",
    "from scaling.axes import AXES\nnew = [row for row in AXES if row.later]",
])  # fmt: skip
def test_another_place_is_found(source):
    (module,) = planted(scaling__analysis__mine=source).values()
    assert len(known_of_versions(module)) == 1
