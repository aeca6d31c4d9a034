"""Findings in words: every kind has its template, and a value that is missing is an error."""

import ast
from pathlib import Path

import jinja2
import pytest

from scaling.analysis.explain import RULES
from scaling.analysis.findings import Finding
from scaling.report.text import macros, next_experiment, text_of

ROOT = Path(__file__).parents[2] / "scaling"


def kinds_in_code():
    """The kinds that are written out where a finding is made."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_finding = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
            if is_finding and node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def test_every_kind_of_finding_and_every_rule_has_its_templates():
    kinds = set(kinds_in_code())
    assert len(kinds) > 20
    assert kinds - set(macros()) == set()
    for rule in RULES:
        assert {rule.name, f"{rule.name}_next"} <= set(macros())


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="reason"):
        text_of(Finding("failed", ("a",), {"is_out_of_memory": False}))


def test_a_speedup_below_one_that_may_be_none_is_said_so():
    values = {"world_size": 2, "speedup": 0.98, "speedup_low": 0.93, "speedup_high": 1.03}
    said = "2 workers process no more samples per second than one: speedup 0.98 ±5.1%"
    assert text_of(Finding("no_speedup", ("a",), values)) == said


def test_line_breaks_of_a_template_are_no_part_of_the_text_and_not_all_have_a_next_experiment():
    values = {"world_size": 2, "speedup": 0.8, "speedup_low": None, "speedup_high": None}
    finding = Finding("no_speedup", ("a",), values)
    assert text_of(finding) == "2 workers process fewer samples per second than one: speedup 0.80"
    assert next_experiment(finding) == "fewer workers, or a larger local batch"
    rates = {"break_even_bytes_per_s": 1e9, "bytes_per_s": 2e9}
    assert next_experiment(Finding("compression", (), {"aggregator": "x", "pays": False, **rates})) is None
