"""A figure of another package: one file and an entry point; one that fails does not stop the report."""

import pytest

from scaling import registry
from scaling.report import write_report
from scaling.report.figures.draw import GROUP

MODULE = """
from matplotlib.figure import Figure

from scaling.report.figures.base import Drawn, figure
from scaling.report.text import title_of

CAPTION = "Samples a second over the workers (columns world_size and samples_per_s)."


@figure(section="speedup")
def throughput(data):
    for group in data.groups_of("iteration"):
        drawing = Figure(figsize=(5.8, 3.0), layout="constrained")
        axes = drawing.add_subplot()
        sizes = [row["world_size"] for row in group.rows]
        axes.plot(sizes, [row["samples_per_s"] for row in group.rows], marker="o")
        yield Drawn(f"throughput-{group.slug}", title_of(group.given), CAPTION, drawing, group=group)


@figure(section="speedup")
def broken(data):
    raise RuntimeError("no such column")


@figure(section="speedup")
def same_name(data):
    (group,) = data.groups
    yield Drawn(f"speedup-{group.slug}", title_of(group.given), CAPTION, Figure())


def undecorated(data):
    yield from ()
"""
BAD_SECTION = """
from scaling.report.figures.base import figure


@figure(section="elsewhere")
def lost(data):
    yield from ()
"""


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Offers figures of two modules by entry point: name -> module:attribute."""
    (tmp_path / "their_figures.py").write_text(MODULE)
    (tmp_path / "their_lost_figure.py").write_text(BAD_SECTION)
    monkeypatch.syspath_prepend(tmp_path)

    def with_points(**points):
        monkeypatch.setattr(
            registry, "offered", lambda group, path: list(points.items()) if group == GROUP else []
        )

    return with_points


@pytest.fixture
def two_sizes(study):
    study.add_steps([[0.4] * 8])
    study.add_steps([[0.2] * 8], aggregator="ring", world_size=2)
    return study


def figures_of(report):
    """Section -> the first words of its figures' names."""
    return {
        section.name: [figure.name.partition("-")[0] for figure in section.figures]
        for section in report.content.sections
    }


def remarks_of(report):
    """Of the section of further figures."""
    (section,) = [section for section in report.content.sections if section.name == "more"]
    return section.remarks


def test_a_figure_in_one_file_is_saved_and_stands_on_the_page_with_its_caption(offer, two_sizes):
    offer(throughput="their_figures:throughput")
    report = write_report(two_sizes.folder)
    assert figures_of(report)["speedup"] == ["rate", "throughput"]
    files = {path.name.partition("-")[0] + path.suffix for path in report.page.parent.glob("figures/*")}
    assert "throughput.svg" in files
    page = report.page.read_text()
    assert "Samples a second over the workers (columns world_size and samples_per_s)." in page
    assert 'aria-label="throughput: ' in page


@pytest.mark.parametrize(("target", "reason"), [
    ("their_figures:broken", "RuntimeError: no such column"),
    ("their_figures:same_name", "another name"), ("their_figures:undecorated", "@figure"),
    ("their_figures:missing", "no attribute 'missing'"),
    ("their_lost_figure:lost", "not 'elsewhere'"),
])  # fmt: skip
def test_a_figure_that_fails_is_named_and_the_others_are_drawn(offer, two_sizes, target, reason):
    offer(theirs=target)
    report = write_report(two_sizes.folder)
    (remark,) = remarks_of(report)
    assert "'theirs'" in remark
    assert reason in remark
    assert figures_of(report)["answer"] == ["speedup"]
    assert report.page.read_text().count("The figure &#39;theirs&#39; failed") == 1


def test_the_name_of_a_built_in_figure_is_refused_and_the_built_in_is_drawn(offer, two_sizes):
    offer(speedup="their_figures:throughput")
    report = write_report(two_sizes.folder)
    (remark,) = remarks_of(report)
    assert "'speedup' is offered twice" in remark
    assert figures_of(report)["answer"] == ["speedup"]
