"""Triton's kernels without a GPU: its interpreter is chosen before the import, so in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.processes
@pytest.mark.parametrize(
    "cases", [["test_one_bit_kernels.py"], ["test_chunk_kernels.py", "test_chunk_aggregators.py"]]
)
def test_kernels_are_their_reference_in_the_interpreter(cases, need):
    has_triton = importlib.util.find_spec("triton") is not None
    need(has_triton, "Triton is not installed; pip install -e '.[test]' brings it on Linux")
    paths = [str(HERE / name) for name in cases]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ["-q", "-x", "-m", "not every_case", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    told = {"capture_output": True, "text": True, "timeout": 1800}  # beside other work; alone some minutes
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], **told)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
