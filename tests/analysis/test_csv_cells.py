"""What a spreadsheet would take for a formula is a text."""

import csv
import io

import pandas as pd
import pytest

from scaling.analysis.columns import safe_cell
from scaling.analysis.summary import table_csv

FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "  =1")


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_begins_like_a_formula_is_kept_a_text(text):
    assert safe_cell(text).startswith("'")


@pytest.mark.parametrize("value", [-1.5, 3, None, True, "ring", "one_bit(threshold=mean)", "-2.5", "a=1", ""])
def test_numbers_and_other_texts_are_left_alone(value):
    assert safe_cell(value) is value


def test_control_characters_are_escapes():
    assert safe_cell("a\x1b[31m") == "a\\x1b[31m"


def test_table_has_no_formula_in_a_row_or_a_heading():
    table = pd.DataFrame({"=name": FORMULAS, "value": [-1.0] * len(FORMULAS)})
    heading, *rows = csv.reader(io.StringIO(table_csv(table)))
    assert heading == ["'=name", "value"]
    assert all(row[0].startswith("'") and row[1] == "-1.0" for row in rows)
    assert len(rows) == len(FORMULAS)


def test_missing_values_stay_empty():
    table = pd.DataFrame({"name": pd.array(["=a", None], dtype="string")})
    assert table_csv(table) == 'name\r\n\'=a\r\n""\r\n'
