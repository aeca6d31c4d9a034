"""The page, the terminal's tables and the states, over whole folders."""

import re
import shutil
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import scaling
from scaling.aggregator_names import REGISTRY
from scaling.analysis import summary_table
from scaling.errors import StoreError
from scaling.report import status_table, write_report
from scaling.report.content import num_cores
from scaling.report.terminal import render_tables
from scaling.store import ResultsFolder
from tests.made_studies import StudyFolder, epoch, iteration
from tests.report.conftest import printed
from tests.waiting import LIMIT_S


@pytest.mark.usefixtures("without_figures")
def test_utilization_is_a_column_where_it_is_known(tmp_path):
    study = StudyFolder(tmp_path / "by-hand")
    lines = [iteration(number, 0.1) for number in range(5)]
    study.add([[lines]])
    assert "MFU" not in "".join(headings_and_text(study.folder))
    rate = {"flops_per_s": 5e11, "low": 4e11, "high": 6e11, "size": 1024, "num_samples": 5}
    study.add([[lines]], aggregator="ring", summary={"model_flops": 2 * 10**9, "matrix_rate": [rate]})
    headings, text = headings_and_text(study.folder)
    assert "MFU" in headings
    assert "4.0%" in text
    said = "500 GFLOP/s a worker in float32, measured in the run with square matrices of 1024 rows"
    assert said in " ".join(text.split())
    assert "data sheet" not in headings
    study.folder.write_environment({"gpus": [{"name": "NVIDIA H200"}]})
    study.add([[lines]], device="cuda", summary={"model_flops": 2 * 10**9, "matrix_rate": [rate]})
    headings, text = headings_and_text(study.folder)
    assert "MFU (measured peak)" in headings
    assert "MFU (data sheet)" in headings
    assert "the dense peak of the GPU's data sheet, 66.9 TFLOP/s" in " ".join(text.split())


def headings_and_text(folder):
    """The headings of the page's tables, and all text."""
    write_report(folder)
    text = (folder.path / "report.html").read_text(encoding="utf-8")
    return re.sub("<[^>]*>", "", "".join(re.findall("<th.*?</th>", text))), Page(text).text


class Page(HTMLParser):
    """Collects what a browser would fetch, the ids and what refers to them, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses, self.references, self.text = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                (self.references if value.startswith("#") else self.addresses).append(value.lstrip("#"))
            self.references += re.findall(r"url\(#([^)]+)\)", value or "")

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two kinds, several aggregators and world sizes, a failed and a planned cell, with its report; for
    reading alone."""
    study = StudyFolder(tmp_path_factory.mktemp("filled") / "by-hand")
    for aggregator, shown in (("none", "none"), ("ring", "ring"), ("one_bit", "one_bit(threshold=mean)")):
        for size in (1, 2):
            phases = {"forward_s": 0.06 / size, "communicate_s": 0.01}
            lines = [iteration(i, 0.1 / size, warmup=i < 2, **phases) for i in range(10)]
            cell = {"aggregator": aggregator, "aggregator_label": shown, "world_size": size}
            study.add([[lines] * size] * 3, notes=["a, note"], **cell)
    study.add([[[epoch(1, 1.0, 0.5, 0.9), epoch(2, 2.0, 0.02, 0.95)]]], kind="convergence")
    study.add(["failed: killed by <signal> 9"], aggregator="tree", world_size=2)
    study.add(["planned"], aggregator="tree", world_size=4)
    write_report(study.folder)
    return study.folder


@pytest.fixture(scope="module")
def page_text(written):
    return (written.path / "report.html").read_text()


@pytest.fixture
def filled(written, tmp_path):
    """The same, to be changed."""
    return ResultsFolder(shutil.copytree(written.path, tmp_path / "by-hand"))


def test_report_writes_table_figures_and_page(written, filled):
    assert not list((written.path / "figures").glob("*.png"))
    for made in ("figures", "report.html", "summary.csv", "budget.csv"):
        remove = shutil.rmtree if made == "figures" else Path.unlink
        remove(filled.path / made)
    assert write_report(filled, png=True).page == filled.path / "report.html"
    figures = sorted(figure.name.partition("-mlp")[0] for figure in (filled.path / "figures").glob("*.svg"))
    assert figures == ["budget", "loss-epochs", "loss-seconds", "rate", "speedup", "step"]
    assert len(list((filled.path / "figures").glob("*.png"))) == 6
    assert (filled.path / "summary.csv").read_bytes().count(b"\r\n") == 10
    # A header, and of six cells, two world sizes and three repeats eight steps a rank.
    assert (filled.path / "budget.csv").read_bytes().count(b"\r\n") == 1 + 3 * (1 + 2) * 3 * 8


def test_page_refers_to_nothing_outside_itself_and_holds_its_text_and_every_figure(page_text, written):
    text, page = page_text, Page(page_text)
    assert [one for one in page.addresses if not one.startswith("data:image/png;base64,")] == []
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert "://" not in text
    assert ("@import" in text, "default-src 'none'" in text) == (False, True)
    assert page.tags.count("script") == 1
    for shown in ("ms a step", "one_bit(threshold=mean)", "95.00%"):
        assert shown in page.text
    assert len(page_text.encode()) < 250_000
    assert page.tags.count("svg") == 6
    assert len(page.ids) == len(set(page.ids)) > 0
    assert set(page.references) <= set(page.ids)
    for figure in (written.path / "figures").glob("*.svg"):
        assert f"figures/{figure.name}" in page.text


def test_page_escapes_text_and_shows_notes_reasons_environment_and_what_aggregators_are(page_text):
    assert "killed by &lt;signal&gt; 9" in page_text
    assert "A &lt;b&gt;fast&lt;/b&gt; one" in page_text
    page = Page(page_text)
    words = ("a, note (none x 1, none x 2,", "device: none found", "cpu.usable_cores")
    for shown in (*words, "1 planned and 1 failed"):
        assert shown in " ".join(page.text.split())
    text = " ".join(Page(page_text).text.split())
    assert "An aggregator is a method that averages the gradients" in text
    for name in ("none", "ring", "one_bit", "tree"):
        assert f"{name} {REGISTRY.description(name)}" in text
    assert f'title="{escape(REGISTRY.description("ring"))}">ring</th>' in page_text
    assert "caffe" not in text


def test_page_is_the_same_every_time_and_says_what_was_not_recorded(written, filled, page_text):
    assert write_report(filled).page.read_text().replace(str(filled.path), str(written.path)) == page_text
    (filled.path / "environment.json").unlink()
    assert "was not recorded" in write_report(filled).page.read_text()


@pytest.mark.usefixtures("without_figures")
def test_settings_are_explained_where_the_study_compares_them(study, line):
    said = "Peer access: GPUs copy to each other directly"
    for peer_access, is_said in ((True, False), (False, True)):
        study.add([[[line(i, 1.0) for i in range(3)]] * 2] * 3, world_size=2, peer_access=peer_access)
        text = write_report(study.folder).page.read_text()
        assert (said in text) is is_said
        assert "Eager step:" not in text


@pytest.mark.parametrize("states", [[], ["planned"], ["running"], ["failed: no memory"]])
def test_report_works_without_any_done_cell(study, states):
    for state in states:
        study.add([state])
    report = write_report(study.folder)
    assert all("No cell is done yet" in text for text in (report.page.read_text(), report.markdown()))
    assert len(status_table(study.folder)) == len(states)


def test_folder_that_is_none_is_refused(tmp_path):
    for function in (write_report, summary_table, status_table, lambda folder: scaling.load(folder.path)):
        with pytest.raises(StoreError, match=f"no results folder {tmp_path}/nothing"):
            function(ResultsFolder(tmp_path / "nothing"))


def test_report_works_without_torch(study):
    study.add_steps([[0.1] * 9])
    program = (
        # Not sys.modules["torch"] = None: scipy takes an entry there for the imported module.
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError('no torch here')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from scaling.report import status_table\n"
        "from scaling.report import write_report\n"
        "from scaling.report.terminal import render_tables\n"
        "from scaling.store import ResultsFolder\n"
        "folder = ResultsFolder(sys.argv[1])\n"
        "print(len(status_table(folder)), write_report(folder).page.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(study.folder.path)],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stdout == "1 report.html\n", done.stderr


def test_number_of_nodes_names_no_cell_while_others_have_not_run(study):
    study.add_steps([[0.1] * 3], aggregator="ring")
    study.add(["planned"], aggregator="tree")
    assert [row["name"] for row in status_table(study.folder)] == ["ring", "tree"]


def test_status_names_cells_and_lists_the_states_of_every_repeat_without_reading_samples(study, line):
    done = study.add([[[line(0, 1.0)]], "planned"], aggregator="ring")
    study.add(["failed: no memory"], aggregator="tree", world_size=2)
    (study.folder.path / "runs" / done / "0" / "rank0.jsonl").write_text("damaged")
    ring, tree = status_table(study.folder)
    assert (ring["aggregator"], ring["states"], ring["state"]) == ("ring", ["done", "planned"], "planned")
    assert (ring["reason"], ring["cell_id"]) == (None, done)
    assert (tree["world_size"], tree["states"], tree["reason"]) == (2, ["failed"], "no memory")


def test_terminal_tables_fit_80_columns_one_a_group(written):
    tables = render_tables(summary_table(written))
    text = printed(tables)
    assert len(tables) == 2
    assert all(len(row) <= 80 for row in text.splitlines())
    assert "…" not in text
    for shown in ("one_bit(threshold=mean)", "ms/step", "failed", "planned", "95.00%", "50.0"):
        assert shown in text


def test_terminal_shows_brackets_of_labels_as_they_are(study, line):
    study.add([[[line(0, 1.0)]]], aggregator="x", aggregator_label="x(a=[1, 2])", model_label="m(h=[red])")
    text = printed(render_tables(summary_table(study.folder)))
    assert "x(a=[1, 2])" in text
    assert "m(h=[red])" in text


@pytest.mark.parametrize(("environment", "expected"), [
    ({"cpu": {"usable_cores": 3, "cores": 8}}, 3), ({"cpu": {"cores": 8}}, 8), ({"cpu": "x"}, None),
    (None, None),
])  # fmt: skip
def test_cores_come_from_the_environment(environment, expected):
    assert num_cores(environment) == expected
