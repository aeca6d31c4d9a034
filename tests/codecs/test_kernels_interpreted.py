"""Triton's kernels without a GPU: its interpreter is chosen before the import, so in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("test_one_bit_kernels.py")


@pytest.mark.processes
def test_kernels_are_their_reference_in_the_interpreter(need):
    has_triton = importlib.util.find_spec("triton") is not None
    need(has_triton, "Triton is not installed; pip install -e '.[test]' brings it on Linux")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)],
        env=environment,
        cwd=CASES.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
