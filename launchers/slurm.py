"""A complete Slurm batch script for a study, as text: a pure function of typed options.

Forms: one allocation for all world sizes, and an array with one task a world size, each of which asks for
what the largest needs, and a report job after all. Bash runs a trap only between commands, so the launcher is
in the background, and the shell passes Slurm's signal on. What was cut off goes back to the queue by itself,
once.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from launchers.base import JOIN_TIMEOUT_S, JOIN_TIMEOUT_VARIABLE, MEETING_TOKEN_VARIABLE, LaunchSpec
from launchers.slurm_steps import SlurmLauncher, SlurmSrun, SlurmTorchrun, nodes_for
from launchers.slurm_variables import FIRST_PORT, NUM_PORTS

STYLES: dict[str, type[SlurmLauncher]] = {"torchrun": SlurmTorchrun, "srun": SlurmSrun}

REPORT_TIME = "00:15:00"

LIMIT_S = 60.0

SIGNAL_S = 120
"""Seconds before the time limit at which Slurm signals the batch shell; Slurm may be up to a minute early."""


@dataclass(frozen=True)
class JobOptions:
    """`cpus_per_task`: a task is a worker in style srun, and all of a node's workers in style torchrun;
    `setup`: lines of bash to be run first, as `module load`; `directives`: further options of sbatch;
    `join_timeout_s`: seconds. ValueError: an option is of the wrong form, or the nodes do not hold the
    largest world size."""

    study: str
    out: str
    world_sizes: Sequence[int]
    overrides: Sequence[str] = ()
    workers_per_node: int = 1
    gpus_per_node: int = 0
    nodes: int = 1
    cpus_per_task: int = 1
    style: str = "torchrun"
    array: bool = False
    time: str = "01:00:00"
    partition: str | None = None
    account: str | None = None
    job_name: str = "scaling"
    python: str = ".venv/bin/python"
    setup: Sequence[str] = ()
    directives: Sequence[str] = ()
    signal_s: int = SIGNAL_S
    join_timeout_s: int = int(JOIN_TIMEOUT_S)

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"no style {self.style!r}; allowed: {', '.join(STYLES)}")
        for name in ("partition", "account", "job_name"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[^\s#\"'`$\\]+", value):
                raise ValueError(f"{name} {value!r} must be one word without quotes")
        for line in self.directives:
            if not re.fullmatch(r"-[^\n]*", line):
                raise ValueError(f"{line!r} is no option of sbatch; write it as --name=value")
        if any("\n" in word for word in (self.study, self.out, self.python, *self.overrides)):
            raise ValueError("study, results folder, python and overrides must be on one line each")
        if seconds_of(self.time) <= self.signal_s:
            raise ValueError(
                f"time {self.time} is used up at once: the job begins to end {self.signal_s} s before its "
                "limit; give it more"
            )
        for size in self.world_sizes:
            if (needed := nodes_for(size, self.workers_per_node)) > self.nodes:
                raise ValueError(
                    f"world size {size} needs {needed} nodes of {self.workers_per_node} workers, and "
                    f"{self.nodes} are asked for; use more nodes, more GPUs a node, or leave that size out"
                )


def seconds_of(time: str) -> int:
    """Of M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. ValueError: another form."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time, re.ASCII)
    if match is None:
        raise ValueError(f"time {time!r} is not of Slurm's form; write HH:MM:SS, or D-HH:MM:SS")
    days, *parts = (None if part is None else int(part) for part in match.groups())
    numbers = [part for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def script(options: JobOptions) -> str:
    parts = [_head(options), _setup(options)]
    if options.array:
        parts.append(_report_after_all(options))
    return "\n".join([*parts, _TRAPS, _start(options), _END])


def quoted(words: Sequence[str]) -> str:
    """Words as bash, and sbatch in its `#SBATCH` lines, take them apart again: no value is read as code."""
    shown = [shlex.quote(word) for word in words]
    if re.match(r"\w+=", shown[0]):  # bash would set a variable
        shown[0] = f"'{shown[0]}'"
    return " ".join(shown)


def _head(options: JobOptions) -> str:
    sizes = ", ".join(str(size) for size in options.world_sizes)
    how = "one task each, with what the largest needs" if options.array else "one after another"
    lines = [
        "#!/usr/bin/env bash",
        f"# {' '.join(quoted([options.study]).split())}: world sizes {sizes}, {how}.",
        "# The same script, given to sbatch again, goes on with what is left.",
        *(f"#SBATCH {shlex.quote(word)}" for word in _directives(options)),
        *(f"#SBATCH {line}" for line in options.directives),
        "set -euo pipefail",
    ]
    return "\n".join(lines) + "\n"


def _directives(options: JobOptions) -> list[str]:
    return [
        f"--job-name={options.job_name}",
        *_queue(options),
        f"--nodes={options.nodes}",
        f"--ntasks-per-node={options.workers_per_node if options.style == 'srun' else 1}",
        f"--cpus-per-task={options.cpus_per_task}",
        *([f"--gpus-per-node={options.gpus_per_node}"] if options.gpus_per_node else []),
        f"--time={options.time}",
        *([f"--array={','.join(str(size) for size in options.world_sizes)}"] if options.array else []),
        f"--signal=B:USR1@{options.signal_s}",
        "--requeue",
        "--open-mode=append",
    ]


def _queue(options: JobOptions) -> list[str]:
    given = {"partition": options.partition, "account": options.account}
    return [f"--{name}={value}" for name, value in given.items() if value]


def _setup(options: JobOptions) -> str:
    # What sites offer to be sourced often reads variables that are not set.
    setup = ["set +u", *options.setup, "set -u", ""] if options.setup else []
    lines = [
        *setup,
        "# Workers meet on the job's first host, at a port that no other job on it has.",
        'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "export MASTER_ADDR=\"${hosts%%$'\\n'*}\"",
        f'export MASTER_PORT="$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))"',
        f"export {JOIN_TIMEOUT_VARIABLE}={options.join_timeout_s}",
        f'{MEETING_TOKEN_VARIABLE}=$(od -An -N16 -tx8 /dev/urandom | tr -d " ")',
        f"export {MEETING_TOKEN_VARIABLE}",
        "# For steps of your own: srun does not take it over from the job.",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
    ]
    return "\n".join(lines) + "\n"


def _report_after_all(options: JobOptions) -> str:
    words = [f"--job-name={options.job_name}-report", *_queue(options), "--ntasks=1", f"--time={REPORT_TIME}"]
    report = quoted([options.python, "-m", "scaling", "report", options.out])
    end = "REPORT"
    while end in "\n".join(options.setup).split("\n"):
        end += "_"
    return "\n".join(
        [
            "# The first task asks for the report, which is made when every task has ended, however it did.",
            'if [ "$SLURM_ARRAY_TASK_ID" = "$SLURM_ARRAY_TASK_MIN" ] &&',
            '  [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then',
            f"  sbatch {quoted(words)} \\",
            f"    --dependency=afterany:\"$SLURM_ARRAY_JOB_ID\" --kill-on-invalid-dep=yes <<'{end}' ||",
            "#!/usr/bin/env bash",
            "set -eo pipefail",
            *options.setup,
            report,
            end,
            "    echo 'no report job: run scaling report by hand' >&2",
            "fi",
            "",
        ]
    )


def _start(options: JobOptions) -> str:
    words = [options.python, "-m", "scaling", "run", options.study, *options.overrides, "--out", options.out]
    how = f"--launcher slurm-{options.style} --workers-per-node {options.workers_per_node}"
    how += ' --world-size "$SLURM_ARRAY_TASK_ID"' if options.array else ""
    largest = max(options.world_sizes)
    launch = textwrap.wrap(_launch(options, largest), 100, break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        [
            f"# It starts each launch by srun; that of {largest} worker{'s' if largest > 1 else ''} with",
            *(f"#   {line}" for line in launch),
            f"{quoted(words)} \\",
            f"  {how} &",
            "launcher=$!",
            '[ -z "$stopped" ] || kill "-$stopped" "$launcher"  # it came before the launcher was there',
            "",
        ]
    )


def _launch(options: JobOptions, world_size: int) -> str:
    launcher = STYLES[options.style]
    job = launcher(options.workers_per_node, options.nodes, "$MASTER_ADDR", 0, options.join_timeout_s)
    arguments = [options.study, *options.overrides, "--out", options.out, f"--world-size={world_size}"]
    command = job.command(LaunchSpec(world_size, 1, "scaling.worker", arguments), options.python)
    endpoint = "'--rdzv-endpoint=$MASTER_ADDR:0'"
    return quoted(command).replace(endpoint, "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT")


_TRAPS = """\
# A signal ends `wait`, not the launcher, which is given the signal and waited for again.
launcher=
stopped=
trap 'stopped=USR1 interrupted=1; kill -USR1 "$launcher" 2> /dev/null || true' USR1
trap 'stopped=TERM interrupted=1; kill -TERM "$launcher" 2> /dev/null || true' TERM
"""

_END = """\
while
  interrupted=
  status=0
  wait "$launcher" || status=$?
  [ -n "$interrupted" ]
do
  :
done

# Cut off by a signal, with its state saved: back to the queue, once. A job that was cancelled stays so.
if [ -n "$stopped" ] && [ "$status" -ge 128 ]; then
  state=$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID" || true)
  if [ "$state" = RUNNING ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
    echo "stopped by SIG$stopped; job $SLURM_JOB_ID goes back to the queue and on from here" >&2
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "stopped by SIG$stopped; give the script to sbatch again to go on from here" >&2
  fi
fi
exit "$status"
"""


class SubmitError(ValueError):
    """Slurm is not there, or does not take the job."""


def submit(script: str) -> str:
    """From the current folder; returns the job's id. SubmitError: with what sbatch says."""
    try:
        words = ["sbatch", "--parsable"]
        done = subprocess.run(
            words, input=script, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
    except FileNotFoundError:
        raise SubmitError(
            "sbatch is not installed here: submit on a login node of the cluster, or print the script with "
            "--dry-run"
        ) from None
    except subprocess.CalledProcessError as error:
        raise SubmitError(f"Slurm does not take the job: {' '.join(error.stderr.split())}") from None
    except subprocess.TimeoutExpired:
        raise SubmitError(
            f"Slurm has not answered within {LIMIT_S:g} s; `squeue` tells if it took the job"
        ) from None
    return done.stdout.strip().partition(";")[0]  # "id" or "id;cluster"
