"""`scaling claims`: what others said, and whether it holds here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, note


def claims(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Claims of a source, in YAML.")],
    out: Annotated[Path | None, Option(help="Write the page there too (Markdown).")] = None,
    as_json: AsJson = False,
) -> None:
    """Check what papers claim by results or a simulation, and say under which assumption it holds."""
    from scaling.store.files import write_whole
    from scaling.study.claims import check_all, markdown, read_claims

    read = {path: read_claims(path) for path in files}
    found = check_all(read)
    page = markdown(read, found)
    if out is not None:
        note(f"page: {write_whole(out, page.encode())}")
    if as_json:
        rows = [
            {
                "id": one.claim.id,
                "verdict": one.verdict,
                "assumption": one.assumption,
                "found": {name: [text for text, _ in values] for name, values in one.found.items()},
            }
            for claims in found.values()
            for one in claims
        ]
        typer.echo(json.dumps(rows, indent=2))
    else:
        typer.echo(page, nl=False)
