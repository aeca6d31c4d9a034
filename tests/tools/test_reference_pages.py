"""docs/reference is made of the code, and every key, column and command is in it."""

import importlib.util
from pathlib import Path

import pytest
import typer

from scaling.analysis.columns import MEANINGS, columns
from scaling.cli import app
from scaling.study.kinds import KINDS
from scaling.study.parts import Alternatives, Workload

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_committed_pages_are_those_of_the_code():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "reference_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.pages().items():
        assert (REFERENCE / name).read_text() == text, f"docs/reference/{name} is stale; run `make reference`"


@pytest.mark.parametrize(
    "model",
    [*(kind.part for kind in KINDS.values()), Workload, Alternatives],
    ids=lambda model: model.__name__,
)
def test_page_has_every_key_of_a_study(model):
    text = (REFERENCE / "study-keys.md").read_text()
    assert [name for name in model.model_fields if f"| `{name}` |" not in text] == []


def test_page_has_every_column_in_order_and_no_meaning_is_left_over():
    lines = (REFERENCE / "columns.md").read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == list(columns())
    assert MEANINGS.keys() <= columns().keys()


def test_page_has_every_command_with_its_options():
    text = (REFERENCE / "commands.md").read_text()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"## scaling {name}" in text
        for option in getattr(command, "params", []):
            if (
                option.param_type_name == "option"
                and option.name != "help"
                and not hasattr(command, "commands")
            ):
                assert option.opts[0] in text, (name, option.opts)
