"""Small pictures in files and pages, and figures of another package, which do not stop the report."""

import io
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import pytest
from matplotlib.figure import Figure

from scaling import registry
from scaling.measure.budget import PARTS
from scaling.report import write_report
from scaling.report.figures.draw import GROUP
from scaling.report.figures.parts import SETTINGS, part_look
from scaling.report.figures.svg import compact, for_page, page_styles, with_tip


def drawn():
    """A figure as matplotlib writes it: lines with markers, a hatched bar with a tip, text."""
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": "x"}):
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot([1, 2, 3], [1.123456, 2, 3], color="#0072b2", marker="o")
        (bar,) = axes.bar([2], [1], **part_look("wait"))
        with_tip(bar, 'a <b> & "c": 1 ms')
        axes.set_xlabel("x < y & z")
        text = io.StringIO()
        figure.savefig(text, format="svg")
    return text.getvalue()


def test_texts_markers_and_tips_remain_in_fewer_bytes_and_references_have_their_targets():
    before, after = drawn(), compact(drawn())
    assert len(after) < 0.6 * len(before)
    for text in re.findall(r">([^<>\s][^<>]*)</text>", before):
        assert f">{text}</text>" in after
    assert after.count("<use ") == before.count("<use ")
    assert ElementTree.fromstring(after).tag.endswith("svg")
    for name in re.findall(r'(?:href="#|url\(#)([^")]+)', after):
        assert f'id="{name}"' in after
    for name in re.findall(r'class="([^"]+)"', after):
        assert f".{name}{{" in after
    elements = list(ElementTree.fromstring(after).iter())
    titles = [one for one in elements if one.tag.endswith("title")]
    assert [one.text for one in titles] == ['a <b> & "c": 1 ms']
    (parent,) = (one for one in elements if titles[0] in one)
    assert parent[0] is titles[0], "SVG 1.1: the first child, or viewers need not show it"
    assert len(parent) > 1


def test_figures_in_a_page_share_no_id_but_styles_and_colours_and_say_once_what_they_show():
    text = compact(drawn())
    first, second = for_page(text, "one", 'a "label"'), for_page(text, "two", "b")
    ids = [set(re.findall(r'\bid="([^"]+)"', one)) for one in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert "a &#34;label&#34;" in first
    assert "<style" not in first
    assert page_styles([text, text]) == page_styles([text])
    page = first + page_styles([text])
    assert "#ffffff" not in page
    assert "var(--paper)" in page
    assert "#0072b2" in page
    text = compact('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><g/></svg>', "a < b")
    assert "<desc>a &lt; b</desc>" in text
    assert "a &lt; b" not in for_page(text, "one", "label")


def test_no_hatching_is_large_and_neighbouring_parts_of_a_bar_differ_in_grey_or_in_hatching():
    for part in PARTS:
        with matplotlib.rc_context(SETTINGS):
            figure = Figure()
            figure.add_subplot().bar([1], [1], **part_look(part))
            text = io.StringIO()
            figure.savefig(text, format="svg")
        assert len(compact(text.getvalue())) < 20_000, part
    for first, second in pairwise([part_look(part) for part in PARTS]):
        apart = abs(grey(first["facecolor"]) - grey(second["facecolor"]))
        assert apart > 0.05 or first["hatch"] != second["hatch"]


def grey(colour):
    """Rec. 709 luma of `#rrggbb`, 0 to 1."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
BAD_SECTION = MODULE.replace('section="speedup"', 'section="elsewhere"')


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Offers figures of two modules by entry point: name -> module:attribute."""
    (tmp_path / "their_figures.py").write_text(MODULE)
    (tmp_path / "their_lost_figure.py").write_text(BAD_SECTION)
    monkeypatch.syspath_prepend(tmp_path)

    def with_points(**points):
        monkeypatch.setattr(registry, "offered", lambda group, _: [*points.items()] if group == GROUP else [])

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
    ("their_lost_figure:throughput", "not 'elsewhere'"),
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
