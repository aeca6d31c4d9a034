"""What `pip install .` gives: built from what git has, installed with its dependencies elsewhere."""

import configparser
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import need
from tests.read_imports import read_modules
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[1]
PACKAGES = ("scaling", "launchers", "topologies")
DIGITS = "{model: {name: mlp, hidden: [8]}, dataset: digits, device: cpu, global_batch:"
TINY = (
    *(f"parts.{part}.workloads=[{DIGITS} 32}}]" for part in (0, 1)),
    f"parts.2.workloads=[{DIGITS} 100, epochs: 1, learning_rate: 0.5}}]",
    *("parts.1.aggregators=[ring]", "parts.2.aggregators=[all_reduce]"),
    *("parts.0.world_sizes=[1, 2]", "parts.1.world_sizes=[2]", "parts.2.world_sizes=[2]"),
    *(f"parts.{part}.{key}" for key in ("repeats=1", "iterations=6") for part in (0, 1)),
)
QUICK = ("--arms", "no_exchange", "--launches", "1", "--seconds", "1")
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2000):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).mean().backward()
    optimizer.step()
"""


def done(*command, codes=(0,), **keywords):
    """Runs a command that has to end with one of these exit codes; its standard output."""
    keywords = {"capture_output": True, "text": True, "timeout": LIMIT_S, **keywords}
    ended = subprocess.run([str(word) for word in command], **keywords)
    assert ended.returncode in codes, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What git has: nothing that is ignored, untracked or uncommitted helps."""
    need((ROOT / ".git").exists(), "no git checkout")
    folder = tmp_path_factory.mktemp("source")
    (folder / "tree").mkdir()
    done("git", "archive", "--output", folder / "all.tar", "HEAD", cwd=ROOT)
    done("tar", "-xf", folder / "all.tar", "-C", folder / "tree")
    return folder / "tree"


@pytest.fixture(scope="module")
def tracked(source):
    """Files of the three packages in git; the batch scripts are linked into one of them."""
    folders = (source / name for name in PACKAGES)
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    scripts = (source / "launchers" / "batch_scripts").iterdir()
    return {path.relative_to(source).as_posix() for path in (*files, *scripts)}


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    """The folder of the sdist, and of the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    return out


def only(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/RECORD")}


pytestmark = pytest.mark.programs


def test_wheel_has_all_that_git_has_and_nothing_else(built, tracked):
    names = {name for name in contents(only(built, "*.whl")) if ".dist-info/" not in name}
    assert (names, {PurePosixPath(name).parts[0] for name in names}) == (tracked, set(PACKAGES))


def test_wheel_of_the_checkout_is_that_of_the_sdist(built, source, tmp_path):
    done(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source)
    assert contents(only(tmp_path, "*.whl")) == contents(only(built, "*.whl"))


def test_metadata_are_what_an_index_takes(built):
    done(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())
    wheel = contents(only(built, "*.whl"))
    (text,) = (content for name, content in wheel.items() if name.endswith(".dist-info/METADATA"))
    head = text.decode().partition("\n\n")[0].splitlines()
    for line in ("Author: The scaling-study developers", "License-Expression: Apache-2.0"):
        assert line in head
    assert not [line for line in head if "@" in line or "://" in line], "nobody and nowhere is invented"


def test_third_party_modules_are_declared(source):
    """A dependency that only the test environment has would be missing for a user."""
    config = configparser.ConfigParser()
    config.read(source / "setup.cfg")
    extras = "\n".join(config["options.extras_require"][name] for name in ("gpu", "mpi", "frameworks"))
    lines = (config["options"]["install_requires"] + extras).split("\n")
    declared = {line.split(">=")[0].split(";")[0].strip().lower() for line in lines if line.strip()}
    names = {"yaml": "pyyaml", "sklearn": "scikit-learn", "pynvml": "nvidia-ml-py"}
    names["typing_extensions"] = "typing-extensions"
    without = {"horovod", "triton"}  # built by `make horovod`; part of torch where there are GPUs
    imports = (one for module in read_modules(source).values() for one in module.imports)
    imported = {one.target.partition(".")[0] for one in imports}
    others = imported - set(PACKAGES) - set(sys.stdlib_module_names)
    assert {names.get(module, module) for module in others} - without <= declared


class Installed:
    """A clean environment outside the checkout: nothing of the project's own is on its path."""

    def __init__(self, folder, wheel):
        self.folder, self.bin = folder, folder / "venv" / "bin"
        (folder / "home").mkdir()
        done(sys.executable, "-m", "venv", folder / "venv")
        pip = (self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        pinned = ("--no-compile", "--constraint", ROOT / "constraints.txt")
        done(*pip, *pinned, "torch")
        done(*pip, *pinned, wheel)

    def run(self, program, *words, **keywords):
        kept = {name: os.environ[name] for name in ("SCALING_DATA_DIR", "TMPDIR") if name in os.environ}
        environment = {**kept, "HOME": str(self.folder / "home"), "PATH": f"{self.bin}:/usr/bin:/bin"}
        return done(self.bin / program, *words, cwd=self.folder, env=environment, **keywords)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("installed"), only(built, "*.whl"))


def test_every_module_and_data_file_is_found(installed, tracked):
    program = (
        "import importlib.util, json, pathlib, sys\n"
        "names = json.load(open(sys.argv[1]))\n"
        "print([name for name in names if importlib.util.find_spec(name) is None])\n"
        "print(pathlib.Path(importlib.util.find_spec('scaling').origin).parents[1])"
    )
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in tracked
        if name.endswith(".py") and "/inject/" not in name  # run by its path, in the user's interpreter
    ]
    (installed.folder / "names.json").write_text(json.dumps(modules))
    missing, where = installed.run("python", "-c", program, "names.json").splitlines()
    assert (missing, {name for name in tracked if not (Path(where) / name).is_file()}) == ("[]", set())
    assert Path(where).is_relative_to(installed.folder)


@pytest.fixture(scope="module")
def quickstart(installed):
    installed.run("scaling", "run", "quickstart", *TINY)
    return "results/quickstart"


def test_quickstart_is_run_reported_predicted_recommended_and_a_job_printed(installed, quickstart):
    assert "all_reduce" in installed.run("scaling", "report", quickstart, "--all")
    assert installed.run("scaling", "recommend", quickstart, codes=(0, 3))  # 3: not decided
    assert installed.run("scaling", "explain", quickstart)
    predicted = ("predict", "mnist", "kind=iteration", "--topology", "hgx-h200", "--world-sizes", "2")
    assert "ms" in installed.run("scaling", *predicted)
    assert "#SBATCH" in installed.run("scaling", "submit", "mnist", "--gpus-per-node", "4", "--dry-run")


def test_script_is_attached_to(installed):
    (installed.folder / "train.py").write_text(SCRIPT)
    torchrun = ("torchrun", "--standalone", "--nproc-per-node=2", "train.py")
    assert "ms" in installed.run("scaling", "attach", *QUICK, "--out", "results/attached", "--", *torchrun)


def test_torchrun_starts_the_worker(installed, quickstart):
    study = ("quickstart", *TINY, "--out", "results/by-hand")
    installed.run("torchrun", "--standalone", "--nproc-per-node=1", "-m", "scaling.worker", *study)
    assert "done" in installed.run("scaling", "status", "results/by-hand")
