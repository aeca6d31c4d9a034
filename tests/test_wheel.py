"""The wheel holds what git has of the three packages, and nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("scaling", "launchers", "topologies")

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="needs a git checkout: what git has is compared with the wheel"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has, so that nothing ignored or uncommitted helps."""
    folder = tmp_path_factory.mktemp("wheel")
    archive = folder / "source.tar"
    subprocess.run(["git", "archive", "-o", str(archive), "HEAD"], cwd=ROOT, check=True)
    (folder / "source").mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder / "source")], check=True)
    return folder / "source"


@pytest.fixture(scope="module")
def held(source: Path) -> set[str]:
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index"]
    build = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(source.parent), "."]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(source.parent.glob("*.whl"))) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def tracked_files(source: Path) -> set[str]:
    """Files of the packages, links to folders (the batch scripts) followed."""
    walked = [walk for name in PACKAGES for walk in os.walk(source / name, followlinks=True)]
    return {(Path(top) / file).relative_to(source).as_posix() for top, _, files in walked for file in files}


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(source: Path, held: set[str]) -> None:
    assert held == tracked_files(source)


def test_every_folder_of_modules_is_a_package(held: set[str]) -> None:
    folders = {name.rpartition("/")[0] for name in held if name.endswith(".py")}
    # a folder for PYTHONPATH (sitecustomize), shipped as data
    assert {f for f in folders if f"{f}/__init__.py" not in held} == {"scaling/attach/inject"}
