"""The page on the paper's machine says what the simulation gives."""

import re
from pathlib import Path

import pytest

from tests.made import loaded

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "dual_k80_presets.py"


@pytest.fixture(scope="module")
def simulated():
    module = loaded(SCRIPT)
    times = {(machine, n): module.simulated_s(n, machine) for machine in module.MACHINES for n in (2, 4)}
    return {key: {name: f"{s * 1e3:.1f}" for name, s in own.items()} for key, own in times.items()}


def test_table_has_the_simulated_times_of_every_preset(simulated):
    text = (ROOT / "docs" / "background" / "dual-k80.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*" + 4 * r"\| ([\d.]+) " + r"\|", text, re.MULTILINE)
    for column, times in enumerate(simulated.values(), 1):
        assert {row[0]: row[column] for row in rows} == times


def test_order_at_two_gpus_is_the_papers(simulated):
    order = list(simulated["dual-k80", 2])
    paper = ["caffe", "torch_cpu", "tensorflow"]
    assert [name for name in order if name in paper] == paper
    assert {"mxnet_device", "cntk"} < set(order[: order.index("caffe")])


def test_every_line_shows_its_arithmetic(capsys):
    loaded(SCRIPT).main()
    lines = [line for line in capsys.readouterr().out.splitlines() if "speed-up" in line]
    assert len(lines) == 48
    for line in lines:
        total, parts = line.split("=", 1)
        milliseconds = [float(part) for part in re.findall(r"(?:^| \+) ?[\w() ]*? (\d+\.\d\d)", parts)]
        assert sum(milliseconds) == pytest.approx(float(total.split()[1]), abs=0.1)
