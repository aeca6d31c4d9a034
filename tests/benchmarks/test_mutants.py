"""Mutants are drawn from code alone, by the seed alone, and what their tests say is read rightly."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.quality

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A docstring with 1 + 2."""
from typing import Literal
Bits = Literal[2, 4]
LIMIT_S = 60.0


def example(values: list[int], width: int) -> Literal[3]:
    """Gives 4 < 5."""
    if not values or width <= 1:
        raise ValueError(f"{width + 1} is too few")
    copied = values.copy()
    total = max(sum(copied[1:width]), 0)
    for i in range(width):
        total += i % 7
    print("text", 9)
    copied.append(total)
    return join(total, copied)
'''


@pytest.fixture
def modules(program):
    return [program(name) for name in ("mutants", "mutation_sites", "mutant_tests")]


@pytest.fixture
def tree(tmp_path, modules):
    """A repository in which every package of the core has the same file."""
    for package in modules[1].CORE:
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "example.py").write_text(SOURCE)
    return tmp_path


def test_mutants_are_of_code_and_not_of_texts_types_or_messages_and_change_one_place(modules, tree):
    found = {(one.was, one.now) for one in modules[1].sites(tree, "launchers/example.py")}
    assert found == {
        ("60.0", "61.0"), ("not values", "(values)"), ("or", "and"), ("<=", "<"), ("1", "2"),
        ("values.copy()", "values"), ("max", "min"), ("1", "(1) + 1"), ("width", "(width) - 1"), ("0", "1"),
        ("+=", "-="), ("total += i % 7", "pass"), ("%", "//"), ("7", "8"), ("copied.append(total)", "pass"),
        ('print("text", 9)', "pass"), ("join(total, copied)", "None"), ("total, copied", "copied, total"),
    }  # fmt: skip
    for one in modules[1].sites(tree, "launchers/example.py"):
        changed = one.apply(SOURCE.encode()).decode()
        ast.parse(changed)
        assert changed.replace("\n", "") != SOURCE.replace("\n", "")
        assert changed.splitlines()[: one.line - 1] == SOURCE.splitlines()[: one.line - 1]
        assert changed.splitlines()[one.line :] == SOURCE.splitlines()[one.line :]


def test_draw_is_of_the_seed_and_goes_round_the_packages(modules, tree):
    sites = modules[1]
    drawn = sites.draw(tree, 5, 40)
    assert drawn == sites.draw(tree, 5, 40)
    assert drawn != sites.draw(tree, 6, 40)
    assert len(set(drawn)) == 40
    assert [one.file for one in drawn] == [f"{sites.CORE[n % len(sites.CORE)]}/example.py" for n in range(40)]


def test_every_mutant_by_hand_is_in_the_sources_and_is_python(modules):
    found = modules[0].named_mutants(ROOT)
    assert found.keys() == modules[0].NAMED.keys()
    assert all(modules[1].is_python(ROOT, one) for one in found.values())


@pytest.mark.parametrize(("record", "outcome", "killed_by", "complete"), [
    (["begun a", "ended a", "begun b", "failed b", "ended b"], "killed", "b", False),
    (["failed tests/c.py"], "killed", "tests/c.py", False),
    (["begun a", "ended a", "begun b"], "timed out", "b", False),
    (["begun a", "limit ", "ended a"], "survived", "", False),
    (["begun a", "ended a"], "survived", "", True),
])  # fmt: skip
def test_record_of_the_tests_says_what_became_of_a_mutant(modules, record, outcome, killed_by, complete):
    found = modules[2].outcome_of(record)
    assert (found.outcome, found.killed_by, found.complete) == (outcome, killed_by, complete)


def test_tests_that_can_see_a_module_come_by_their_distance(modules):
    stages = modules[2].Tests(ROOT).of("scaling/collectives/tree.py")
    assert stages["own"][0] == "tests/collectives/test_tree.py"
    merged = modules[2].Tests(ROOT).of("scaling/collectives/mxnet_tree.py")
    assert merged["own"] == ["tests/collectives/test_tree.py"]
    assert "tests/training/test_update.py" in stages["near"]
    assert "tests/aggregators/test_compression_laws.py" in stages["far"]
    assert not set(stages["near"]) & set(stages["far"])
