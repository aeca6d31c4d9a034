"""`scaling submit --dry-run`: eight option sets against stored texts, checked by shellcheck, without Slurm.

Four of the texts are those of slurm/, which users edit. After a change of the script on purpose:
`python tests/cli/test_submit.py` writes them all anew; read the difference.
"""

import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.cli import main

ROOT = Path(__file__).parents[2]
EDITED, STORED = ROOT / "slurm", ROOT / "tests" / "launchers" / "batch_scripts"
PYTHON = ["--python", ".venv/bin/python"]
UP_TO_8 = ["world_sizes=[1,2,4,8]", "--nodes", "2", "--gpus-per-node", "4"]

OPTIONS = {
    EDITED / "one_node.sbatch": ["mnist", "--gpus-per-node", "4"],
    EDITED / "array.sbatch": ["mnist", "--gpus-per-node", "4", "--array"],
    EDITED / "two_nodes_torchrun.sbatch": ["mnist", *UP_TO_8],
    EDITED / "two_nodes_srun.sbatch": ["mnist", *UP_TO_8, "--style", "srun"],
    STORED / "shipped_study_and_nothing_else.sbatch": ["quickstart"],
    STORED / "everything_that_can_be_asked_for.sbatch": [*("mnist", "repeats=5",
     "parts.0.aggregators=[none, ring]", "--out", "results/of mine"),
     *("--partition", "gpu", "--account", "project", "--time", "1-12:30:00", "--job-name", "night"),
     *("--nodes", "2", "--gpus-per-node", "2", "--cpus-per-task", "10", "--style", "srun", "--array"),
     *("--setup", "module load cuda", "--setup", 'export PATH="$HOME/my tools:$PATH"'),
     *("--sbatch=--exclusive", '--sbatch=--comment="a b"', "--signal", "300", "--join-timeout", "20")],
    STORED / "processors_alone.sbatch": ["mnist", "device=cpu", "--nodes", "2", "--partition", "gpu"],
    STORED / "array_over_two_nodes.sbatch": [*("mnist", "world_sizes=[2,4]", "--gpus-per-node", "2",
     "--array", "--time", "30")],
}  # fmt: skip
NAMES = [path.stem for path in OPTIONS]


def dry_run(arguments):
    """What `scaling submit --dry-run` prints: (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["scaling", "submit", *arguments, *PYTHON, "--dry-run"]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        sys.argv = before
    return ended.value.code or 0, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("path", OPTIONS, ids=NAMES)
def test_dry_run_prints_the_stored_script_and_nothing_else(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm
    assert dry_run(OPTIONS[path]) == (0, path.read_text(), "")


@pytest.mark.parametrize("path", OPTIONS, ids=NAMES)
def test_stored_script_is_clean_to_shellcheck(path, need):
    need(shutil.which("shellcheck"), "shellcheck is not installed (Debian: apt-get install shellcheck)")
    done = subprocess.run(["shellcheck", "--severity=style", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_script_that_users_edit_is_one_of_these():
    assert set(EDITED.glob("*.sbatch")) == {path for path in OPTIONS if path.parent == EDITED}
    assert set(STORED.iterdir()) == {path for path in OPTIONS if path.parent == STORED}


@pytest.mark.parametrize(("arguments", "message"), [
    (["mnits"], "no study 'mnits'"),
    (["mnist", "--style", "mpirun"], "no style 'mpirun'; allowed: torchrun, srun"),
    (["mnist", "--time", "2"], "time 2 is used up at once: the job begins to end 120 s before its limit"),
    (["mnist", "--time", "soon"], "time 'soon' is not of Slurm's form; write HH:MM:SS"),
    (["mnist", "world_sizes=[1,2,4]", "--nodes", "1", "--gpus-per-node", "2"],
     "world size 4 needs 2 nodes of 2 workers"),
    (["mnist", "world_sizes=[3]", "--gpus-per-node", "2"], "3 workers do not spread evenly over 2"),
    (["mnist", "device=cuda", "--gpus-per-node", "0"], "has device: cuda; give --gpus-per-node"),
    (["mnist", "--partition", "two words"], "partition 'two words' must be one word"),
    (["mnist", "--sbatch", "exclusive"], "'exclusive' is no option of sbatch; write it as --name=value"),
])  # fmt: skip
def test_what_cannot_be_submitted_is_one_message_and_exit_code_2(call, arguments, message):
    assert message in call.refused("submit", *arguments, *PYTHON, "--dry-run")


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Puts a program of that name on the path, in a folder of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(body):
        program = folder / "sbatch"
        program.write_text(f"#!{shutil.which('sh', path='/bin:/usr/bin')}\n{body}\n")
        program.chmod(0o755)

    return put


def test_script_goes_to_sbatch_and_the_job_id_comes_back(sbatch, call, tmp_path):
    sbatch(
        f"""[ "$*" = --parsable ] || exit 1
while IFS= read -r line; do printf '%s\\n' "$line"; done > '{tmp_path}/got'
echo "17;cluster\""""
    )
    assert call.printed("submit", "mnist", "--gpus-per-node", "4", *PYTHON) == "17\n"
    assert (tmp_path / "got").read_text() == (EDITED / "one_node.sbatch").read_text()


def test_what_slurm_says_against_the_job_is_passed_on_and_without_slurm_what_to_do(sbatch, call):
    said = "sbatch is not installed here: submit on a login node of the cluster, or print"
    assert said in call.refused("submit", "mnist")
    sbatch("while read -r l; do :; done\necho 'sbatch: error: invalid partition' >&2\nexit 1")
    err = call.refused("submit", "mnist")
    assert err == "error: Slurm does not take the job: sbatch: error: invalid partition\n"


if __name__ == "__main__":
    for path, arguments in OPTIONS.items():
        path.write_text(dry_run(arguments)[1])
