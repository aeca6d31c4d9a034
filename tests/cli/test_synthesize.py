"""`scaling synthesize`: a proven schedule with its bound, as text, JSON, file and picture."""

import json
import re
from pathlib import Path

import pytest

from scaling.collectives.schedule_file import read_schedule

ROOT = Path(__file__).parents[2]


def test_a_user_finds_it(call):
    assert re.search(r"synthesize\s.*Make a schedule for a machine's links", call.printed("--help"))


def test_it_says_what_it_made_beside_which_others_and_that_the_bound_is_met(call):
    code, out, err = call(
        "synthesize", "--topology", "dual-k80", "--out", "mine.yaml", "--picture", "mine.svg"
    )
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "synthesized, 4 ranks on dual-k80: all-reduce of 67.11 MB")
    assert re.fullmatch(
        r"synthesized +13\.\d+ ms +\d+ spanning trees, \d a rank; .*; \d+ steps; proven", lines[1]
    )
    assert {line.split()[0] for line in lines[2:5]} == {"ring", "stripes", "tree"}
    assert "met: its messages take 12.58 ms if only the links count" in lines[-1]
    assert err.splitlines() == ["written: mine.yaml", "written: mine.svg"]


def test_files_hold_what_was_said(call, tmp_path):
    call("synthesize", "--topology", "dual-k80", "--out", "mine.yaml", "--picture", "mine.svg")
    made, _ = read_schedule(tmp_path / "mine.yaml")
    assert (made.name, made.world_size) == ("synthesized", 4)
    assert "# bound " in (tmp_path / "mine.yaml").read_text()
    picture = (tmp_path / "mine.svg").read_text()
    assert (picture.count("chunk "), picture.count("<polyline")) == (made.num_chunks, made.num_chunks * 3)
    code, _, _ = call("schedule", "export", "mine.yaml", "--world-size", "4", "--out", "mine.xml")
    assert code == 0


def test_small_buffers_get_the_best_built_in_one_and_it_says_why(call):
    out = call.printed("synthesize", "--topology", "pcie-8", "--bytes", "4096")
    for said in ("the built-in ", "packings of trees is faster", "not met: "):
        assert said in out


def test_json_has_all_numbers(call):
    code, out, _ = call("synthesize", "--topology", "dual-k80", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["meets_bound"] is True
    assert found["simulated_s"] <= min(found["built_in_s"].values())
    assert found["bound_s"] <= found["link_s"] * (1 + 1e-9) <= found["simulated_s"]


@pytest.mark.parametrize(("words", "message"), [
    (("--topology", "dual-k80", "--collective", "broadcast"), "allowed is all_reduce"),
    (("--topology", "dual-k80", "--out", "mine.xml"), "the name of a schedule ends in .yaml or .yml"),
    (("--topology", "dual-k80", "--world-size", "5"), "5 ranks, but 4 places"),
    (("--topology", "no-such-machine"), "no-such-machine"),
    ((), "--topology"),
])  # fmt: skip
def test_bad_input_is_one_message_and_exit_code_2(call, words, message):
    assert message in call.refused("synthesize", *words)


@pytest.mark.quality
def test_table_of_the_page_is_what_the_command_says(call):
    page = (ROOT / "docs" / "background" / "synthesis.md").read_text()
    rows = re.findall(
        r"^\| `(.+?)` \| (.+?) \| (\S+) ms \((\w+)\) \| (\S+) ms \| (\S+) ms \| (.+?) \|$", page, re.M
    )
    assert len(rows) == 8
    for name, made, best_ms, best, ring_ms, bound_ms, messages in rows[:4]:
        found = json.loads(call("synthesize", "--topology", name, "--json")[1])
        seconds = found["built_in_s"]
        assert (made == "built-in") == found["is_built_in"]
        assert made == "built-in" or made == f"{found['simulated_s'] * 1e3:.4g} ms"
        assert best == min(seconds, key=lambda one: seconds[one])
        shown = [f"{value * 1e3:.4g}" for value in (seconds[best], seconds["ring"], found["bound_s"])]
        assert shown == [best_ms, ring_ms, bound_ms]
        assert (messages == "met") == found["meets_bound"]
