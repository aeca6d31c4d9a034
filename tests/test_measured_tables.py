"""Tables of docs and benchmarks have the numbers of the committed samples."""

from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
MODELS = ("fcn-r", "alexnet-r", "resnet-56")
NAMED = {"no exchange": "none", "host-only": "host", "NVLink": "NVLink", "host memory": "host"}


def table(page, beginning):
    """First cell of each row -> the others; of the table whose heading begins like that."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(beginning))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0]: row[1:] for row in rows}


def shown(ms):
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}"


def test_the_five_systems_on_two_gpus():
    summary = pd.read_csv(ROOT / "results/reference/paper-2xh200/summary.csv", low_memory=False)
    kept = summary[summary.iteration_s.notna() & (summary.aa_replicate.fillna(0) == 0)]
    ms = 1e3 * kept.set_index(["aggregator", "step", "model", "world_size", "peer_access"]).iteration_s
    rows = table("docs/background/measured.md", "| strategy | FCN-R: 1 |")
    assert len(rows) == 11
    for label, cells in rows.items():
        name, _, step = label.replace("`", "").partition(", ")
        at = NAMED.get(name, name), step or "eager"
        places = [(*at, model, *place) for model in MODELS for place in ((1, True), (2, True), (2, False))]
        assert cells == [shown(ms[place]) if place in ms else "" for place in places], label


@pytest.fixture(scope="module")
def launches():
    """(batch, link, arm) -> the median of each launch in ms, in their order."""
    samples = pd.read_csv(ROOT / "benchmarks/results/hooked-exchanges-2xh200/three_launches.csv")
    samples = samples[samples.run.str.startswith("table")].copy()
    samples[["link", "launch"]] = samples.label.str.split(" ", expand=True)
    medians = samples.groupby(["batch", "link", "arm", "launch"]).ms.median()
    return {
        key: " ".join(f"{value:.1f}" for value in of) for key, of in medians.groupby(["batch", "link", "arm"])
    }


def test_hooks_beside_captured_steps(launches):
    rows = table("benchmarks/results/README.md", "| arm | batch 8, NVLink |")
    assert len(rows) == 12
    ways = {"plain": "/plain", "graphs": "", "captured step": "/captured"}
    for label, cells in rows.items():
        name, _, way = label.partition("`: ")
        name = "by hand" if name.startswith("loop") else name.split("`")[1]
        arms = [name + ways[each] for each in way.split(", ")] if way else [name]
        places = [(batch, link) for batch in (8, 16) for link in ("NVLink", "host")]
        found = [[launches.get((*place, arm), "") for arm in arms] for place in places]
        assert cells == [", ".join(filter(None, of_arms)) for of_arms in found], label
