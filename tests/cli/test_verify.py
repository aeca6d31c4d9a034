"""`scaling verify`: what holds is said in a line, what does not is caught and named."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from scaling.collectives.listing import COLLECTIVES
from scaling.conformance import verify as verification
from scaling.conformance.cases import parse_world_sizes
from scaling.conformance.fidelity import has_sheet
from scaling.errors import StudyError
from tests.waiting import wait_until

EXAMPLES = Path(__file__).with_name("verify_examples.py")


@pytest.fixture
def verified(call, monkeypatch, tmp_path):
    """Runs `scaling verify ...` in a folder with a user's module: (exit code, stdout unfolded, stderr)."""
    (tmp_path / "mine.py").write_text(EXAMPLES.read_text())
    (tmp_path / "broken_module.py").write_text("raise ArithmeticError('planted')")
    (tmp_path / "no_python.py").write_text("def")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words):
        code, out, err = call("verify", *words)
        return code, out if "--json" in words else re.sub(r"\n {5,}", " ", out), err

    yield run
    for module in ("mine", "broken_module", "no_python"):
        sys.modules.pop(module, None)


HOLDS = {
    "a user's aggregator in this folder: the whole suite": ("mine:Correct --world-sizes 1-3 --examples 2",
     ["^mine:Correct  aggregator  ok  contract at 1-3 ranks x 2 drawn cases and the fixed ones (seed 0); "
      "saved state\n$"]),
    "ranks that say in other spans what they own": ("mine:InOtherSpans --world-sizes 1-3 --examples 1", []),
    "a scheduled one: its schedule too": ("mine:CorrectRoot --world-sizes 3,8-10 --examples 1",
     ["ok  schedule at 3, 8-10 ranks (at 8: 14 steps, 7 messages and 7 S by the rank",
      "contract at 3, 8 ranks"]),
    "a user's schedule: its proof": ("mine:correct --world-sizes 2,4-6",
     ["^mine:correct  schedule    ok  schedule at 2, 4-6 ranks (at 6: 10 steps, "]),
    "a type that it does not take": ("mine:NoDoubles --world-sizes 2 --examples 1",
     ["; not torch.float64, which it does not take\n$"]),
    "more cases and other ones": ("mine:Correct --world-sizes 2 --examples 40 --seed 7",
     ["contract at 2 ranks x 40 drawn cases and the fixed ones (seed 7)"]),
    "what another library carries: not here": ("mpi --world-sizes 1-2",
     ["^mpi  aggregator  ok  not the contract: its messages are carried by mpi"]),
    "schedules of larger worlds: without the contract": ("tree --world-sizes 100",
     ["schedule at 100 ranks", "not the contract, which is checked at 1-8 ranks"]),
}  # fmt: skip


class TestWhatHolds:
    @pytest.mark.parametrize(("words", "texts"), HOLDS.values(), ids=HOLDS)
    def test_it_is_said_of_what(self, verified, words, texts):
        code, out, _ = verified(*words.split())
        assert (code, [text for text in texts if text not in f"^{out}$"]) == (0, [])

    @pytest.mark.parametrize(("name", "sheet"), [
        ("mpi_one_bit", "one_bit"), ("horovod", "fp16"), ("horovod_optimizer", "fp16"),
        ("power_sgd_hook", "power_sgd"),
    ])  # fmt: skip
    def test_lossy_ones_that_take_processes_name_the_sheet_of_their_codec(self, verified, name, sheet):
        code, out, _ = verified(name, "--world-sizes", "2")
        said = out.endswith(f"so its sheet is that one: scaling verify {sheet}\n")
        assert (code, said, has_sheet(create(sheet))) == (0, True, True)
        lossy = {name for name in BUILT_IN if create(name).library and create(name).lossy}
        with_compression = {name for name in BUILT_IN if getattr(create(name), "compression", None)}
        assert set(verification.SHEET_OF_CODEC) == lossy | with_compression | {"power_sgd_hook"}

    def test_name_of_a_collective_and_an_aggregator_checks_both(self, verified):
        code, out, _ = verified("ring", "--world-sizes", "1-3", "--examples", "1")
        assert code == 0
        expected = [["ring", "collective", "ok"], ["ring", "aggregator", "ok"]]
        assert [line.split()[:3] for line in out.splitlines()] == expected

    def test_error_feedback_is_checked_where_there_is_some(self, verified, monkeypatch):
        monkeypatch.setattr("scaling.conformance.fidelity.sheet_of", lambda _: None)
        assert "; residuals\n" in verified("one_bit", "--world-sizes", "2", "--examples", "1")[1]

    def test_nothing_is_stored_where_the_user_is(self, verified, tmp_path):
        before = set(tmp_path.iterdir())
        verified("mine:Correct", "--world-sizes", "1", "--examples", "40")
        assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"__pycache__"}

    def test_json_has_all_of_it(self, verified):
        code, out, _ = verified("stripes", "--world-sizes", "1-8", "--json")
        (finding,) = json.loads(out)
        (checked,) = finding.pop("checked")
        sample = {"num_steps": 2, "max_messages_per_rank": 14, "max_sent_ratio_per_rank": 1.75}
        own = {"name": "stripes", "kind": "collective", "ok": True, "failure": None, "sheet": None}
        assert (code, finding) == (0, {**own, "sample": {"world_size": 8, **sample}})
        assert checked.startswith("schedule at 1-8 ranks")


class TestAll:
    def test_every_collective_and_aggregator_is_a_line(self, verified, monkeypatch):
        monkeypatch.setattr(
            verification.REGISTRY, "_built_in", {"none": "scaling.aggregators.native:NoExchange"}
        )
        monkeypatch.setattr(verification.REGISTRY, "_group", "nobody")
        code, out, _ = verified("--all", "--world-sizes", "1-2")
        assert (code, "contract at 1, 2 ranks x 2 drawn cases" in " ".join(out.split())) == (0, True)
        expected = [*((name, "collective", "ok") for name in COLLECTIVES), ("none", "aggregator", "ok")]
        assert [tuple(line.split()[:3]) for line in out.splitlines()] == expected

    def test_subjects_are_told_in_their_order_and_checked_on_all_cores_by_a_process_each(
        self, monkeypatch, tmp_path
    ):
        before = os.sched_getaffinity(0)
        monkeypatch.setattr(verification, "num_usable_cores", lambda: 2)

        def check(examination):
            (tmp_path / f"begun-{os.getpid()}").touch()
            wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
            examination.checked += map(str, (os.getpid(), *os.sched_getaffinity(0)))

        subjects = [verification.Subject(str(number), "schedule", check) for number in range(6)]
        results = list(verification.examine_all(subjects, [1]))
        assert [result.name for result in results] == list("012345")
        seen = {tuple(result.checked) for result in results}
        assert len({*(process for process, _ in seen), str(os.getpid())}) == 3
        assert len({core for _, core in seen}) == min(2, len(before))
        assert os.sched_getaffinity(0) == before

    def test_one_that_fails_does_not_keep_the_others_from_being_checked(self, verified, monkeypatch):
        targets = {"bad": "mine:Sum", "missing": "mine:NoSuchClass", "good": "mine:Correct"}
        monkeypatch.setattr(verification.REGISTRY, "_built_in", targets)
        monkeypatch.setattr(verification.REGISTRY, "_group", "nobody")
        monkeypatch.setattr(verification, "COLLECTIVES", {"ring": COLLECTIVES["ring"]})
        code, out, _ = verified("--all", "--world-sizes", "2", "--examples", "1", "--json")
        found = {one["name"]: one["ok"] for one in json.loads(out)}
        assert (code, found) == (1, {"ring": True, "bad": False, "missing": False, "good": True})


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "failure"), [
    ("Sum", "element 0 (in tensor 0): got "),
    ("Own", "1 element in 1 tensor (1,): step 1: rank 0, element 0 (in tensor 0): got "),
    ("LossyOwn", "1 element in 1 tensor (1,): step 1: rank 1, element 0 (in tensor 0): got "),
    ("BeyondItsBound", "1 element in 1 tensor (1,): step 1: rank 0, element 0 (in tensor 0): got "),
    ("ChangedInput", "(1,): step 1: rank 0, element 0 (in tensor 0): the gradient was changed from "),
    ("WrongLength", "; 1 element in 1 tensor (1,): step 1: rank 0: shape (0,)"),
    ("WrongType", "; 1 element in 1 tensor (1,): step 1: rank 0: type torch.float64"),
    ("Missing", "; 1 element in 1 tensor (1,): step 1: rank 1: a mean is missing"),
    ("NotFinite", "(1,): step 1: rank 0, element 0 (in tensor 0): not finite, got "),
    ("NotFiniteOnOneRank", "(1,): step 1: rank 1, element 0 (in tensor 0): not finite, got "),
    ("ChangedOnOneRank", "(1,): step 1: rank 1, element 0 (in tensor 0): the gradient was changed from "),
    ("OtherOnOneRank", "(1,): step 1: rank 1, element 0 (in tensor 0): got "),
    ("WrongBytes", "in 1 tensor (1,): step 1: rank 0: 5 bytes are metered, wire_bytes states 4"),
    ("Raises", "0 elements in 1 tensor (0,): KeyError: 'planted'"),
    ("NoFloat32", "dtypes is (torch.float64,); allowed is what has torch.float32"),
    ("UntoldRefusal", "1 step of torch.bfloat16, values: integers; 0 elements in 1 tensor (0,): Study"),
    ("Stale", "2 steps of torch.float32"),
    ("LostState", "step 2: rank 0: a saved and loaded state gives another result"),
    ("KeepsLess", "n mean + new residuals is "),
    ("TwoOwners", "(1,): step 1: the ranks of site 'owner' own elements 0 to 0 twice"),
    ("NoOwner", "the ranks of site 'owner' own nothing from element 0 to 0"),
    ("RootElsewhere", "site 'root': rank 1 owns [(0, 1)], not rank 0 alone"),
    ("NotDistributed", "rank 1, element 0 (in tensor 0): distribute leaves the parameter 77, "),
    ("EndsElsewhere", "ring: the sum of chunk 0 ends at rank 1; site 'root' takes the step at rank 0"),
    ("EndsEverywhere", "recursive_doubling: after the last add the sum of chunk 0 is complete at "),
    ("OfOtherTensors", "at 2 ranks: other_tensors: "),
])  # fmt: skip
def test_broken_aggregator_is_caught_with_the_law_and_the_case(verified, name, failure):
    code, out, _ = verified(f"mine:{name}", "--world-sizes", "2,3", "--examples", "25")
    assert (code, out.startswith(f"mine:{name}  aggregator  FAILED  at "), failure in out) == (1, True, True)
    assert out.count("\n") == 1
    contract = name not in ("EndsElsewhere", "EndsEverywhere", "OfOtherTensors")
    again = rf"; again: scaling verify mine:{name} --world-sizes [23] --examples 25 --seed 0\n"
    assert bool(re.search(again, out)) == contract


@pytest.mark.parametrize(("name", "failure"), [
    ("dropped", "mine: after the last step rank 1 lacks the contribution of rank 2 in chunk 0"),
    ("doubled", "step 1: add from rank 0 to rank 1: chunk 0 already holds the contribution of rank 0 at"),
    ("two_copies", "mine: step 3: copy from rank 0 to rank 1: chunk 0 gets two copies in this step"),
    ("wrong_chunk", "mine: after the last step rank 0 lacks the contribution of rank 0 in chunk 0"),
    ("no_such_chunk", "mine: step 0: add from rank 0 to rank 1: chunk 7 is out of range"),
    ("for_others", "ring: made for 4 ranks, asked for 3"),
    ("fails", "ZeroDivisionError: "),
    ("float_rank", "mine: step 1: transfer 0, from 0.0 to 1: source is 0.0 (float); allowed is a "),
    ("negative_rank", "mine: step 0: add from node -1 to rank 1: node -1 is out of range"),
    ("negative_chunk", "mine: chunk 1 has -2 (int) elements; allowed are whole numbers from 0"),
    ("float_world", "mine: world_size is 3.0 (float); allowed are whole numbers from 1"),
])  # fmt: skip
def test_broken_schedule_is_caught_with_step_nodes_and_chunk(verified, name, failure):
    code, out, _ = verified(f"mine:{name}", "--world-sizes", "3")
    assert (code, out.startswith(f"mine:{name}  schedule    FAILED  at 3 ranks: ")) == (1, True)
    assert failure in out


def test_wrong_schedule_of_a_file_is_named_by_its_step_and_json_says_what_held_before(verified, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: wrong\nworld_size: 2\nnum_chunks: 1\nsteps:\n- 0>1 add 0:1\n- 0>1 copy 0:1\n")
    code, out, _ = verified(str(wrong))
    assert (code, "FAILED" in out, "chunk 0" in out) == (1, True, True)
    code, out, _ = verified("mine:Own", "--world-sizes", "2", "--json")
    (finding,) = json.loads(out)
    assert (code, finding["ok"]) == (1, False)
    assert finding["failure"].startswith("at 2 ranks: 1 step of torch.float32, ")


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "name a collective or an aggregator, or give --all"),
    (("ring", "--all"), "name a collective or an aggregator, or give --all"),
    (("rinng",), "nothing to verify is called 'rinng' (did you mean 'ring'?); known: all_reduce, "),
    (("none.yaml",), "none.yaml: there is no such file"),
    (("mine:Nothing",), "cannot load mine:Nothing"),
    (("no_such_module:a",), "No module named 'no_such_module'"),
    (("broken_module:a",), "broken_module:a: ArithmeticError: planted"),
    (("no_python:a",), "no_python:a: SyntaxError: "),
    (("mine:NOT_ONE",), "mine:NOT_ONE is 3; allowed are a subclass of "),
    (("mine:AggregatorState",), "allowed are a subclass of scaling.aggregators.Aggregator"),
    (("mine:Scheduled",), "Can't instantiate abstract class Scheduled"),
    (("mine:no_schedule",), "mine:no_schedule(1) gives list [1]; allowed are a subclass of "),
    (("one_bit", "--world-sizes", "9"), "one_bit: nothing but the contract, which is checked at 1-8"),
    (("--all", "--world-sizes", "9,10"), "--all: aggregators are checked at 1-8 ranks"),
    (("ring", "--examples", "0"), "--examples"), (("ring", "--seed", "-1"), "--seed"),
])  # fmt: skip
def test_bad_input_is_one_message_and_exit_code_2(verified, call, arguments, message):
    assert message in call.refused("verify", *arguments)


@pytest.mark.parametrize(("text", "sizes"), [
    ("4", [4]), ("1-3", [1, 2, 3]), ("8, 1-2,2", [1, 2, 8]), ("5-5", [5]), ("1 - 3", [1, 2, 3]),
    *((text, None) for text in
      ("", "0", "0-3", "3-1", "1-", "-1", "two", "1,,2", "1.5", "1-1025", "9" * 5000)),
], ids=lambda value: str(value)[:9])  # fmt: skip
def test_world_sizes_are_numbers_and_ranges_and_anything_else_an_error_that_shows_what_is_allowed(
    text, sizes
):
    if sizes:
        assert parse_world_sizes(text) == sizes
        return
    said = r"--world-sizes .*: allowed are numbers from 1 to 1024 and ranges"
    with pytest.raises(StudyError, match=said):
        parse_world_sizes(text)
