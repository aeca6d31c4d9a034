"""`scaling topology show` draws a machine and says what is wrong with its file; `synthesize`."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scaling.collectives.schedule_file import read_schedule


def test_show_prints_devices_paths_and_sources_of_one_machine_and_list_names_all(call):
    code, out, err = call("topology", "show", "dual-k80")
    assert (code, err, "gpu0, gpu1 -> gpu2, gpu3: staged" in out) == (0, "", True)
    assert "gk210.bandwidth_bytes_per_s: NVIDIA" in out
    entries = {entry["name"]: entry for entry in json.loads(call.printed("list", "topologies", "--json"))}
    assert entries["hgx-h200-x16-infiniband"]["num_gpus"] == 128
    assert all(entry["description"] for entry in entries.values())


def test_show_json_is_data_alone_and_a_picture_is_written_beside_it(call, tmp_path):
    assert json.loads(call.printed("topology", "show", "hgx-h200-x2-10gbe", "--json"))["num_gpus"] == 16
    code, out, err = call("topology", "show", "dual-k80", "--json", "--svg", "k80.svg")
    assert (code, json.loads(out)["name"], "picture: k80.svg" in err) == (0, "dual-k80", True)
    assert ElementTree.parse(tmp_path / "k80.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(("words", "message"), [
    ("topology show dual-k8", "unknown machine 'dual-k8'; did you mean 'dual-k80'?"),
    ("topology show mine.yaml", "mine.yaml: key 'name' is missing"),
    ("topology show none.yaml", "machine file none.yaml: cannot be read"),
    ("topology show dual-k80 --svg none/k80.svg", "picture none/k80.svg: cannot be written"),
    ("synthesize --topology dual-k80 --collective broadcast", "allowed is all_reduce"),
    ("synthesize --topology dual-k80 --out mine.xml", "the name of a schedule ends in .yaml or .yml"),
    ("synthesize --topology dual-k80 --world-size 5", "5 ranks, but 4 places"),
    ("synthesize --topology no-such-machine", "no-such-machine"), ("synthesize", "--topology"),
])  # fmt: skip
def test_bad_input_is_one_message_and_exit_code_2(call, tmp_path, words, message):
    (tmp_path / "mine.yaml").write_text("device_types: {}")
    code, out, err = call(*words.split())
    assert (code, message in err, "Traceback" in err) == (2, True, False)
    assert out == "" or "--svg" in words, "a picture is drawn after what is printed"


def test_it_says_what_it_made_beside_which_others_and_files_hold_that(call, tmp_path):
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
    made, _ = read_schedule(tmp_path / "mine.yaml")
    assert (made.name, made.world_size) == ("synthesized", 4)
    assert "# bound " in (tmp_path / "mine.yaml").read_text()
    picture = (tmp_path / "mine.svg").read_text()
    lines = re.findall('<path[^>]* d="[^"CQz]*"', picture)
    assert (picture.count("chunk "), len(lines)) == (made.num_chunks, made.num_chunks * 3)
    code, _, _ = call("schedule", "export", "mine.yaml", "--world-size", "4", "--out", "mine.xml")
    assert code == 0


def test_small_buffers_get_the_best_built_in_one_and_it_says_why_and_json_has_all_numbers(call):
    out = call.printed("synthesize", "--topology", "pcie-8", "--bytes", "4096")
    for said in ("the built-in ", "packings of trees is faster", "not met: "):
        assert said in out
    found = json.loads(call.printed("synthesize", "--topology", "dual-k80", "--json"))
    assert found["meets_bound"] is True
    assert found["simulated_s"] <= min(found["built_in_s"].values())
    assert found["bound_s"] <= found["link_s"] * (1 + 1e-9) <= found["simulated_s"]


@pytest.mark.quality
def test_table_of_the_page_is_what_the_command_says(call):
    page = (Path(__file__).parents[2] / "docs" / "background" / "synthesis.md").read_text()
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
