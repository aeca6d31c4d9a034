"""What an attached script's answer proposes next."""

import pytest

from scaling.attach.answer import answer
from scaling.attach.facts import same_samples
from scaling.attach.findings import findings
from scaling.report.text import text_of
from tests.attach.made_marks import EVEN, made_launches, made_rank, made_runs, with_facts

EXCHANGES = {"no_exchange": (0.06, 0.06)}
DEBUGS = {"no_debugging": (0.06, 0.06)}
WAITS_FOR_INPUT = {"no_exchange": (0.1, 0.1), "cached_input": (0.05, 0.05)}
OTHER_BATCH = "a larger batch on each rank, gradient accumulation or a bf16 or 1-bit hook"
LONGER = "a larger batch on each rank, longer gradient accumulation"
WITHOUT_DDP = {"without_ddp": True, "num_parameters": 4096, "collectives": {"all_reduce": 1}}


def runs(steps_s, drift=0.001, signature=None, **facts):
    """Runs whose baseline has these facts and, as without the exchange, this signature."""
    measured = made_runs({**EVEN, **steps_s}, drift)
    for arm in {"baseline", "no_exchange"} & measured.facts.keys():
        with_facts(measured, arm, **facts)
        measured.signatures[arm] = signature or measured.signatures[arm]
    return measured


@pytest.mark.parametrize(
    ("steps_s", "facts", "said"),
    [
        ({}, {"drift": 0.12},
         "attach again on a machine where nothing else runs: unchanged runs differ by 12%"),
        ({"threads": (0.09, 0.09)}, {"drift": 0.12, "threads": 4},
         "set OMP_NUM_THREADS to 1 (4 threads a rank share 2 cores) and attach"),
        ({"threads": (0.13, 0.13)}, {"drift": 0.12, "threads": 4}, "attach again on a machine where"),
        ({"threads": (0.07, 0.07)}, {"threads": 4}, "set OMP_NUM_THREADS or torch.set_num_threads to 1"),
        (EXCHANGES, {}, OTHER_BATCH),
        # Of slices of a loader's batch, of batches, or without a loader.
        *((EXCHANGES, {"signature": (4, batches, 0, 1)},
           "... all but the last of a step's 4 backward passes in model.no_sync()") for batches in (0, 1, 4)),
        (EXCHANGES, {"signature": (4, 1, 0, 1), "num_models": 2}, LONGER),
        (EXCHANGES, {"signature": (4, 1, 0, 1), "skips_exchange": True}, LONGER),
        (EXCHANGES, {"signature": (4, 1, 0, 1), "has_closure": True}, LONGER),
        (EXCHANGES, {"signature": (3, 3, 0, 3)}, OTHER_BATCH),  # several updates in turn
        (EXCHANGES, {"buffer_bytes": 32_000_000}, "broadcast_buffers=False in DDP, if"),
        (EXCHANGES, {"buffer_bytes": 32_000_000},
         "... 32 MB of them before each forward pass, and 4.2 MB of gradients"),
        ({**EXCHANGES, "plain_all_reduce": (0.07, 0.07)}, {"script_hook": "top_k"},
         "leave out the communication hook top_k: with plain"),
        (DEBUGS, {"debugging": "CUDA_LAUNCH_BLOCKING"}, "turn off CUDA_LAUNCH_BLOCKING."),
        ({"cached_input": (0.05, 0.05)}, {}, "more loader workers"),
        (WAITS_FOR_INPUT, {}, "more loader workers"),
        (WAITS_FOR_INPUT, {"iterators": 7}, "keep the loader's iterator"),
        (WAITS_FOR_INPUT, {"iterators": 7, "exhausted": 6}, "more loader workers"),  # epochs of one batch
        ({"no_exchange": (0.1, 0.1)}, {**WITHOUT_DDP, "passed": 8},
         "... its 2 ranks exchange nothing, and each trains a model of its own."),
        ({"no_exchange": (0.1, 0.1)}, {**WITHOUT_DDP, "passed": 4096}, "a fused optimizer"),
    ],
)  # fmt: skip
def test_next_is_what_costs_most_and_can_be_changed(steps_s, facts, said):
    last = answer(runs(steps_s, **facts))[-1]
    if said.startswith("... "):
        assert said[4:] in last
    else:
        assert last.startswith(f"Next: {said}")


@pytest.mark.parametrize(("steps_s", "facts", "line"), [
    ({"threads": (0.09, 0.09)}, {"drift": 0.12, "threads": 4},
     "With 1 instead of 4 threads a rank: no gain for sure (-10% of a step's time)."),
    ({"threads": (0.07, 0.07)}, {"threads": 4},
     "With 1 instead of 4 threads a rank a step would be 30% shorter."),
    (DEBUGS, {"debugging": "CUDA_LAUNCH_BLOCKING"},
     "Without CUDA_LAUNCH_BLOCKING a step would be 40% shorter."),
    ({}, {},
     "Seen in a launch: 6 steps of each rank; nothing rarer (--until-epoch or more --seconds see more)."),
    ({}, {"unshared_samples": 1280},
     "Facts: no DistributedSampler: each rank goes over 1280 samples, which are to be its own."),
    ({}, {"unshared_samples": 1280, "digests": [1, 2, 3]},
     "Facts: every rank draws the same samples (no DistributedSampler)."),
    ({}, {"signature": (4, 1, 0, 1), "threads": 3, "affinity": [0, 1]},
     "Facts: "
     "each of a step's 4 backward passes exchanges all gradients; 6 threads of ranks share 2 cores."),
    ({}, {"signature": (4, 1, 0, 1), "threads": 1, "affinity": [0, 1], "skips_exchange": True}, None),
])  # fmt: skip
def test_what_a_change_gains_and_what_the_processes_know_are_lines(steps_s, facts, line):
    lines = answer(runs(steps_s, **facts))
    assert line in lines if line else not any(one.startswith("Facts:") for one in lines)


@pytest.mark.parametrize(("steps_s", "facts", "ratios"), [
    # Threads that share cores come before the exchange, which waits for them.
    ({**EXCHANGES, "threads": (0.07, 0.07)}, {"threads": 4}, {"threads": 0.3, "exchange": 0.4}),
    # What another hook saves is taken off the exchange, where it is a finding.
    ({**EXCHANGES, "plain_all_reduce": (0.07, 0.07)}, {"script_hook": "top_k"},
     {"hook": 0.3, "exchange": 0.1}),
    ({"no_exchange": (0.085, 0.085), "plain_all_reduce": (0.092, 0.092)}, {"script_hook": "top_k"},
     {"exchange": 0.15}),
])  # fmt: skip
def test_findings_are_in_the_order_in_which_they_are_to_be_changed(steps_s, facts, ratios):
    found = {one.kind: round(one.values["ratio"], 2) for one in findings(runs(steps_s, **facts))}
    own = {kind: ratio for kind, ratio in found.items() if kind in ("threads", "hook", "exchange")}
    assert list(own.items()) == list(ratios.items())


@pytest.mark.parametrize(
    ("affinity", "host_cores", "ratios"), [([0], 1, []), ([0], 2, [0.25]), ([0, 1], 2, [])]
)
def test_ranks_that_have_fewer_cores_than_they_are_are_said(affinity, host_cores, ratios):
    measured = runs({"no_exchange": (0.1, 0.1)}, host="h", affinity=affinity, host_cores=host_cores)
    found = [finding for finding in findings(measured) if finding.kind == "cores"]
    assert [round(finding.values["ratio"], 2) for finding in found] == ratios
    assert all("2 ranks may use 1 of the 2 cores of h" in text_of(finding, "advice") for finding in found)


def test_ranks_that_are_slow_by_turns_are_no_slow_rank():
    ranks = [made_rank(rank, [0.1 + 0.06 * (at % 2 == rank) for at in range(8)]) for rank in range(2)]
    measured = made_launches(2, dict.fromkeys(("baseline", "aa", "no_exchange"), ranks))
    assert "Slow rank: none above the A/A spread." in answer(measured)
    kinds = {found.kind for found in findings(measured)}
    assert ("turns" in kinds, "slow_rank" in kinds) == (True, False)


def test_ranks_that_draw_from_one_set_in_other_orders_draw_the_same_samples():
    measured = with_facts(made_runs(EVEN), "baseline", unshared_samples=64, digests=list(range(20)))
    for second, is_same in ((range(40, 8, -1), True), (range(32, 64), False)):
        measured.facts["baseline"][1]["digests"] = list(second)
        assert same_samples(measured) is is_same
