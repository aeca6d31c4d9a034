"""What is installed works outside the checkout, with its studies and templates."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SOURCE = shutil.ignore_patterns(".*", "results", "tests", "build", "*.egg-info", "__pycache__")


def test_installed_package_brings_its_studies_templates_and_batch_scripts(tmp_path):
    shutil.copytree(ROOT, tmp_path / "source", ignore=NOT_SOURCE)
    target = tmp_path / "target"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    install += [
        "--disable-pip-version-check",
        "--no-index",
        "--target",
        str(target),
        str(tmp_path / "source"),
    ]
    subprocess.run(install, check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def run(*command):
        completed = subprocess.run(
            [sys.executable, *command],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return completed.stdout

    assert {"mnist", "quickstart"} <= {
        line.split()[0] for line in run("-m", "scaling", "list", "studies").splitlines()
    }
    assert {"ring", "power_sgd"} <= set(run("-m", "scaling", "list", "aggregators").split())
    where = run(
        "-c", "import scaling, launchers, topologies.detect as t; print(scaling.__file__, t.__file__)"
    )
    assert all(path.startswith(str(target)) for path in where.split())
    assert (target / "scaling" / "report" / "templates" / "report.html.j2").exists()
    assert (target / "scaling" / "py.typed").exists()
    scripts = Path(run("-c", "from launchers.slurm import BATCH_SCRIPTS; print(BATCH_SCRIPTS)").strip())
    assert scripts.is_relative_to(target)
    assert texts(scripts) == texts(ROOT / "slurm") != {}
    assert any((target / "bin").glob("scaling")), "the console script"


def texts(folder):
    """File name -> its text."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
