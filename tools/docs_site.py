"""Makes one static site of docs/, with a report of every committed results folder: `make docs`.

    python tools/docs_site.py --out build/site [--folders fcn-r-4xh200,steps-4xh200]

The pages are docs/*.md and the README files of the results. Links to folders of results/reference lead to
their reports, links to other files of the repository become their paths. The site needs no network: style and
scripts are in it (Material for MkDocs, without its fonts from the web), and search works from file://.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
OTHER_PAGES = {
    "results/reference/README.md": "gallery/index.md",
    "benchmarks/results/README.md": "benchmarks.md",
    "slurm/README.md": "how-to/batch-scripts.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages outside of docs/, by their path in the repository, and where the site has them."""

SECTIONS = ("tutorial", "how-to", "reference", "background", "decisions")

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def page_paths() -> dict[str, str]:
    """Every page's path in the repository -> its path in the site."""
    docs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return {**{path: path.removeprefix("docs/") for path in sorted(docs)}, **OTHER_PAGES}


def with_links_of_the_site(text: str, page: str, pages: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A page's text with links that hold in the site, and the pictures that it shows.

    Args:
        text: Markdown.
        page: its path in the repository.
        pages: of `page_paths`.

    Returns:
        The text; and of each picture its path in the repository and in the site.
    """
    here = PurePosixPath(pages[page]).parent
    pictures: dict[str, str] = {}

    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        source = os.path.normpath(PurePosixPath(page).parent / path)
        if mark:
            pictures[source] = f"pictures/{source.replace('/', '-')}"
            return f"![{label}]({os.path.relpath(pictures[source], here)})"
        if source in pages:
            return f"[{label}]({os.path.relpath(pages[source], here)}{hash_sign}{anchor})"
        if source == "results/reference":
            return f"[{label}]({os.path.relpath('gallery/index.md', here)})"
        if source == "docs/decisions":
            return f"[{label}]({os.path.relpath('decisions/0001-group-and-aggregator.md', here)})"
        if source.startswith("results/reference/"):
            report = f"gallery/{source.split('/')[2]}/report.html"
            return f"[{label}]({os.path.relpath(report, here)})"
        return f"{label} (`{source}`)" if label != source else f"`{source}`"

    return _LINK.sub(link, text), pictures


def write_source(folder: Path, reports: list[str]) -> None:
    """Writes the Markdown of the site.

    Args:
        folder: where.
        reports: names of the results folders that have a report in gallery/.
    """
    pages = page_paths()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "docs" / "iframe-worker.js", folder)
    for page, place in pages.items():
        text, pictures = with_links_of_the_site((ROOT / page).read_text(encoding="utf-8"), page, pages)
        if page == "results/reference/README.md":
            listed = "".join(f"- [{name}]({name}/report.html)\n" for name in reports)
            text = f"# Reports of the committed results\n\n{listed}\n## What they are\n\n{text}"
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
        for source, copy in pictures.items():
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder / copy)


def write_reports(folder: Path, names: list[str], scratch: Path) -> None:
    """Writes `<name>/report.html` of each results folder, made in a copy of it."""
    from scaling.report import write_report
    from scaling.store import ResultsFolder

    for name in names:
        shutil.copytree(REFERENCE / name, scratch / name)
        page = write_report(ResultsFolder(scratch / name)).page
        text = page.read_text(encoding="utf-8").replace(f"{scratch}/{name}", f"results/reference/{name}")
        page.write_text(text, encoding="utf-8")
        (folder / name).mkdir(parents=True)
        shutil.move(page, folder / name / "report.html")
        shutil.rmtree(scratch / name)
        print(f"gallery/{name}", flush=True)


def navigation(pages: Mapping[str, str]) -> list[object]:
    """The menu: the sections of docs/ in the order in which people want them."""
    places = sorted(pages.values())
    menu: list[object] = [{"Home": "index.md"}]
    for section in SECTIONS:
        within = [place for place in places if place.startswith(f"{section}/")]
        menu.append({section.capitalize(): [*(["glossary.md"] if section == "reference" else []), *within]})
    others = {"Reports": "gallery/index.md", "Benchmarks": "benchmarks.md", "Contributing": "contributing.md"}
    return [*menu, *({title: place} for title, place in others.items())]


def build(source: Path, site: Path) -> None:
    """Makes the HTML. A link that leads nowhere is an error."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    config = ROOT / "docs" / "mkdocs.yml"
    folders = {"docs_dir": str(source), "site_dir": str(site)}
    build_site(load_config(str(config), nav=navigation(page_paths()), **folders))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="the documents as a static site")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--folders", help="results folders to report, with commas; default: all")
    options = parser.parse_args()
    names = sorted(path.parent.name for path in REFERENCE.glob("*/study.yaml"))
    if options.folders is not None:
        names = [name for name in options.folders.split(",") if name]
    site = options.out.resolve()
    source = site.with_name(f"{site.name}-source")
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    write_source(source, names)
    write_reports(source / "gallery", names, source.with_name("reports"))
    build(source, site)
    shutil.rmtree(source)
    print(site / "index.html")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
