"""Pages of the documents are those that code and commands make, and their site has all of them."""

import re
from pathlib import Path

import pytest
import typer

from scaling.analysis.columns import MEANINGS, columns
from scaling.cli import app
from scaling.study.kinds import KINDS
from scaling.study.parts import Alternatives, Workload
from tests.made import loaded
from tools.questions_page import PAGE, QUESTIONS
from tools.questions_page import page as page_of_answers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs_site():
    return loaded(ROOT / "tools" / "docs_site.py")


@pytest.fixture(scope="module")
def site(docs_site, tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    reports = [path.parent.name for path in docs_site.REFERENCE.glob("*/study.yaml")]
    docs_site.write_source(folder / "source", [])
    for name in reports:  # their reports take minutes; what leads to them is held here
        (folder / "source" / "gallery" / name).mkdir(parents=True)
        (folder / "source" / "gallery" / name / "report.html").write_text("<html></html>")
    docs_site.build(folder / "source", folder / "site")
    return folder / "site"


def test_links_become_those_of_the_site(docs_site):
    text = (
        "[a](../glossary.md#x) [b](../../results/reference/fcn-r-4xh200) [c](../../setup.cfg) "
        "[d](https://a.org/b) ![e](../../results/reference/x/figures/e.png)"
    )
    page, pages = "docs/how-to/own-network.md", docs_site.page_paths()
    linked, pictures = docs_site.with_links_of_the_site(text, page, pages)
    picture = "pictures/results-reference-x-figures-e.png"
    assert linked == (
        "[a](../glossary.md#x) [b](../gallery/fcn-r-4xh200/report.html) c (`setup.cfg`) [d](https://a.org/b) "
        f"![e](../{picture})"
    )
    assert pictures == {"results/reference/x/figures/e.png": picture}


def test_site_has_every_page_whose_links_lead_somewhere_and_loads_nothing_from_elsewhere(docs_site, site):
    for place in docs_site.page_paths().values():
        assert (site / place).with_suffix(".html").is_file(), place
    for page in site.rglob("*.html"):
        if page.name in ("404.html", "report.html"):
            continue
        for target in re.findall(r'(?:href|src)="?([^"# >]+)', page.read_text()):
            if "://" not in target and not target.startswith(("mailto:", "javascript:", "data:")):
                assert (page.parent / target).exists(), (page.name, target)
    loads = re.compile(
        r'<(?:script|img|iframe|source)[^>]*src="?(?:https?:)?//|<link[^>]*href="?(?:https?:)?//'
    )
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []
    # The theme's script fetches mermaid from the web for pages that hold a diagram.
    assert [page.name for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()] == []
    imports = re.compile(r"(?:url\(|@import )['\"]?(?:https?:)?//")
    assert [style.name for style in site.rglob("*.css") if imports.search(style.read_text())] == []


@pytest.mark.quality
def test_answers_of_the_committed_folders_are_current(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text(encoding="utf-8")
    assert page_of_answers(text) == text, "python tools/questions_page.py"
    assert all(f"**{question}**" in text for question in QUESTIONS)


REFERENCE = ROOT / "docs" / "reference"


def test_committed_pages_are_those_of_the_code_and_have_every_column_and_command():
    tool = loaded(ROOT / "tools" / "reference_pages.py")
    assert tool.SCHEMA.read_text() == tool.schema_text(), "the schema is stale; run `make reference`"
    for name, text in tool.pages().items():
        assert (REFERENCE / name).read_text() == text, f"docs/reference/{name} is stale; run `make reference`"
    lines = (REFERENCE / "columns.md").read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == list(columns())
    assert MEANINGS.keys() <= columns().keys()
    text = (REFERENCE / "commands.md").read_text()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"## scaling {name}" in text
        for option in getattr(command, "params", []):
            is_one = option.param_type_name == "option" and option.name != "help"
            if is_one and not hasattr(command, "commands"):
                assert option.opts[0] in text, (name, option.opts)


@pytest.mark.parametrize(
    "model",
    [*(kind.part for kind in KINDS.values()), Workload, Alternatives],
    ids=lambda model: model.__name__,
)
def test_page_has_every_key_of_a_study(model):
    text = (REFERENCE / "study-keys.md").read_text()
    assert [name for name in model.model_fields if f"| `{name}` |" not in text] == []
