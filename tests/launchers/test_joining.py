"""How long workers wait for each other is a setting."""

import pytest

from launchers.base import JOIN_TIMEOUT_S, JOIN_TIMEOUT_VARIABLE, join_timeout_s


@pytest.mark.parametrize(
    ("environ", "seconds"), [({}, JOIN_TIMEOUT_S), ({JOIN_TIMEOUT_VARIABLE: "20"}, 20.0)]
)
def test_variable_is_read(environ, seconds):
    assert join_timeout_s(environ) == seconds


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_value_that_is_no_time_is_named(text):
    with pytest.raises(
        ValueError, match=f"SCALING_JOIN_TIMEOUT_S is '{text}'; it must be a number of seconds"
    ):
        join_timeout_s({JOIN_TIMEOUT_VARIABLE: text})
