"""What an attached script's answer proposes next."""

import pytest

from scaling.attach.answer import answer
from scaling.attach.findings import findings
from scaling.attach.launch import Run
from scaling.attach.measured import Measured
from scaling.report.text import text_of
from tests.attach.made_marks import EVEN, made_rank, made_runs, with_facts


def test_where_unchanged_runs_differ_much_that_is_next():
    assert "\nNext: attach again on a machine where nothing else runs: unchanged runs differ by 12%" in (
        "\n".join(answer(made_runs(EVEN, drift=0.12)))
    )
    shared = with_facts(made_runs({**EVEN, "threads": (0.09, 0.09)}, drift=0.12), "baseline", threads=4)
    lines = answer(shared)
    assert "With 1 instead of 4 threads a rank: no gain for sure (-10% of a step's time)." in lines
    assert lines[-1].startswith("Next: set OMP_NUM_THREADS to 1 (4 threads a rank share 2 cores) and attach")
    slower = with_facts(made_runs({**EVEN, "threads": (0.13, 0.13)}, drift=0.12), "baseline", threads=4)
    assert "OMP_NUM_THREADS" not in answer(slower)[-1]


def test_fewer_threads_are_a_gain_above_the_spread_alone():
    shared = {**EVEN, "threads": (0.07, 0.07)}
    lines = answer(with_facts(made_runs(shared), "baseline", threads=4))
    assert "With 1 instead of 4 threads a rank a step would be 30% shorter." in lines
    assert lines[-1].startswith("Next: set OMP_NUM_THREADS or torch.set_num_threads to 1")


@pytest.mark.parametrize("batches", [0, 1, 4])
def test_accumulation_that_exchanges_after_each_backward_pass_is_said(batches):
    """Of batches of a loader, of slices of one, or without a loader."""
    measured = made_runs({**EVEN, "no_exchange": (0.06, 0.06)})
    usual = "Next: a larger batch on each rank, gradient accumulation or a bf16 or 1-bit hook"
    assert answer(measured)[-1].startswith(usual)
    for arm in ("baseline", "no_exchange"):
        measured.signatures[arm] = (4, batches, 0, 1)
    assert "all but the last of a step's 4 backward passes in model.no_sync()" in answer(measured)[-1]
    with_facts(measured, "baseline", num_models=2)
    assert "no_sync" not in answer(measured)[-1]
    with_facts(measured, "baseline", num_models=1, skips_exchange=True)
    assert answer(measured)[-1].startswith("Next: a larger batch on each rank, longer gradient accumulation")


def test_buffers_that_are_larger_than_gradients_are_said():
    measured = made_runs({**EVEN, "no_exchange": (0.06, 0.06)})
    with_facts(measured, "baseline", buffer_bytes=32_000_000)
    assert answer(measured)[-1].startswith("Next: broadcast_buffers=False in DDP, if")
    assert "32 MB of them before each forward pass, and 4.2 MB of gradients" in answer(measured)[-1]


def test_threads_that_share_cores_come_before_the_exchange_which_waits_for_them():
    shared = {**EVEN, "no_exchange": (0.06, 0.06), "threads": (0.07, 0.07)}
    kinds = [found.kind for found in findings(with_facts(made_runs(shared), "baseline", threads=4))]
    assert kinds.index("threads") < kinds.index("exchange")


def test_a_hook_that_is_slower_than_plain_all_reduce_is_said():
    measured = made_runs({**EVEN, "no_exchange": (0.06, 0.06), "plain_all_reduce": (0.07, 0.07)})
    with_facts(measured, "baseline", script_hook="top_k")
    assert answer(measured)[-1].startswith("Next: leave out the communication hook top_k: with plain")
    kinds = {found.kind: round(found.values["ratio"], 1) for found in findings(measured)}
    assert (kinds["hook"], kinds["exchange"]) == (0.3, 0.1)
    little = made_runs({**EVEN, "no_exchange": (0.085, 0.085), "plain_all_reduce": (0.092, 0.092)})
    with_facts(little, "baseline", script_hook="top_k")
    ratios = {found.kind: round(found.values["ratio"], 2) for found in findings(little)}
    assert (ratios["exchange"], "hook" in ratios) == (0.15, False)  # nothing is taken off it


def test_debugging_that_makes_steps_longer_is_next():
    measured = made_runs({**EVEN, "no_debugging": (0.06, 0.06)})
    with_facts(measured, "baseline", debugging="CUDA_LAUNCH_BLOCKING")
    lines = answer(measured)
    assert "Without CUDA_LAUNCH_BLOCKING a step would be 40% shorter." in lines
    assert lines[-1] == "Next: turn off CUDA_LAUNCH_BLOCKING."


def test_ranks_that_have_fewer_cores_than_they_are_are_said():
    measured = made_runs({**EVEN, "no_exchange": (0.1, 0.1)})

    def said():
        return {found.kind: text_of(found, "advice") for found in findings(measured) if found.kind == "cores"}

    with_facts(measured, "baseline", host="h", affinity=[0], host_cores=1)
    assert said() == {}  # it has no more
    with_facts(measured, "baseline", host_cores=2)
    assert "2 ranks may use 1 of the 2 cores of h" in said()["cores"]
    assert [round(found.values["ratio"], 2) for found in findings(measured) if found.kind == "cores"] == [
        0.25
    ]
    with_facts(measured, "baseline", affinity=[0, 1])
    assert said() == {}


def test_a_loader_that_starts_anew_in_each_step_is_said():
    measured = made_runs({**EVEN, "no_exchange": (0.1, 0.1), "cached_input": (0.05, 0.05)})
    assert "more loader workers" in answer(measured)[-1]
    with_facts(measured, "no_exchange", iterators=7)
    assert answer(measured)[-1].startswith("Next: keep the loader's iterator")
    with_facts(measured, "no_exchange", exhausted=6)  # epochs of one batch
    assert "more loader workers" in answer(measured)[-1]


def test_a_script_without_that_arm_has_an_answer_too():
    measured = made_runs({**EVEN, "cached_input": (0.05, 0.05)})
    assert answer(measured)[-1].startswith("Next: more loader workers")


def test_several_updates_in_turn_are_no_accumulation():
    measured = made_runs({**EVEN, "no_exchange": (0.06, 0.06)})
    for arm in ("baseline", "no_exchange"):
        measured.signatures[arm] = (3, 3, 0, 3)
    assert answer(measured)[-1].startswith("Next: a larger batch on each rank, gradient accumulation")


def test_an_optimizer_that_evaluates_its_closure_needs_each_exchange():
    measured = with_facts(made_runs({**EVEN, "no_exchange": (0.06, 0.06)}), "no_exchange", has_closure=True)
    for arm in ("baseline", "no_exchange"):
        measured.signatures[arm] = (4, 1, 0, 1)
    assert "no_sync" not in answer(measured)[-1]


@pytest.mark.parametrize("passed", [8, 4096])
def test_ranks_that_pass_less_than_a_model_are_told_to_wrap_it(passed):
    facts = {"without_ddp": True, "num_parameters": 4096, "passed": passed, "collectives": {"all_reduce": 1}}
    measured = with_facts(made_runs({**EVEN, "no_exchange": (0.1, 0.1)}), "baseline", **facts)
    said = "its 2 ranks exchange nothing, and each trains a model of its own."
    assert answer(measured)[-1].endswith(said) == (passed < 4096)


def test_ranks_that_are_slow_by_turns_are_no_slow_rank():
    measured = Measured()
    for launch in range(2):
        for arm in ("baseline", "aa", "no_exchange"):
            steps_s = [[0.1 + 0.06 * (at % 2 == rank) for at in range(8)] for rank in range(2)]
            measured.add(launch, Run(arm, [made_rank(rank, steps_s[rank]) for rank in range(2)]))
    assert "Slow rank: none above the A/A spread." in answer(measured)
    kinds = {found.kind for found in findings(measured)}
    assert ("turns" in kinds, "slow_rank" in kinds) == (True, False)


def test_loaders_that_know_nothing_of_other_ranks_are_said():
    measured = with_facts(made_runs(EVEN), "baseline", unshared_samples=1280)
    said = "Facts: no DistributedSampler: each rank goes over 1280 samples, which are to be its own."
    assert said in answer(measured)
    assert said not in answer(with_facts(measured, "baseline", digests=[1, 2, 3]))


def test_what_the_processes_know_is_said_whether_or_not_it_costs_time():
    measured = with_facts(made_runs({**EVEN, "clock": (0.1, 0.1)}), "baseline", threads=3, affinity=[0, 1])
    measured.signatures["baseline"] = (4, 1, 0, 1)
    facts = "each of a step's 4 backward passes exchanges all gradients; 6 threads of ranks share 2 cores."
    lines = answer(measured)
    assert f"Facts: {facts}" in lines
    assert any("; the mean of 18 steps as it is: 100 ms." in line for line in lines)
    with_facts(measured, "baseline", threads=1, skips_exchange=True)
    assert not any(line.startswith("Facts:") for line in answer(measured))
