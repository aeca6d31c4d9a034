"""`scaling topology show`: prints, draws, and says what is wrong with a machine file."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest


def test_show_prints_devices_paths_and_sources(call):
    code, out, err = call("topology", "show", "dual-k80")
    assert (code, err, "gpu0, gpu1 -> gpu2, gpu3: staged" in out) == (0, "", True)
    assert "gk210.bandwidth_bytes_per_s: NVIDIA" in out


def test_show_json_is_data_alone(call):
    assert json.loads(call.printed("topology", "show", "hgx-h200-x2-10gbe", "--json"))["num_gpus"] == 16


def test_svg_is_written_beside_the_print_out(call, tmp_path):
    code, out, err = call("topology", "show", "dual-k80", "--json", "--svg", "k80.svg")
    assert (code, json.loads(out)["name"], "picture: k80.svg" in err) == (0, "dual-k80", True)
    assert ElementTree.parse(tmp_path / "k80.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(("arguments", "message"), [
    (["dual-k8"], "unknown machine 'dual-k8'; did you mean 'dual-k80'?"),
    (["mine.yaml"], "mine.yaml: key 'name' is missing"),
    (["none.yaml"], "machine file none.yaml: cannot be read"),
    (["dual-k80", "--svg", "none/k80.svg"], "picture none/k80.svg: cannot be written"),
])  # fmt: skip
def test_bad_input_is_one_message_and_exit_code_2(call, tmp_path, arguments, message):
    (tmp_path / "mine.yaml").write_text("device_types: {}")
    code, _, err = call("topology", "show", *arguments)
    assert (code, message in err) == (2, True)


def test_topologies_are_listed(call):
    code, out, _ = call("list", "topologies", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert (code, entries["hgx-h200-x16-infiniband"]["num_gpus"]) == (0, 128)
    assert all(entry["description"] for entry in entries.values())


def test_topologies_are_shown_without_torch():
    program = (
        "import sys; sys.argv = ['scaling', 'topology', 'show', 'dual-k80']\n"
        "from scaling.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "assert not {'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
