"""What is said of an attached script, from marks that are made up."""

import gc
import shutil
from pathlib import Path

import pytest

from scaling.attach.answer import answer
from scaling.attach.findings import findings, to_confirm
from scaling.attach.inside.arms import ARMS, LATER, NONE, Arm
from scaling.attach.launch import Run, _why_not
from scaling.attach.measured import Measured
from scaling.attach.ranks import slow_rank
from scaling.attach.trace import Traced
from scaling.report import text as texts
from scaling.report.text import text_of
from tests.attach import made_marks
from tests.attach.made_marks import EVEN, made_launches, made_rank, made_runs, pair, with_facts, with_run


def test_a_slow_rank_is_named_with_its_phase_or_rest_and_an_even_one_is_not():
    slow = slow_rank(made_runs({**EVEN, "no_exchange": (0.05, 0.1)}))
    assert (slow.ranks, slow.phase) == ((1,), "input")
    assert slow_rank(made_runs({**EVEN, "no_exchange": (0.1, 0.1)})) is None
    measured = made_runs({**EVEN, "no_exchange": (0.02, 0.1)})
    for launch in measured.phases["no_exchange"].values():
        launch[1].update(launch[0])
    assert "Slow rank: rank 1, in its time outside these phases (rest);" in "\n".join(answer(measured))
    measured = made_runs({**EVEN, "no_exchange": (0.05, 0.1)})
    measured.facts["no_exchange"][1]["batches"] = [(16, 128)] * 7
    (first, *_) = findings(measured)
    assert (first.kind, first.values["ranks"]) == ("uneven", [1])
    ranks = pair([0.1] * 6)
    # Rank 0 is done at once, and waits for rank 1 in a collective of the script's.
    waits = [("collective", at * 0.1 + 0.075, at * 0.1 + 0.095) for at in range(6)]
    ranks[0]["phases"] = sorted([*ranks[0]["phases"], *waits], key=lambda one: one[1])
    assert slow_rank(made_launches(3, dict.fromkeys(THREE, ranks))).ranks == (1,)


def test_where_whole_steps_vary_a_phase_that_is_longer_in_every_launch_names_the_rank():
    for steps_s, expected in (((0.105, 0.1), ((0,), "input")), ((0.1, 0.105), None)):
        measured = made_runs({**EVEN, "no_exchange": steps_s}, drift=0.1)
        assert slow_rank(measured) is None
        for launch in measured.phases["no_exchange"].values():
            launch[0].update(input=0.08)
        slow = slow_rank(measured)
        assert (slow and (slow.ranks, slow.phase)) == expected
        if slow is not None:
            assert round(slow.longer_ratio, 2) == 0.3
            launch[0].update(input=0.05)
            assert slow_rank(measured) is None  # in one launch it is not longer


THREE = ("baseline", "aa", "no_exchange")
SHORTER = {**EVEN, "no_exchange": (0.06, 0.06)}


@pytest.mark.parametrize(("measured", "said"), [
    # On GPUs the arm that gives phases was left out.
    (with_facts(made_runs(SHORTER), "baseline", device="cuda"),
     ["Where it goes: not measured, because the arm marked was not asked for."]),
    (with_facts(made_runs(EVEN), "baseline", host_only=True),
     ["A step takes 100 ms (its marks cost 0.00%; A/A"]),
    (with_facts(made_runs(EVEN), "baseline", host_only=True, device="cuda"),
     ["A step takes 100 ms without peer access (its marks"]),
    # The hook that switches arms costs something.
    (with_facts(made_runs({**EVEN, "clock": (0.08, 0.08)}), "baseline", own_s=7 * 0.0002),
     ["A step takes 80 ms (mean of 18 unchanged steps: 80 ms; "
      "with the hook that switches arms 100 ms, +25.0%; A/A"]),
    # The parts of a step add up to it.
    (made_runs(SHORTER), ["input 30%, forward 6%, backward 6%, optimizer 18%, rest 0%; rank 1",
     "Without the exchange a step would be 40.0% \u00b1 0.0% shorter."]),
    (made_runs({**EVEN, "no_exchange": (0.095, 0.095)}, drift=0.08),
     ["Without the exchange: no gain above the A/A spread", "nothing stands out"]),
    (with_run(made_runs(EVEN), Run("no_exchange", reason="it hung")),
     ["Without the exchange: not measured, because it hung.\n"]),
    (with_run(made_runs(SHORTER), Run("no_exchange", [], "fewer than 13 steps of it were seen in 0.5 s")),
     ["Left out: a run of no_exchange (fewer than 13 steps of it were seen in 0.5 s).\n"]),
    # One worker that makes more backward passes is compared by samples.
    (with_run(made_runs(EVEN), Run("one_worker", [made_rank(0, [0.16] * 6, [(2, 2, 0, 1)] * 6)])),
     ["80%, strong scaling of one global batch (2 backward passes of one worker, 1 of each of 2)"]),
    (with_run(made_runs(EVEN), Run("one_worker", [made_rank(0, [0.16] * 6, [(4, 4, 0, 1)] * 6)])),
     ["40% by samples, though one worker's step has 4 times those of a rank"]),
    # Where no batch is seen, efficiency is not taken for sure.
    *((with_run(with_facts(made_runs(EVEN), "baseline", batches=[]),
     Run("one_worker", [{**made_rank(0, [alone_s] * 6), "batches": []}])), [said]) for alone_s,
     said in ((0.09, "90% if its batch, not seen, is the same"), (0.16, "1.6 times as"))),
    (with_facts(made_runs({**EVEN, "cached_input": (0.02, 0.02)}), "cached_input", batches=[(2, 16)] * 7),
     ["With cached input: not measured, because its steps or batches became others.\n"]),
])  # fmt: skip
def test_answer_says(measured, said):
    lines = answer(measured)
    text = "\n".join(lines)
    assert [one for one in said if one not in text] == []
    assert len(lines) <= 11
    assert "Long steps" not in text  # all are of one length


@pytest.mark.parametrize(("steps_s", "arm", "facts", "kinds"), [
    # A healthy script has no finding.
    ({"no_exchange": (0.097, 0.097), "cached_input": (0.099, 0.099)}, "aa", {}, []),
    # Buckets count only if they became others.
    ({**SHORTER, "buckets_200": (0.07, 0.07)}, "buckets_200", {"bucket_bytes": [2**23]}, ["buckets"]),
    ({**SHORTER, "buckets_200": (0.07, 0.07)}, "aa", {}, ["exchange"]),
])  # fmt: skip
def test_findings_of_runs(steps_s, arm, facts, kinds):
    found = findings(with_facts(made_runs({**EVEN, **steps_s}), arm, **facts))
    assert [one.kind for one in found][:1] == kinds


@pytest.mark.parametrize(
    ("cpu_s", "queued_s", "waits"), [(0.001, 0.0, True), (0.019, 0.0, False), (0.001, 0.018, False)]
)
def test_input_that_waits_is_told_from_input_that_computes(cpu_s, queued_s, waits):
    measured = made_runs({**EVEN, "no_exchange": (0.1, 0.1), "cached_input": (0.05, 0.05)})
    found = findings(with_facts(measured, "no_exchange", fetches=[(0.02, cpu_s, queued_s)] * 3))[0]
    assert (found.kind, found.values["waits"]) == ("input", waits)
    assert ("wait for a processor" in text_of(found, "advice")) == (queued_s > 0)
    assert ("90% waiting for one" in " ".join(answer(measured))) == (queued_s > 0)


def test_steps_of_another_kind_are_said_with_what_they_are():
    measured = made_runs(EVEN)
    for launch in range(3):
        ranks = pair([0.1, 0.1, 0.1, 0.3] * 2, [*[made_marks.ONE_STEP] * 3, (1, 1, 1, 1)] * 2)
        for rank in ranks:
            rank["phases"] += [("evaluation", s, s + 0.2) for s in rank["step_s"][0][3:8:4]]
        measured.add(launch, Run("baseline", ranks))
    measured.left_out = measured.left_out[3:]
    (found,) = findings(measured)
    assert (found.kind, round(found.values["ratio"], 1)) == ("evaluation", 0.5)


@pytest.mark.parametrize(("saving", "said"), [((0,), "rank 0 saves"), ((0, 1), "ranks save")])
def test_saves_are_said_with_the_ranks_that_make_them(saving, said):
    measured = made_runs(EVEN)
    for launch in range(3):
        ranks = pair([0.1, 0.1, 0.1, 0.1, 0.1, 0.6])
        for at in saving:
            end_s = ranks[at]["step_s"][0][-1]
            before = [span for span in ranks[at]["phases"] if span[2] < end_s - 0.5]
            ranks[at]["phases"] = [*before, ("save", end_s - 0.5, end_s)]
        measured.add(launch, Run("baseline", ranks))
    measured.left_out = measured.left_out[3:]
    wait = ", while the others wait" if len(saving) == 1 else ""
    line = f"In some steps {said} once in 6 steps, 0.5 s{wait}: 45% of the time; the other lines are"
    assert f"{line} about steps without that." in answer(measured)
    assert findings(measured)[0].kind == "saves"


def test_saves_in_first_steps_of_blocks_count_and_a_checkpoint_of_several_files_is_one():
    arms, measured = {"baseline": 0.1, "aa": 0.1}, Measured()
    for launch in range(2):
        ranks = made_marks.made_switched(arms)
        for rank in ranks:
            marks, rank["phases"] = [0.0], []
            for _, _, within in rank["labels"][1:]:
                begin_s = marks[-1] + 0.1
                marks.append(begin_s + 0.3 * (within == 0))
                if within == 0 and rank["rank"] == 0:
                    rank["phases"] += [("save", begin_s + s, begin_s + s + 0.1) for s in (0.05, 0.15)]
            rank["step_s"] = [marks]
        measured.add(launch, Run("switched", ranks, arms=tuple(arms)))
    (found,) = findings(measured)
    assert (found.kind, round(found.values["ratio"], 2)) == ("saves", 1.0)
    assert "rank 0 saves every 3 steps, 0.2 s, while the others wait" in text_of(found, "advice")
    assert "Seen in a launch: 24 steps of each rank, 8 saves;" in "\n".join(answer(measured))
    first = [("evaluation", -0.3, -0.2), ("save", -0.2, -0.1)]
    with_facts(measured, "baseline", phases=[*measured.facts["baseline"][0]["phases"], *first])
    assert "8 saves (in the warm-up 1 evaluation, 1 save); nothing rarer" in "\n".join(answer(measured))


def test_long_steps_are_said_and_are_next_where_they_take_most():
    ranks = pair([0.1, 0.1, 0.1, 0.1, 0.1, 0.5])
    measured = made_launches(2, dict.fromkeys(EVEN, ranks))
    said = "Long steps: 1 of 6 take over twice the usual time. They add 67% to the mean step"
    lines = answer(measured)
    assert f"{said}." in lines
    assert "a loader that starts anew" in lines[-1]
    measured.add(0, Run("no_exchange", ranks))
    lines = answer(measured)
    assert f"{said}, 50% of it in their input." in lines
    assert "some batches come late" in lines[-1]
    with_facts(measured, "no_exchange", iterators=3)
    assert "some batches come late" in answer(measured)[-1]  # no workers start
    with_facts(measured, "no_exchange", loader_workers=2)
    assert "persistent_workers=True" in answer(measured)[-1]
    assert "in 7 steps it starts anew 3 times" in answer(measured)[-1]

    def runs(last_s):
        steps_s = {"baseline": 0.1, "aa": 0.1001, "no_exchange": 0.08}
        ranks = {arm: pair([step_s] * 5 + [last_s]) for arm, step_s in steps_s.items()}
        return [finding.kind for finding in findings(made_launches(2, ranks))]

    assert (runs(0.5), runs(0.1)) == (["long_steps", "exchange"], ["exchange"])


def _traced(step_s):
    return Traced(
        5, step_s, nccl_s=0.01, moving_s=0.002, exposed_s=0.004, busy_s=0.07, syncs_a_step=0.0,
        sync_ratio=0.0, late_rank=None,
    )  # fmt: skip


def test_what_the_profiler_adds_is_said_and_an_idle_gpu_is_of_a_step_without_it():
    measured = made_runs(EVEN)
    (line,) = [line for line in answer(measured, _traced(step_s=0.128)) if line.startswith("Trace")]
    assert "NCCL 10 ms a step, of which 8 ms waiting for the last rank" in line
    assert line.endswith("The profiler makes these steps 28% longer, which adds waiting.")
    assert not any("The profiler makes" in line for line in answer(measured, _traced(step_s=0.103)))
    traced = _traced(step_s=0.1)
    (found,) = findings(measured, traced)
    assert (found.kind, round(found.values["ratio"], 2)) == ("idle", 0.3)
    assert any("the GPU is idle for 30% of a step" in line for line in answer(measured, traced))
    measured = made_runs({**EVEN, "no_exchange": (0.1, 0.1), "cached_input": (0.08, 0.08)})
    kinds = {found.kind for found in findings(measured, _traced(step_s=0.1))}
    assert ("input" in kinds, "idle" in kinds) == (True, False)


def test_on_a_gpu_a_slow_rank_shows_where_the_scripts_own_collectives_are_timed():
    measured = made_runs({**EVEN, "no_exchange": (0.1, 0.1)})
    for launch in (0, 3, 4):
        ranks = pair([0.1] * 6)
        for start_s in ranks[0]["step_s"][0][:-1]:  # rank 0 waits for the other
            ranks[0]["phases"].append(("collective", start_s + 0.052, start_s + 0.059))
        measured.add(launch, Run("marked", ranks))
        if not launch:
            assert to_confirm(measured) == []  # on a CPU every arm shows it
            for arm in ("baseline", "no_exchange"):
                with_facts(measured, arm, device="cuda")
            assert any(line.startswith("Slow rank: no verdict") for line in answer(measured))
    slow = slow_rank(measured)
    assert (slow.ranks, round(slow.longer_ratio, 2)) == ((1,), 0.07)


@pytest.mark.parametrize(("kinds", "made", "more", "reason"), [
    (None, 12, {}, None),
    ([(at, at, 0, 1) for at in range(1, 13)], 12, {},
     "its steps are not of one kind: the most frequent one is 1 of 12"),
    ([(0, 1, 0, 1)] * 12, 12, {},
     "its steps have no backward pass that can be seen: is the whole step a CUDA graph?"),
    # Of a short script a warm-up is named that leaves enough steps.
    (None, 8, {"ended_after": 8, "warmup": 5},
     "it ended by itself after 8 steps; let it make more, or take --warmup 3"),
    (None, 5, {"ended_after": 5, "warmup": 5}, "it ended by itself after 5 steps; let it make more"),
])  # fmt: skip
def test_steps_of_which_no_time_can_be_taken_are_refused(kinds, made, more, reason):
    num_steps = 15 if more else 12
    assert _why_not("baseline", Path(), pair([0.1] * made, kinds, **more), 0, num_steps, 60) == reason


def test_what_was_faster_once_is_a_finding_after_pairs_or_where_the_exchange_is_not_certain():
    steps = {**EVEN, "no_exchange": (0.05, 0.05)}
    # In the last one unchanged processes differ by more than that: the machine was not the same.
    for again_s, clock_s, kind in (
        (0.07, 0.1, "buckets"), (0.099, 0.1, "exchange"), (0.07, 0.15, "exchange"),
    ):  # fmt: skip
        measured = made_runs(steps)
        measured.add(0, Run("buckets_200", pair([0.07] * 6, bucket_bytes=[2**23])))
        assert [found.kind for found in findings(measured)] == ["exchange"]
        assert to_confirm(measured) == ["buckets_200"]
        for launch in (3, 4):
            measured.add(launch, Run("clock", pair([clock_s if launch == 3 else 0.1] * 6)))
            measured.add(launch, Run("buckets_200", pair([again_s] * 6, bucket_bytes=[2**23])))
        assert (findings(measured)[0].kind, to_confirm(measured)) == (kind, [])
    steps = {**EVEN, "no_exchange": (0.09, 0.09), "buckets_200": (0.06, 0.06)}
    measured = with_facts(made_runs(steps, drift=0.3), "buckets_200", bucket_bytes=[2**23])
    assert [found.kind for found in findings(measured)] == ["buckets"]


@pytest.mark.parametrize(("seen", "kind"), [(True, "uneven"), (False, "turns")])
def test_waiting_for_the_last_rank_of_each_step_is_no_exchange(seen, kind):
    """Also where no batches are seen."""
    measured, turns = Measured(), [(0.1, 0.04), (0.04, 0.1)] * 6
    for launch in range(3):
        for arm in ("baseline", "aa", "no_exchange"):
            alone = arm == "no_exchange"
            ranks = [made_rank(at, [both[at] if alone else 0.101 for both in turns]) for at in range(2)]
            for rank in ranks:
                sizes = (8, *(int(1e3 * both[rank["rank"]]) for both in turns))
                rank["batches"] = [(size, 8 * size) for size in sizes] if seen else []
            measured.add(launch, Run(arm, ranks))
    assert round(measured.saved("no_exchange").ratio, 2) == 0.01
    (found,) = findings(measured)
    assert (found.kind, round(found.values["ratio"], 1)) == (kind, 0.3)
    lines = answer(measured)
    assert any("ranks take turns at being late, for 30% of a step" in line for line in lines)
    assert "Where it goes: not measured, because some steps of a rank take twice as long" in lines[1]


def test_cached_batches_of_another_size_do_not_show_what_input_takes():
    measured = made_runs({**EVEN, "no_exchange": (0.1, 0.1), "cached_input": (0.02, 0.02)})
    with_facts(measured, "cached_input", batches=[(2, 16)] * 7)
    (found,) = [one for one in findings(measured) if one.kind == "input"]
    assert found.values["is_once"]  # phases alone say so
    pairs = findings(made_runs({**EVEN, "no_exchange": (0.1, 0.1), "cached_input": (0.02, 0.02)}))
    assert [one.values["is_once"] for one in pairs if one.kind == "input"] == [False]


def _switched(gains, rounds=4):
    """Launches in which steps of an arm take so long."""
    measured = Measured()
    for launch, arms_s in enumerate(gains):
        measured.add(launch, Run("switched", made_marks.made_switched(arms_s, rounds), arms=tuple(arms_s)))
    return measured


def test_an_estimate_is_of_neighbouring_blocks_without_first_steps_as_wide_as_launches_differ():
    arms = {"baseline": 0.1, "aa": 0.1, "no_exchange": 0.08}
    measured = _switched([arms, {**arms, "no_exchange": 0.09}])
    saved = measured.saved("no_exchange")
    assert (saved.rounds, [round(one, 2) for one in saved.launches]) == (8, [0.2, 0.1])
    assert round(saved.ratio, 2) == 0.15
    assert saved.half is not None
    assert saved.half >= 0.05
    assert (saved.disagrees, measured.aa.disagrees) == (True, False)
    arms = {"baseline": 0.1, "aa": 0.107, "no_exchange": 0.094}
    assert not _switched([arms, arms]).saved("no_exchange").is_certain
    ranks = made_marks.made_switched({"baseline": 0.1, "no_exchange": 0.05})
    for rank in ranks:
        for at in [at for at, label in enumerate(rank["labels"]) if label[2] == 0 and label[1] >= 0]:
            rank["step_s"][0] = [s + 0.5 * (number >= at) for number, s in enumerate(rank["step_s"][0])]
    measured = Measured()
    measured.add(0, Run("switched", ranks, arms=("baseline", "no_exchange")))
    assert round(measured.saved("no_exchange").ratio, 3) == 0.5


def test_an_arm_that_switches_garbage_collection_off_takes_a_row_and_a_template_alone(tmp_path, monkeypatch):
    row = Arm(
        "no_gc", LATER, "no garbage collection", "what does it cost", NONE, on=lambda _: gc.disable(),
        off=lambda _: gc.enable(), said="without garbage collection", finding="gc",
    )  # fmt: skip
    monkeypatch.setitem(ARMS, "no_gc", row)
    folder = shutil.copytree(texts.FINDINGS, tmp_path / "findings")
    template = "{% macro gc_advice(v) %}call gc.freeze: {{ v.ratio | percent(0) }} of a step.{% endmacro %}"
    (folder / "gc.j2").write_text(template)
    monkeypatch.setattr(texts, "FINDINGS", folder)
    cached = (texts._templates, texts.macros, texts._macro)
    for call in cached:
        call.cache_clear()
    arms = {"baseline": 0.1, "aa": 0.1, "no_exchange": 0.1, "no_gc": 0.06}
    lines = answer(_switched([arms, arms]))
    for call in cached:
        call.cache_clear()
    assert "A step's time without garbage collection -40.0% \u00b1 0.0%." in lines
    assert lines[-1] == "Next: call gc.freeze: 40% of a step."


def test_phases_below_the_spread_are_no_finding_and_without_a_loader_they_are_not_told_apart():
    steps = {**EVEN, "no_exchange": (0.1, 0.1)}
    for drift, kinds in ((0.001, ["rest"]), (0.6, [])):
        measured = made_runs(steps, drift=drift)
        for launch in measured.phases["no_exchange"].values():
            for rank in launch:
                rank.update(input=0.02, forward=0.02, backward=0.01, update=0.0)
        assert [found.kind for found in findings(measured)] == kinds
    measured = with_facts(made_runs({**EVEN, "no_exchange": (0.05, 0.1)}), "baseline", batches=[])
    for launch in measured.phases["no_exchange"].values():
        for at, rank in enumerate(launch):
            rank.update(input=0.0, forward=0.02 + 0.05 * at)
    text = "\n".join(answer(measured))
    assert "rank 0: time before backward 20%, backward" in text
    assert "Slow rank: rank 1, in its time before backward;" in text
    slow = with_facts(made_runs({**EVEN, "no_exchange": (0.1, 0.1)}), "baseline", batches=[])
    for launch in slow.phases["no_exchange"].values():
        for rank in launch:
            rank.update(input=0.0, forward=0.07, backward=0.02, update=0.01)
    assert [found.kind for found in findings(slow)] == ["before_backward"]
    even = with_facts(made_runs(EVEN), "baseline", batches=[])
    assert answer(even)[-1].startswith("Next: nothing stands out; profile the time before backward (input,")


def test_what_one_launch_or_no_pair_cannot_show_is_neither_claimed_nor_denied():
    steps_s = {"baseline": 0.1, "aa": 0.101, "no_exchange": 0.05, "cached_input": 0.02}
    ranks = {arm: pair([step_s] * 6) for arm, step_s in steps_s.items()}
    text = "\n".join(answer(made_launches(1, ranks)))
    assert text.count("which takes two launches with an A/A pair") == 3
    assert "Without the exchange: no verdict (-50.0% of a step's time), which takes" in text
    assert "Next: two or more launches with the arm aa; fewer give no verdict." in text
    assert "above the A/A spread" not in text
    steps = {name: pair for name, pair in EVEN.items() if name != "aa"}
    measured = made_runs({**steps, "no_exchange": (0.05, 0.1), "buckets_2": (0.05, 0.05)})
    measured.add(0, Run("aa", reason="it hung"))
    text = "\n".join(answer(with_facts(measured, "buckets_2", bucket_bytes=[2**23])))
    assert "; no A/A pair, because it hung: nothing is claimed)." in text
    assert "above the A/A spread" not in text


def test_phases_of_another_step_are_not_given_nor_work_between_backward_passes_called_forward():
    measured = made_runs(EVEN)
    for launch in range(3):
        kinds = [(4, 1, 0, 1)] * 6
        measured.add(launch, Run("no_exchange", [made_rank(at, [0.1 + at] * 6, kinds) for at in range(2)]))
    why = "not measured, because without the exchange the script's step became another one."
    lines = answer(measured)
    assert f"Where it goes: {why}" in lines
    assert f"Slow rank: {why}" in lines
    assert findings(measured) == []
    measured = made_launches(2, dict.fromkeys(THREE, pair([0.1] * 6, [(4, 1, 0, 1)] * 6)))
    assert "rank 0: input 50%, time before backward 10%, backward" in "\n".join(answer(measured))
