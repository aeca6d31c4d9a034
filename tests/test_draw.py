"""Which cases of a sampled test `make test` runs, which `make test-all`, and which neither."""

import itertools
from types import SimpleNamespace

import pytest

from tests.conftest import _draw


class Case:
    """What the draw sees of a test's case."""

    def __init__(self, **params):
        self.nodeid = f"test_it[{'-'.join(map(str, params.values()))}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = {"sampled": SimpleNamespace(args=(8,))}
        self.add_marker = lambda name: self.marks.setdefault(name, name)
        self.get_closest_marker = self.marks.get


@pytest.mark.parametrize("shape", [(40,), (5, 8), (3, 4, 7)])
def test_each_value_of_each_parameter_is_run_by_make_test_all_and_one_case_in_eight_by_make_test(shape):
    drawn = [
        Case(**dict(zip("abc", values, strict=False))) for values in itertools.product(*map(range, shape))
    ]
    _draw(drawn)
    left_out = [case for case in drawn if "every_case" in case.marks]
    in_make_test = [case for case in drawn if not {"every_case", "quality"} & set(case.marks)]
    run = [case for case in drawn if case not in left_out]
    assert len(in_make_test) == -(-len(drawn) // 8)
    assert len(run) <= len(in_make_test) + sum(shape)
    for number, name in zip(shape, "abc", strict=False):
        assert {case.callspec.params[name] for case in run} == set(range(number))
    again = [Case(**case.callspec.params) for case in drawn]
    _draw(again)
    assert [case.marks.keys() for case in again] == [case.marks.keys() for case in drawn]
