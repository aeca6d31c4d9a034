"""What the answer of a study claims: only what was measured, in words that say of what."""

from scaling.report.verdict_text import verdict_lines
from tests.analysis.test_verdict import add, answers


def told(study):
    return "\n".join(verdict_lines(answers(study)))


def test_slow_lossy_aggregator_is_not_called_as_fast(study):
    add(study, "none", 1, 1.0, device="cuda", peer_access=True)
    add(study, "all_reduce", 2, 0.55, device="cuda", peer_access=True)
    add(study, "cntk", 2, 3.7, device="cuda", peer_access=True, lossy=True)
    assert "lossy" not in told(study)


def test_lossy_aggregator_in_another_setting_is_not_called_as_fast(study):
    add(study, "none", 1, 1.0, device="cuda", peer_access=True)
    add(study, "all_reduce", 2, 0.55, device="cuda", peer_access=True)
    add(study, "cntk", 2, 0.55, device="cuda", peer_access=False, lossy=True)
    assert "lossy" not in told(study)


def test_lossy_aggregator_is_called_as_fast_only_where_its_interval_shows_it(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.55)
    study.add_steps([[one] * 6 for one in (0.55, 0.4, 0.75)], aggregator="one_bit", world_size=2, lossy=True)
    assert "lossy" not in told(study)


def test_lossy_aggregator_of_one_launch_is_not_called_as_fast(study):
    add(study, "none", 1, 1.0, launches=1)
    add(study, "all_reduce", 2, 0.55, launches=1)
    add(study, "one_bit", 2, 0.55, launches=1, lossy=True)
    assert answers(study)[0].values["lossy"] == []


def test_interval_says_of_what_and_how_sure(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.55)
    assert "Sure: 3 launches, step time ± 0.1% (95%)." in told(study)


def test_one_that_may_be_slower_by_more_than_a_tie_has_its_measured_time_and_the_bound(study):
    add(study, "none", 1, 1.0)
    for aggregator, steps in (("all_reduce", (0.55, 0.5504, 0.5497)), ("ring", (0.5615, 0.5645, 0.5675))):
        study.add_steps([[one] * 6 for one in steps], aggregator=aggregator, world_size=2)
    assert "(next ring, 2.6% slower (at most" in told(study)
