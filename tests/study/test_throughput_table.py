"""A table of throughput against GPUs becomes a folder that the commands read."""

import csv
import json

import pytest
from typer.testing import CliRunner

from scaling.cli import app
from scaling.errors import StudyError
from scaling.study.throughput_table import read_table, serial_share

REPEATED = """GPUs,images_per_sec,seed
1,243.1,0
1,241.0,1
1,244.3,2
4,930.2,0
4,941.1,1
4,925.0,2
"""
SINGLE = "# from a thread\nGPUs\timg/sec\n1\t243.1\n4\t930.2\n16\t3300\n"


@pytest.fixture
def imported(tmp_path):
    def make(text, *options):
        (tmp_path / "resnet50.csv").write_text(text)
        out = tmp_path / "out"
        words = ["import-table", str(tmp_path / "resnet50.csv"), "--out", str(out), *options]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return out, done.stderr

    return make


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(out):
    run("report", out)
    with (out / "summary.csv").open(newline="") as file:
        return {int(row["world_size"]): row for row in csv.DictReader(file)}


def test_repeats_have_steps_and_intervals_and_the_page_says_whose_numbers_they_are(imported):
    out, _ = imported(REPEATED, "--batch", "64")
    four = rows(out)[4]
    assert float(four["iteration_s"]) == pytest.approx(256 / 930.2, rel=0.01)
    assert float(four["speedup"]) == pytest.approx(930.2 / 243.1, rel=0.01)
    assert float(four["parallel_efficiency"]) == pytest.approx(930.2 / 243.1 / 4, rel=0.01)
    assert float(four["iteration_s_low"]) < float(four["iteration_s"]) < float(four["iteration_s_high"])
    assert "2 same within" in run("compare", out, out)
    page = (out / "report.html").read_text()
    said = "Nothing here was measured by this tool: the throughputs are those of <code>resnet50.csv</code>"
    assert said in page
    assert "scaling run" not in page
    assert "Warm-up steps are stored" not in page


def test_one_value_has_no_interval_and_that_is_said(imported):
    out, notes = imported(SINGLE)
    assert "one value, so no interval, of 1, 4, 16 GPUs" in notes
    assert "the batch is not known" in notes
    found = rows(out)
    assert float(found[16]["speedup"]) == pytest.approx(3300 / 243.1)
    assert not found[16]["iteration_s_low"]
    assert "Fastest so far: 16 GPUs" in run("recommend", out)
    said = run("report", out)
    assert "scaling run" not in said
    assert "repeats=" not in said
    assert "an imported table" in said
    assert "Aggregator: as imported" in said


def test_further_gpus_are_predicted_where_the_models_size_is_known(imported):
    out, _ = imported(REPEATED, "--batch", "64", "--parameters", "25557032")
    found = json.loads(run("predict", out, "--topology", "hgx-h100", "--world-sizes", "4,8", "--json"))
    four, eight = (row["iteration_s"] for row in found)
    assert four == pytest.approx(256 / 930.2, rel=0.06)
    assert 64 / 243 < eight < 1.3 * four


def test_without_the_models_size_nothing_is_predicted_and_that_is_said(imported):
    out, _ = imported(SINGLE)
    found = CliRunner().invoke(app, ["predict", str(out), "--topology", "hgx-h100", "--world-sizes", "8"])
    assert found.exit_code != 0
    assert "nothing was predicted" in str(found.exception)
    assert "import its table again, with --parameters" in str(found.exception)


def test_serial_share_of_amdahls_law_is_found():
    rates = {n: [100 * n / (1 + 0.02 * (n - 1))] for n in (1, 2, 8, 64)}
    share, off = serial_share(rates)
    assert share == pytest.approx(0.02)
    assert off < 1e-9


@pytest.mark.parametrize(("text", "message"), [
    ("GPUs,images_per_sec\n", "1 lines; give a header"),
    ("GPUs,speed\n1,2\n", "no column images_per_sec in the header gpus,speed; allowed"),
    ("GPUs,images_per_sec\n1,fast\n", "line 2: '1', 'fast': give a whole number"),
    ("GPUs,images_per_sec\n0,5\n", "line 2: 0 GPUs, 5 a second: allowed are"),
    ("GPUs,images_per_sec\n1,nan\n", "rates above 0"),
    ("GPUs,images_per_sec\n1,2,3\n", "line 2 has 3 values, the header 2"),
    ("GPUs,images_per_sec,seed\n1,2,0\n1,3,0\n", "1 GPUs with seed 0 are there twice"),
])  # fmt: skip
def test_other_tables_are_refused_by_line(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(StudyError, match=message):
        read_table(path)
