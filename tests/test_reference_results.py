"""What docs/background/convergence.md says is what the committed trainings have."""

import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scaling.analysis.columns import columns
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table, study_name, table_csv
from scaling.report.device import read_devices, with_devices
from scaling.report.text import with_texts
from scaling.store import ResultsFolder, Snapshot
from tests.numbers_in_docs import holds_numbers

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
TEXT = (ROOT / "docs" / "background" / "convergence.md").read_text(encoding="utf-8")
SENTENCES = " ".join(TEXT.split())


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "summary",
    [path for top in (REFERENCE, ROOT / "benchmarks/results") for path in sorted(top.rglob("summary.csv"))],
    ids=lambda path: path.parent.name,
)
def test_a_committed_summary_is_what_report_makes_of_the_samples(summary):
    folder = Snapshot.of(ResultsFolder(summary.parent))
    table = with_devices(build_table(study_name(folder), read_cells(folder)), read_devices(folder))
    assert table_csv(with_texts(table)).encode() == summary.read_bytes()


def rows_of(first: str) -> list[list[str]]:
    """The rows of the page's tables whose first cell begins with that."""
    lines = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith(f"| {first}")]
    return [[cell.strip() for cell in line] for line in lines]


def trainings(folder: str) -> pd.DataFrame:
    table = pd.read_csv(REFERENCE / folder / "summary.csv")
    return table[(table.kind == "convergence") & (table.state == "done")]


def first_losses(folder: str) -> dict[tuple[str, int], np.ndarray]:
    """(aggregator, workers) -> losses of the first 100 steps at seed 0."""
    found, results = {}, ResultsFolder(REFERENCE / folder)
    for run in results.runs():
        cell = run.cell
        if cell["kind"] != "convergence" or run.state != "done" or cell["seed"] != 0 or run.repeat:
            continue
        losses = [loss for line in results.samples(run.cell_id, 0)[0] for loss in line.get("step_losses", [])]
        found[cell["aggregator_label"], cell["world_size"]] = np.array(losses[:100])
    return found


def test_accuracies_of_compressed_gradients_are_those_of_the_folder():
    table = trainings("compression-4xh200").set_index("aggregator")
    accuracy = 100 * table.final_test_accuracy
    exact = accuracy["host_parallel"]
    shown = {row[0].strip("`"): row[1:] for name in table.index for row in rows_of(f"`{name}` |")}
    assert len(shown) == 11
    for name, row in table.iterrows():
        numbers = [f"{accuracy[name]:.2f}%", f"{accuracy[name] - exact:+.2f}", f"{row.train_loss:.3f}"]
        assert shown[name] == [*numbers, f"{row.wire_bytes_per_rank / 1e6:.2f}"]
    without = table.index.str.endswith("(error_feedback=False)")
    assert (accuracy - exact).abs()[~without].max() < 0.155
    lost = exact - accuracy[without]
    assert (round(lost.min(), 1), round(lost.max(), 1)) == (3.5, 8.9)
    with_feedback = [name.split("(")[0] for name in table.index[without]]
    times = table.train_loss[without] / table.train_loss[with_feedback].values
    assert 1.8 < times.min() < times.max() < 4


def test_workers_that_share_gpus_learn_what_as_many_gpus_do():
    shared = trainings("compression-2xh200").set_index("aggregator").final_test_accuracy
    apart = trainings("compression-4xh200").set_index("aggregator").final_test_accuracy
    differences = (1e4 * (apart[shared.index] - shared)).round().astype(int)
    assert differences[differences != 0].to_dict() == {"power_sgd": -2}


@pytest.mark.parametrize(("study", "digits"), [("converge-fcn", 2), ("converge-alexnet", 1)])
def test_ranges_of_accuracies_are_those_of_the_folders(study, digits):
    (row,) = rows_of(f"`{study}`")
    for size, text in zip((2, 4), row[2:], strict=True):
        table = trainings(f"{study}-{size}xh200")
        table = table[table.world_size == 4] if size == 4 else table
        means = 100 * table.groupby(["aggregator", "world_size"]).final_test_accuracy.mean()
        if study == "converge-alexnet":
            assert holds_numbers(text, f"{means['one_bit'].item():.1f}%")
            means = means.drop("one_bit")
        assert text.startswith(f"{means.min():.{digits}f}% to {means.max():.{digits}f}%")


def test_accuracies_of_resnet_56_are_those_of_the_folder():
    table = trainings("converge-resnet-4xh200")
    is_sync = table.batch_norm == "sync"
    (synchronized,) = 100 * table[is_sync].final_test_accuracy
    (row,) = rows_of("the same with synchronized")
    assert row[3] == f"{synchronized:.2f}% with `all_reduce`"
    by = ["momentum", "aggregator", "world_size"]
    accuracy = 100 * table[~is_sync].groupby(by).final_test_accuracy.mean()
    (row,) = rows_of("`converge-resnet`")
    for text, is_four in zip(row[2:], (False, True), strict=True):
        own = accuracy[0.9][[size == 4 if is_four else size < 4 for _, size in accuracy[0.9].index]]
        assert text.startswith(f"{own.min():.1f}% to {own.max():.1f}%")
    plain = accuracy[0.0]
    (row,) = rows_of("the same without momentum")
    percent = {key: f"{value:.1f}%" for key, value in plain.items()}
    assert row[2] == (
        f"{percent['all_reduce', 1]} on one GPU and {percent['all_reduce', 2]} on 2, exact; "
        f"{percent['one_bit', 2]} with `one_bit` on 2"
    )
    assert row[3] == f"{percent['all_reduce', 4]} with `all_reduce`; {percent['one_bit', 4]} with `one_bit`"


def test_the_original_recipe_reaches_its_accuracy():
    results = ResultsFolder(REFERENCE / "resnet-56-original-4xh200")
    (run,) = results.runs()
    first_rank = results.samples(run.cell_id, run.repeat)[0]
    accuracy = {row["epoch"]: 100 * row["test_accuracy"] for row in first_rank}
    assert list(accuracy) == list(range(1, 165))
    assert min(accuracy[epoch] for epoch in range(83, 165)) > 92.5 > max(accuracy[e] for e in range(1, 83))
    (row,) = rows_of("`resnet-56-original`")
    assert row[3] == f"{accuracy[164]:.2f}% with `all_reduce`"
    (training,) = trainings("resnet-56-original-4xh200").itertuples()
    assert training.final_test_accuracy == accuracy[164] / 100
    assert holds_numbers(SENTENCES, f"{training.train_s:.0f} s, {training.seconds_to_target:.0f} s")


def test_one_bit_loses_to_momentum_in_alexnet_r():
    table = trainings("alexnet-rates-4xh200").set_index(["aggregator", "momentum", "learning_rate"])
    percent = table.final_test_accuracy.map(lambda share: f"{100 * share:.2f}%")
    (row,) = rows_of("AlexNet-R without momentum")
    exact, one_bit = (percent[name, 0.0, 0.2] for name in ("all_reduce", "one_bit"))
    assert row[3] == f"{exact} with `all_reduce`, {one_bit} with `one_bit`"
    assert holds_numbers(SENTENCES, f"a quarter of the rate it ends at {percent['one_bit', 0.9, 0.005]}")
    assert holds_numbers(SENTENCES, f"at the full rate at {percent['one_bit_flat', 0.9, 0.02]}")


@pytest.mark.parametrize(
    "folder", ["mnist-4xh200", "converge-alexnet-2xh200", "converge-alexnet-4xh200", "converge-fcn-2xh200"]
)
def test_agreement_of_the_first_100_steps_is_that_of_the_samples(folder):
    losses = first_losses(folder)
    alone = losses["all_reduce", 1]
    several = {key: value for key, value in losses.items() if key[1] > 1 and key[0] != "one_bit"}
    assert len(several) >= 3
    off = np.array([np.abs(value - alone) / np.abs(alone) for value in several.values()])
    (row,) = rows_of(f"`{folder}`")
    assert row[2] == f"{off.max():.1e}"
    above = np.nonzero((off > 1e-5).any(axis=0))[0]
    assert row[3] == (f"step {above[0]}" if len(above) else "none in 100")


def test_six_seeds_of_fcn_r_bound_all_others():
    table = trainings("converge-fcn-4xh200")
    accuracy = 100 * table.final_test_accuracy
    seeds = accuracy[table.aggregator == "all_reduce"]
    bound = stats.t.ppf(0.975, len(seeds) - 1) * seeds.std() * math.sqrt(1 + 1 / len(seeds))
    furthest = max(accuracy[table.aggregator != "all_reduce"] - seeds.mean(), key=abs)
    assert len(seeds) == 6
    assert holds_numbers(SENTENCES, f"{seeds.mean():.2f}%, {seeds.std():.2f}, {bound:.2f}, {furthest:.2f}")
    assert abs(furthest) < bound


def committed() -> list[Path]:
    """Files below results/reference as git has them."""
    listing = subprocess.run(["git", "ls-files", "-z", REFERENCE], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("this is no git repository")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]


def test_committed_results_are_small_archived_and_hold_what_no_command_makes_again():
    folders, files = [path.parent for path in REFERENCE.glob("*/study.yaml")], committed()
    assert 100 < len(files) < 500
    assert sum(path.stat().st_size for path in files) < 32e6
    names = {path.relative_to(REFERENCE).as_posix() for path in files}
    kept = ["study.yaml", "environment.json", "topology.yaml", "summary.csv"]
    kept += ["samples.csv.gz", "runs.jsonl.gz"]
    assert {f"{folder.name}/{name}" for folder in folders for name in kept} <= names
    assert not [name for name in names if "/runs/" in name or name.endswith(".html")]
    assert {name.rpartition("/")[2] for name in names if name.endswith(".csv")} == {"summary.csv"}


def test_committed_pictures_are_those_that_a_document_shows():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *REFERENCE.rglob("*.md")]
    picture = re.compile(r"(?m)(?:!\[[^\]]*\]\(|^\[\w+\]:\s+)([^)\s]+)")
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    shown = {(page.parent / name).resolve() for page, text in texts.items() for name in picture.findall(text)}
    pictures = {path for path in committed() if path.suffix in (".png", ".svg")}
    assert pictures == {path for path in shown if path.is_relative_to(REFERENCE)}


@pytest.mark.parametrize("path", sorted(REFERENCE.glob("*/summary.csv")), ids=lambda path: path.parent.name)
def test_committed_summaries_have_all_columns_and_the_times_of_what_was_measured(path):
    table = pd.read_csv(path, usecols=lambda name: name in columns())
    assert set(columns()) == set(table.columns)
    timed = table[table.kind.isin(["iteration", "device"]) & (table.state == "done")]
    assert timed.empty or timed.iteration_s.notna().any()
