"""The healthy scripts of the benchmark are healthy by calculation."""

import pytest

from benchmarks.attach_quality import cases, exchange_ratio


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_script_exchanges_for_less_than_a_twentieth_of_its_step(seed: int) -> None:
    healthy = [case.plant for case in cases(seed) if case.kind is None]
    assert len(healthy) == 6
    assert max(map(exchange_ratio, healthy)) < 0.05
    assert exchange_ratio({"batch": 512}) > 0.1
