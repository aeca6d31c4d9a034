"""Small pictures: nothing is lost, ids are a figure's own in its page, tips become titles."""

import io
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import pytest
from matplotlib.figure import Figure

from scaling.measure.budget import PARTS
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


def test_the_same_texts_and_markers_remain_in_fewer_bytes_and_references_have_their_targets():
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


def test_tip_is_a_title_that_keeps_its_characters():
    elements = list(ElementTree.fromstring(compact(drawn())).iter())
    titles = [one for one in elements if one.tag.endswith("title")]
    assert [one.text for one in titles] == ['a <b> & "c": 1 ms']
    (parent,) = (one for one in elements if titles[0] in one)
    assert parent[0] is titles[0], "SVG 1.1: the first child, or viewers need not show it"
    assert len(parent) > 1


def test_figures_in_a_page_share_no_id_but_their_styles_and_its_colours():
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


@pytest.mark.parametrize("part", PARTS)
def test_no_hatching_is_large(part):
    with matplotlib.rc_context(SETTINGS):
        figure = Figure()
        figure.add_subplot().bar([1], [1], **part_look(part))
        text = io.StringIO()
        figure.savefig(text, format="svg")
    assert len(compact(text.getvalue())) < 20_000


def test_neighbouring_parts_of_a_bar_differ_in_grey_or_in_hatching():
    for first, second in pairwise([part_look(part) for part in PARTS]):
        apart = abs(grey(first["facecolor"]) - grey(second["facecolor"]))
        assert apart > 0.05 or first["hatch"] != second["hatch"]


def grey(colour):
    """Rec. 709 luma of `#rrggbb`, 0 to 1."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_file_says_what_it_shows_and_a_page_says_it_once():
    text = compact('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><g/></svg>', "a < b")
    assert "<desc>a &lt; b</desc>" in text
    assert "a &lt; b" not in for_page(text, "one", "label")
