"""Every kind of claim in report.html, followed to the raw samples: recomputed here from the lines alone."""

import html
import json
import math
import re
import shutil
import statistics
from pathlib import Path

import pytest
from markupsafe import escape

from scaling.report import write_report
from scaling.store import ResultsFolder
from tests.made_studies import StudyFolder, epoch, iteration, split

STEP_S = {("none", 1): 0.4, ("ring", 1): 0.41, ("none", 2): 0.2, ("ring", 2): 0.25}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A folder with claims of every kind, and its page; for reading alone."""
    study = StudyFolder(tmp_path_factory.mktemp("claims") / "by-hand")
    for number, ((aggregator, size), step_s) in enumerate(STEP_S.items()):
        runs = []
        for repeat in range(3):
            warm = [iteration(i, 9.0, warmup=True) for i in range(2)]
            steps = [iteration(2 + i, step_s + 0.001 * (i + repeat), profiled=False) for i in range(5)]
            ranks = []
            for rank in range(size):
                spans = [
                    ("forward", "main", 0.0, 0.3 * step_s),
                    ("communicate", "main", 0.4 * step_s + 0.004 * rank, 0.7 * step_s),
                ]
                marked = [split(20 + i, step_s, *spans, start_s=3.0 * i) for i in range(8)]
                slower = [{**one, "step_s": one["step_s"] + 0.002 * rank} for one in steps]
                ranks.append([*warm, *slower, *marked])
            runs.append(ranks)
        summary = {"wire_bytes_per_rank": [1_000_000 * number, 2_000_000 * number][:size]}
        study.add(runs, aggregator=aggregator, world_size=size, summary=summary)
    replicate = [[[iteration(i, 0.26, profiled=False) for i in range(5)]] * 2] * 3
    study.add(replicate, aggregator="ring", world_size=2, aa_replicate=1)
    lines = [epoch(1, 1.5, 0.5, 0.91), epoch(2, 2.75, 0.25, 0.96), epoch(3, 4.0, 0.125, 0.97)]
    late = [{**one, "train_s": one["train_s"] + 0.5} for one in lines]
    study.add([[lines, late]], kind="convergence", aggregator="ring", world_size=2, target_accuracy=0.95)
    return Report(study.folder.path, write_report(study.folder).page.read_text())


class Report:
    """A page's tables as a reader has them, and the samples beside it."""

    def __init__(self, path, text):
        self.path, self.text = path, text

    def shown(self, title, aggregator, size):
        """Heading -> text of the row of that table that is of this aggregator and size."""
        start = self.text.index(f"<h3>{escape(title)}")
        table = self.text[start : self.text.index("</table>", start)]
        headings = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
        for row in re.findall(r"<tr[^>]*>(<th scope=\"row\".*?)</tr>", table, flags=re.DOTALL):
            values = [html.unescape(value) for value in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
            if values[:2] == [aggregator, str(size)]:
                return dict(zip(headings, values, strict=True))
        raise AssertionError(f"{title} has no row of {aggregator} on {size}")

    def lines(self, cell_id):
        """[repeat][rank][line] of a cell, by the id that its row ends with."""
        files = [sorted(run.glob("rank*.jsonl")) for run in sorted((self.path / "runs" / cell_id).iterdir())]
        return [[[*map(json.loads, path.read_text().splitlines())] for path in own] for own in files]

    def launches(self, cell_id):
        """[repeat][iteration] seconds of the slowest rank, unprofiled and not warm-up."""
        kept = [
            [[x["step_s"] for x in rank if not x["warmup"] and not is_split(x)] for rank in ranks]
            for ranks in self.lines(cell_id)
        ]
        return [[max(steps) for steps in zip(*ranks, strict=True)] for ranks in kept]

    def iteration_s(self, cell_id):
        return statistics.median(step_s for launch in self.launches(cell_id) for step_s in launch)


def is_split(line):
    return line.get("profiled", line.get("split"))


def iterations(report, aggregator, size):
    return report.shown("Time of a step", aggregator, size)


def test_times_speedups_and_efficiencies_are_those_of_the_slowest_ranks_samples(report):
    for aggregator, size in STEP_S:
        row = iterations(report, aggregator, size)
        assert float(row["ms a step"]) == pytest.approx(1000 * report.iteration_s(row["cell"]), rel=1e-3)
        low, high = (float(part) for part in row["95% interval, ms"].split(" to "))
        middle = 1000 * statistics.geometric_mean(map(statistics.median, report.launches(row["cell"])))
        assert low < middle < high
        assert low * high == pytest.approx(middle**2, rel=2e-3)  # the same factor to both sides
    single = iterations(report, "none", 1)
    row = iterations(report, "ring", 2)
    speedup = report.iteration_s(single["cell"]) / report.iteration_s(row["cell"])
    assert float(row["speedup"].partition(" ±")[0]) == pytest.approx(speedup, abs=0.005)
    assert row["efficiency"].partition(" ±")[0] == f"{100 * speedup / 2:.0f}%"
    assert re.search(rf"{speedup:.2f}( ±[^ ]+)? times the throughput of one worker", report.text)


def test_parts_of_a_step_and_skew_are_those_of_its_split_lines(report):
    row = report.shown("Where a step's time goes", "ring", 2)
    (ranks, *_) = report.lines(row["cell"])
    marked = [*filter(is_split, ranks[1])]
    spans = {name: stop - start for name, _, start, stop in marked[0]["spans"]}
    assert float(row["forward"]) == pytest.approx(1000 * spans["forward"], rel=1e-3)
    # Rank 1 arrives last at the exchange: all of it is exposed, and none of it waiting.
    assert float(row["exposed comm."]) == pytest.approx(1000 * spans["communicate"], rel=1e-3)
    assert float(row["= profiled step"]) == pytest.approx(1000 * marked[0]["step_s"], rel=1e-3)
    skews = []
    for steps in zip(*(filter(is_split, rank) for rank in ranks), strict=True):
        arrivals = [one["start_s"] + one["spans"][1][2] for one in steps]
        skews.append(max(arrivals) - min(arrivals))
    assert float(row["skew"]) == pytest.approx(1000 * statistics.median(skews), rel=1e-3)


def test_noise_floor_is_the_distance_of_an_a_a_pair(report):
    floor = float(re.search(r"noise floor ([\d.]+)%", report.text)[1]) / 100
    cell_id = iterations(report, "ring", 2)["cell"]
    cells = {path.parent.parent.name: path.read_text() for path in report.path.glob("runs/*/0/run.json")}
    (replicate,) = [one for one, text in cells.items() if json.loads(text)["cell"].get("aa_replicate")]
    own, other = (map(statistics.median, report.launches(one)) for one in (cell_id, replicate))
    distances = [math.log(second / first) for first, second in zip(own, other, strict=True)]
    assert floor == pytest.approx(abs(statistics.mean(distances)), abs=0.0006)


def test_bytes_losses_and_accuracies_are_those_that_the_run_recorded(report):
    row = iterations(report, "ring", 2)
    record = json.loads((report.path / "runs" / row["cell"] / "0" / "run.json").read_text())
    assert float(row["MB moved a rank"]) == max(record["summary"]["wire_bytes_per_rank"]) / 1e6
    row = report.shown("Convergence", "ring", 2)
    last = report.lines(row["cell"])[0][0][-1]
    assert row["test accuracy"] == f"{100 * last['test_accuracy']:.2f}%"
    assert float(row["training loss"]) == pytest.approx(last["train_loss"], rel=1e-2)


def test_time_to_target_is_the_slowest_ranks_and_the_predicted_one_steps_times_the_iteration(report):
    row = report.shown("Convergence", "ring", 2)
    (ranks,) = report.lines(row["cell"])
    first = next(line["epoch"] for line in ranks[0] if line["test_accuracy"] >= 0.95)
    slowest = max(line["train_s"] for rank in ranks for line in rank if line["epoch"] == first)
    assert row["s to target"] == f"{slowest:.2f}, one training"
    steps = sum(len(line["step_losses"]) for line in ranks[0] if line["epoch"] <= first)
    timed = iterations(report, "ring", 2)["cell"]
    predicted = float(row["estimated, s"].partition(" ")[0])
    assert predicted == pytest.approx(steps * report.iteration_s(timed), rel=5e-3)


def test_findings_name_the_cells_that_they_are_about_and_claims_are_explained(report):
    found = r'<section class="answer" data-cells="(\w+)">(.*?)</section>'
    cell_id, answer = re.search(found, report.text, flags=re.DOTALL).groups()
    assert "use 2 workers: 1.58 times as fast as one." in answer
    assert iterations(report, "ring", 2)["cell"] == cell_id
    (time_ms,) = re.findall(r"([\d.]+) ms a step", answer)
    assert float(time_ms) == pytest.approx(1000 * report.iteration_s(cell_id), rel=5e-3)
    cells = re.findall(r'data-cells="([^"]*)"', report.text)
    assert len(cells) >= 2
    assert all((report.path / "runs" / one).is_dir() for own in cells for one in own.split())
    assert iterations(report, "ring", 2)["cell"] in cells[0].split()
    evidence = html.unescape(report.text[report.text.index('id="evidence">') :])
    claims = [
        re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
        for row in re.findall("<tr>(<td>.*?)</tr>", evidence, re.DOTALL)
    ]
    assert {len(claim) for claim in claims} == {4}
    assert {"time of a step", "bytes moved", "recommended setting"} < {what for what, *_ in claims}


@pytest.mark.usefixtures("without_figures")
def test_transfers_are_medians_of_the_lines_of_that_operation_and_size(tmp_path):
    reference = Path(__file__).parents[2] / "results" / "reference" / "transfer-2xh200"
    path = tmp_path / "transfers"
    shutil.copytree(reference, path)
    ResultsFolder(path).unarchive()
    text = write_report(ResultsFolder(path)).page.read_text()
    found = re.search(
        r"all-reduce, captured</th><td>2 at once</td><td>64 KiB</td><td>([\d.]+)</td>.*?"
        r'<td class="cell">(\w+)</td>',
        text,
    )
    times = []
    for line in (path / "runs" / found[2] / "0" / "rank0.jsonl").read_text().splitlines():
        one = json.loads(line).get("sample") or {}
        if (one.get("operation"), one.get("captured"), one.get("num_bytes")) == ("all_reduce", True, 65536):
            times.append(one["seconds"])
    assert len(times) >= 5
    assert float(found[1]) == pytest.approx(1000 * statistics.median(times), abs=6e-5)
