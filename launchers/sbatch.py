"""Hands a batch script to Slurm."""

from __future__ import annotations

import subprocess

LIMIT_S = 60.0

SIGNAL_S = 120
"""Seconds before the time limit at which Slurm signals the batch shell; Slurm may be up to a minute early."""


class SubmitError(ValueError):
    """Slurm is not there, or does not take the job."""


def submit(script: str) -> str:
    """Submits a job to be run in the current folder; returns its id.

    Raises:
        SubmitError: with what sbatch says.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
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
