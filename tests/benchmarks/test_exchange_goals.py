"""The bound of a step without peer access, and what a committed run says of it."""

import gzip
from pathlib import Path

from benchmarks.exchange_goals import bound_s, of_study

RUN = Path(__file__).parents[2] / "benchmarks" / "results" / "exchange-goals-2xh100"


def test_the_bound_is_of_the_last_buckets_that_are_the_worst():
    assert bound_s(10.0, [4.0, 9.0], [2, 1], 1.0) == 11.0  # the last one alone
    assert bound_s(10.0, [4.0, 9.0], [7, 1], 1.0) == 13.0  # both: from 5 on
    assert bound_s(10.0, [4.0, 9.0], [0, 0], 1.0) == 10.0


def test_a_committed_run_has_its_bound(tmp_path):
    copies = tmp_path / "copies.csv"
    copies.write_bytes(gzip.decompress((RUN / "host-second-machine.csv.gz").read_bytes()))
    lines = [line for line in of_study(RUN / "study", copies) if "bound" in line]
    assert lines == ["  bound: 4.580 ms, 0.833 of DDP's, at 32.3 GB/s each way at once"]
    assert not any("bound" in line for line in of_study(RUN / "study", tmp_path / "none"))
