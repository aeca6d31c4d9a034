"""The site of the documents has every page, its links hold, and it loads nothing from elsewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs_site():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    linked, pictures = docs_site.with_links_of_the_site(
        text, "docs/how-to/own-network.md", docs_site.page_paths()
    )
    picture = "pictures/results-reference-x-figures-e.png"
    assert linked == (
        "[a](../glossary.md#x) [b](../gallery/fcn-r-4xh200/report.html) c (`setup.cfg`) [d](https://a.org/b) "
        f"![e](../{picture})"
    )
    assert pictures == {"results/reference/x/figures/e.png": picture}


def test_site_has_every_page(docs_site, site):
    for place in docs_site.page_paths().values():
        assert (site / place).with_suffix(".html").is_file(), place


def test_links_of_the_site_lead_somewhere(site):
    for page in site.rglob("*.html"):
        if page.name in ("404.html", "report.html"):
            continue
        for target in re.findall(r'(?:href|src)="?([^"# >]+)', page.read_text()):
            if "://" not in target and not target.startswith(("mailto:", "javascript:", "data:")):
                assert (page.parent / target).exists(), (page.name, target)


def test_pages_load_nothing_from_elsewhere(site):
    loads = re.compile(
        r'<(?:script|img|iframe|source)[^>]*src="?(?:https?:)?//|<link[^>]*href="?(?:https?:)?//'
    )
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []
    # The theme's script fetches mermaid from the web for pages that hold a diagram.
    assert [page.name for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()] == []
    imports = re.compile(r"(?:url\(|@import )['\"]?(?:https?:)?//")
    assert [style.name for style in site.rglob("*.css") if imports.search(style.read_text())] == []
