"""Batch scripts are text made of typed options; the whole texts are compared in tests/cli/test_submit.py."""

import shlex
import signal
import subprocess
from dataclasses import replace

import pytest

from launchers.slurm import JobOptions, script, seconds_of
from tests.waiting import LIMIT_S

OPTIONS = JobOptions(
    "mnist", "results/mnist", [1, 2, 4], workers_per_node=4, gpus_per_node=4, cpus_per_task=16
)


@pytest.mark.parametrize(("time", "seconds"), [
    ("30", 1800), ("30:10", 1810), ("01:02:03", 3723), ("1-0", 86_400), ("1-12", 129_600),
    ("1-12:30", 131_400), ("1-12:30:15", 131_415),
])  # fmt: skip
def test_times_are_read_as_slurm_reads_them(time, seconds):
    assert seconds_of(time) == seconds


@pytest.mark.parametrize("time", ["", "1h", "1:2:3:4", "-5", "UNLIMITED"])
def test_time_of_another_form_is_an_error(time):
    with pytest.raises(ValueError, match="is not of Slurm's form"):
        seconds_of(time)


@pytest.mark.parametrize(("change", "line"), [
    ({"partition": "gpu"}, "#SBATCH --partition=gpu"), ({"account": "me"}, "#SBATCH --account=me"),
    ({"nodes": 2}, "#SBATCH --nodes=2"),
    ({"gpus_per_node": 8}, "#SBATCH --gpus-per-node=8"),
    ({"cpus_per_task": 5}, "#SBATCH --cpus-per-task=5"),
    ({"style": "srun"}, "#SBATCH --ntasks-per-node=4"),
    ({"style": "torchrun"}, "#SBATCH --ntasks-per-node=1"),
    ({"array": True}, "#SBATCH --array=1,2,4"), ({"signal_s": 300}, "#SBATCH --signal=B:USR1@300"),
    ({"time": "2-0"}, "#SBATCH --time=2-0"),
    ({"directives": ["--qos=high"]}, "#SBATCH --qos=high"),
    ({"join_timeout_s": 20}, "export SCALING_JOIN_TIMEOUT_S=20"),
    ({"setup": ["module load cuda"]}, "module load cuda"),
], ids=str)  # fmt: skip
def test_every_option_is_a_line_of_the_script(change, line):
    assert line in script(replace(OPTIONS, **change)).splitlines()


@pytest.mark.parametrize("change", [{}, {"style": "torchrun"}, {"array": True}, {"nodes": 2}], ids=str)
def test_job_that_puts_itself_back_is_one_that_slurm_may_requeue_and_goes_on_in_its_log(change):
    """A cluster with JobRequeue=0 refuses `scontrol requeue` of any other; its log would begin anew."""
    directives, _, rest = script(replace(OPTIONS, **change)).partition("set -euo pipefail")
    assert 'scontrol requeue "$SLURM_JOB_ID"' in rest
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= set(directives.splitlines())


def test_job_without_gpus_asks_for_none():
    assert "gpus" not in script(replace(OPTIONS, gpus_per_node=0))


FAKES = """
record() { printf '%s\\0' "$@" "$MARK" >> "$RECORD"; }
sbatch() { record sbatch "$@"; cat >> "$RECORD.report"; }
scontrol() { echo host1; }
"""
HOSTILE = ["x;touch<>pwned", *["a|touch", "a&b", "*", "(b)", "a<b>c", "~", "{a,b}", "!x", "x%j", "é😀"]]
ONLY_WORDS = [
    "$(touch pwned)", "`touch pwned`", "a b", "it's", 'a"b', "\\", "\t", "#x", "REPORT", "$HOME", "\r\v",
    "[1, 2]",
]  # fmt: skip


def started(tmp_path, options):
    """What bash makes of the script: the arguments of sbatch and of the program, and the report job."""
    program = tmp_path / "program of=mine $(touch pwned) 'x"
    program.write_text("#!/usr/bin/env bash\n" + FAKES + 'record program "$@"\n')
    program.chmod(0o755)
    text = script(replace(options, python=str(program)))
    for content in (text, f"{FAKES}{text}"):
        checked = subprocess.run(["bash", "-n"], input=content, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
    variables = {"RECORD": str(tmp_path / "record"), "MARK": "end of words", "PATH": "/usr/bin:/bin"}
    variables |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "host1", "HOME": "/root"}
    variables |= dict.fromkeys(("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_JOB_ID"), "1")
    command = ["bash", "-c", FAKES + text]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "pwned").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if "record" not in path.name) == [program.name]
    words = (tmp_path / "record").read_bytes().decode().split("\0end of words\0")
    report = (tmp_path / "record.report").read_bytes().decode() if options.array else ""
    return [line.split("\0") for line in words[:-1]], report, str(program)


@pytest.mark.parametrize("value", HOSTILE + ONLY_WORDS, ids=ascii)
@pytest.mark.parametrize("array", [True, False])
def test_no_value_of_an_option_is_read_as_code(tmp_path, value, array):
    given = {"study": value, "out": value, "overrides": [f"a={value}", value], "array": array}
    one_word = {name: value for name in ("partition", "account", "job_name") if value in HOSTILE}
    setup = ["true", "REPORT() { true; }", ": '", "REPORT", "'"]
    options = replace(OPTIONS, **given, **one_word, setup=setup)
    calls, report, program = started(tmp_path, options)
    run = ["program", "-m", "scaling", "run", value, f"a={value}", value, "--out", value]
    run += ["--launcher", "slurm-torchrun", "--workers-per-node", "4"]
    run += ["--world-size", "1"] if array else []
    assert calls[-1] == run
    lines = (line[8:] for line in script(options).splitlines() if line.startswith("#SBATCH"))
    directives = [word for line in lines for word in shlex.split(line)]
    for name, given_word in one_word.items():
        assert f"--{name.replace('_', '-')}={given_word}" in directives
    if array:
        named = [f"--job-name={options.job_name}-report"]
        queue = [f"--{name}={value}" for name in ("partition", "account") if name in one_word]
        assert calls[0][:-4] == ["sbatch", *named, *queue]
        words = [program, "-m", "scaling", "report", value]
        assert shlex.split(report.removesuffix("\n").rpartition("'\n")[2]) == words


@pytest.mark.parametrize(("change", "message"), [
    ({"style": "mpirun"}, "no style 'mpirun'"),
    ({"partition": "a b"}, "partition 'a b' must be one word"),
    ({"job_name": "a\nb"}, "job_name"),
    ({"directives": ["--x\nrm"]}, "is no option of sbatch"),
    ({"study": "a\nb"}, "must be on one line each"),
    ({"world_sizes": [8]}, "world size 8 needs 2 nodes of 4 workers, and 1 are asked for"),
    ({"world_sizes": [7], "nodes": 2}, "7 workers do not spread evenly"),
    ({"time": "00:02:00"}, "used up at once"),
], ids=str)  # fmt: skip
def test_options_that_contradict_one_another_are_an_error(change, message):
    assert replace(OPTIONS, world_sizes=[6], nodes=2, workers_per_node=5)
    with pytest.raises(ValueError, match=message):
        replace(OPTIONS, **change)


def run_end(tmp_path, launcher, signals=0, restarts="0", state="RUNNING"):
    """Runs the script from its traps on, with a launcher and Slurm's commands replaced."""
    program = tmp_path / "launcher"
    program.write_text(f"#!/usr/bin/env bash\n{launcher}\n")
    program.chmod(0o755)
    text = script(replace(OPTIONS, python=str(program)))
    path = tmp_path / "end.sh"
    path.write_text(
        f'set -euo pipefail\nsqueue() {{ echo {state}; }}\nscontrol() {{ echo "scontrol $*"; }}\n'
        f"SLURM_JOB_ID=17 SLURM_RESTART_COUNT={restarts}\n{text[text.index('launcher=') :]}"
    )
    process = subprocess.Popen(["bash", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(signals):
        while "ready" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGUSR1)
    # A signal that comes just as bash goes back to `wait` is heard with the next one.
    for _ in range(20 * bool(signals)):
        try:
            process.wait(timeout=5)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


HEARS = "trap 'exit 130' USR1; echo ready; while :; do sleep 0.05; done"
NEEDS_TWO = (
    "trap 'i=1$i; echo ready; [ $i = 11 ] && exit 130' USR1; i=; echo ready; while :; do sleep 0.05; done"
)


@pytest.mark.parametrize("status", [0, 1, 2, 75, 137])
def test_job_ends_with_the_launchers_status(tmp_path, status):
    assert run_end(tmp_path, f"exit {status}") == (status, "", "")


@pytest.mark.parametrize(("launcher", "signals"), [(HEARS, 1), (NEEDS_TWO, 2)])
def test_signal_is_passed_on_and_the_launcher_waited_for_before_the_requeue(tmp_path, launcher, signals):
    code, out, err = run_end(tmp_path, launcher, signals=signals)
    assert (code, out.splitlines()[-1]) == (130, "scontrol requeue 17")
    assert err == "stopped by SIGUSR1; job 17 goes back to the queue and on from here\n"


NOT_AGAIN = "stopped by SIGUSR1; give the script to sbatch again to go on from here\n"


@pytest.mark.parametrize(("launcher", "restarts", "state", "status", "said"), [
    (HEARS, "1", "RUNNING", 130, NOT_AGAIN), (HEARS, "0", "COMPLETING", 130, NOT_AGAIN),
    (HEARS, "0", "", 130, NOT_AGAIN),
    (HEARS.replace("130", "0"), "0", "RUNNING", 0, ""),  # it finishes in spite of the signal
])  # fmt: skip
def test_job_is_requeued_once_and_not_if_cancelled_or_done(tmp_path, launcher, restarts, state, status, said):
    code, out, err = run_end(tmp_path, launcher, signals=1, restarts=restarts, state=state)
    assert (code, err) == (status, said)
    assert "requeue" not in out
