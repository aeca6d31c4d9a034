"""`scaling verify` finds means that are wrong at one step, element, rank, type, layout or world size only."""

import json
import random
import re
import sys
from pathlib import Path

import pytest

MODULE = Path(__file__).with_name("planted_faults.py")
FAULTS = re.findall(r"^(?:class )?(\w+)(?: = wrong|\(Right\))", MODULE.read_text(), re.MULTILINE)
FAILURE = re.compile(
    r"FAILED at (?P<world_size>\d) ranks?: \d+ steps?[^;]*; \d+ elements? in \d+ tensors? .*: "
    r"step (?P<step>\d+): rank (?P<rank>\d)"
)


def place_of(name):
    """Where the fault of that name is: other places for each, the same ones in every run."""
    draw = random.Random(f"20 {name}")
    return {
        "step": draw.randint(4, 20), "every": draw.randint(3, 12), "element": draw.randint(2001, 7000),
        "rank": draw.randint(0, 2),
        "dtype": draw.choice(["torch.float32", "torch.float16", "torch.bfloat16", "torch.float64"]),
        "world_size": draw.choice([2, 3, 5, 6]), "scale": draw.choice([-1, 0, 0.5, 1.1, 2, 7]),
    }  # fmt: skip


@pytest.fixture
def verified(call, monkeypatch, tmp_path):
    """verified(class name, place, *words): the exit code, and what is said, in one line."""
    (tmp_path / "planted_faults.py").write_text(MODULE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(name, place, *words):
        monkeypatch.setenv("PLANTED", json.dumps(place))
        code, out, err = call("verify", f"planted_faults:{name}", "--examples", "25", *words)
        assert "Traceback" not in out + err
        return code, " ".join(out.split())

    yield run
    sys.modules.pop("planted_faults", None)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_and_named_with_its_case_and_command(verified, name):
    place = place_of(name)
    code, out = verified(name, place, "--world-sizes", f"3,{place['world_size']}")
    assert code == 1
    found = FAILURE.search(out)
    assert found, out
    named = {
        **{key: ["step"] for key in ("AtOneStep", "FromAStepOn", "OnLossyRankAtOneStep")},
        **{"OnOneRankAtOneStep": ["step", "rank"], "AtOneWorldSize": ["world_size"]},
    }.get(name, [])
    assert [int(found[part]) for part in named] == [place[part] for part in named]
    if name == "EverySoManyCalls":
        assert int(found["step"]) % place["every"] == 0
    said = {"AtOneElement": f"element {place['element']} ", "InOneType": place["dtype"]}
    assert said.get(name, "") in out


def test_command_of_the_message_shows_the_same_failure_again(verified):
    place = place_of("FromAStepOn")
    _, out = verified("FromAStepOn", place, "--world-sizes", "2-8", "--seed", "3")
    words = out.partition("; again: scaling verify planted_faults:FromAStepOn ")[2].split()
    assert words == ["--world-sizes", "2", "--examples", "25", "--seed", "3"]
    assert verified("FromAStepOn", place, *words)[1] == out


def test_what_is_right_holds(verified):
    code, out = verified("Right", place_of("Right"), "--world-sizes", "2,3")
    assert (code, "ok contract at 2, 3 ranks x 25 drawn cases" in out) == (0, True)
