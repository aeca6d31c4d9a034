"""`scaling doctor`: every subject is a line, errors are exit code 1, ranks say where they know it from."""

import json

import pytest

from scaling import doctor
from scaling.doctor import host
from scaling.doctor.line import CheckResult

SUBJECTS = [
    "versions", "devices", "peer access", "NCCL", "Triton", "launchers", "MPI", "Horovod", "rank", "ports",
    "shared memory", "limits", "NUMA", "load", "data sets", "write access", "clock",
]  # fmt: skip
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def test_every_subject_is_a_line_for_people_and_an_object_for_programs(call):
    code, text, _ = call("doctor")
    assert [line[9:24].strip() for line in text.splitlines() if line[0] != " "] == SUBJECTS
    told = json.loads(call("doctor", "--json")[1])
    assert [one["name"] for one in told] == SUBJECTS
    assert code == int(any(one["state"] == "error" for one in told))
    assert all(set(one) == {"name", "state", "text", "fix"} for one in told)
    assert all(one["fix"] for one in told if one["state"] == "error")


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_exit_code_is_1_for_errors_alone(call, monkeypatch, state, code):
    monkeypatch.setattr(
        doctor, "examine", lambda *_: [CheckResult("clock", "ok", ""), CheckResult("ports", state, "x", "y")]
    )
    assert call("doctor")[0] == code


def test_fix_is_a_line_of_its_own():
    line = CheckResult("ports", "error", "loopback cannot be used", "allow it")
    said = "error    ports          loopback cannot be used"
    assert line.describe() == f"{said}\n                        fix: allow it"


def test_long_findings_go_on_below_where_they_began():
    line = CheckResult("launchers", "ok", ", ".join(["mpirun"] * 12), " ".join(["install"] * 20))
    found, fix = line.describe().split("fix: ")
    assert max(map(len, line.describe().splitlines())) <= 80
    assert (found.splitlines()[1].index("mpirun"), fix.splitlines()[1].index("install")) == (24, 29)


def test_ranks_say_which_variables_they_go_by_and_others_than_0_nothing_else(tmp_path):
    (line,) = doctor.examine(TORCHRUN, tmp_path)
    assert line.text.startswith("rank 1 (RANK) of 2 (WORLD_SIZE), local rank 1 (LOCAL_RANK) of 2")
    lines = doctor.examine({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}, tmp_path)
    assert [one.name for one in lines] == SUBJECTS


def test_variables_that_a_launch_has_left_are_an_error():
    line = doctor.rank({"RANK": "0"})
    assert (line.state, line.text.startswith("torchrun set RANK, but")) == ("error", True)
    assert doctor.rank({}).text == "none: no launcher has started this process"


class TestFiles:
    def test_data_sets_that_are_missing_are_a_warning(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("SCALING_DATA_DIR", raising=False)
        line = host.data_sets()
        assert (line.state, line.text) == ("warning", "digits, text, synthetic; not here: mnist, cifar10")
        monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path / "none"))
        assert host.data_sets().state == "error"

    def test_folder_that_cannot_be_written_is_an_error(self, monkeypatch, tmp_path):
        cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        assert host.write_access(cache, tmp_path).state == "ok"
        (tmp_path / "file").touch()
        line = host.write_access(cache, tmp_path / "file")
        assert (line.state, line.fix) == ("error", "use --out elsewhere")
        line = host.write_access({"XDG_CACHE_HOME": str(tmp_path / "file")}, tmp_path)
        assert (line.state, line.fix) == ("error", "set XDG_CACHE_HOME to a writable folder")

    def test_full_disk_is_a_warning(self, monkeypatch, tmp_path):
        monkeypatch.setattr(host, "MIN_FREE_BYTES", 1 << 62)
        assert host.write_access({"XDG_CACHE_HOME": str(tmp_path)}, tmp_path).state == "warning"
