"""Launchers by name, and one of a user's own in one file."""

import sys
from importlib.metadata import EntryPoint

import pytest

from launchers import registry
from launchers.base import LaunchSpec
from launchers.rank_info import RankError, RankInfo
from scaling.errors import LaunchError
from scaling.study.scope import scope_for

SPEC = LaunchSpec(4, 2, "scaling.worker", ["mnist", "--out", "my results"])
OWN = """
import sys

from launchers.base import Launcher


class Flux(Launcher):
    name = "flux"
    rank_variables = {
        "rank": "FLUX_TASK_RANK", "local_rank": "FLUX_TASK_LOCAL_ID",
        "world_size": "FLUX_JOB_SIZE", "local_world_size": "FLUX_LOCAL_SIZE",
    }

    def command(self, spec, python=sys.executable):
        return ["flux", "run", f"-n{spec.world_size}", python, "-m", spec.module, *spec.arguments]

    def environment(self, spec):
        return {**super().environment(spec), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "launcher_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "launcher_of_a_test:Flux"
    sys.modules.pop("launcher_of_a_test", None)


def test_every_built_in_launcher_is_known_by_the_name_that_it_has():
    names = {name: registry.launcher_class(name).name for name in registry.BUILT_IN}
    assert names == {name: name for name in registry.BUILT_IN}


def test_launcher_in_a_file_of_its_own_starts_the_same_worker_which_learns_its_place_by_its_variables(own):
    launcher = scope_for(own, None, None, {}).launcher
    expected = ["flux", "run", "-n4", "python3", "-m", "scaling.worker", "mnist", "--out", "my results"]
    assert launcher.command(SPEC, "python3") == expected
    environ = launcher.environment(SPEC)
    task = {"TASK_RANK": "3", "TASK_LOCAL_ID": "1", "JOB_SIZE": "4", "LOCAL_SIZE": "2"}
    environ |= {f"FLUX_{name}": value for name, value in task.items()}
    info = RankInfo.from_env(environ)
    assert (info.launcher, info.rank, info.local_rank, info.world_size) == ("flux", 3, 1, 4)
    assert info.meeting_variables(environ) == {"RANK": "3", "WORLD_SIZE": "4"}
    with pytest.raises(RankError, match=r"flux set FLUX_TASK_RANK, .*, but FLUX_LOCAL_SIZE is missing"):
        RankInfo.from_env({name: value for name, value in environ.items() if name != "FLUX_LOCAL_SIZE"})


def test_launcher_of_another_package_is_known_by_its_entry_point_and_replaces_no_built_in(own, monkeypatch):
    entries = [EntryPoint(name, own, registry.GROUP) for name in ("flux", "local")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])
    assert (registry.launcher_class("flux").name, registry.launcher_class("local").name) == ("flux", "local")
    with pytest.raises(LaunchError, match=r"no launcher 'fluxx'; allowed: local, .*, slurm-srun, flux, or"):
        scope_for("fluxx", None, None, {})


@pytest.mark.parametrize(("name", "message"), [
    ("no_such_module_here:Flux", "launcher 'no_such_module_here:Flux': cannot load"),
    ("launchers.local:Missing", "cannot load launchers.local:Missing"),
    ("launchers.base:LaunchSpec", "it must be a launchers.base.Launcher with a command"),
    ("launchers.base:Launcher", "it must be a launchers.base.Launcher with a command"),
    (".a:b", "cannot load"),
])  # fmt: skip
def test_what_is_no_launcher_is_refused(name, message):
    with pytest.raises(LaunchError, match=message):
        scope_for(name, None, None, {})
