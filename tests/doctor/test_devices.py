"""What the doctor says of GPUs, without any."""

import re

import pytest

from scaling.doctor.devices import Gpus, devices, nccl, peer_access

H200 = {"name": "NVIDIA H200", "memory_bytes": 150_000_000_000, "driver": "580.1"}
FOUR = Gpus([H200] * 4, 4, "13.0", "2.28.3", [])
NONE = Gpus([], 0, None, None, [])


@pytest.mark.parametrize(("line", "state", "said"), [
    (devices(NONE, 2), "ok", "no GPU: CPU processes over Gloo; 2 cores\n"),
    (peer_access(NONE, {}), "ok", ".*"), (nccl(NONE, {}), "ok", ".*"),
    (devices(FOUR, 64), "ok", "4 x NVIDIA H200, CUDA 13.0, driver 580.1; 64 cores\n"),
    (peer_access(FOUR, {}), "ok", "between all 4 GPUs\n"), (nccl(FOUR, {}), "ok", "2.28.3\n"),
    (devices(Gpus([H200], 0, None, None, []), 8), "error",
     "1 GPUs, driver 580.1, but torch was built without CUDA\ninstall torch for CUDA; or use device=cpu"),
    (devices(Gpus([H200], 0, "13.0", None, []), 8), "error", ".*\n.*update the driver.*"),
    (devices(Gpus([H200] * 4, 2, "13.0", "2.28.3", []), 64), "warning", ".*\nsee CUDA_VISIBLE_DEVICES"),
    (peer_access(Gpus([H200] * 2, 2, "13.0", "2.28.3", [(0, 1), (1, 0)]), {}), "warning",
     "none from GPU 0 to 1, 1 to 0: these go through host memory\n.*peer_access=false.*"),
    (peer_access(FOUR, {"NCCL_P2P_DISABLE": "1"}), "warning", ".*\n.*"),
    (nccl(FOUR, {"NCCL_ALGO": "Ring", "NCCL_VERSION": "2.27"}), "warning",
     "2.28.3, told NCCL_ALGO=Ring\n.*"),
])  # fmt: skip
def test_what_is_said_of_gpus_and_what_to_do(line, state, said):
    assert line.state == state
    assert re.fullmatch(said, f"{line.text}\n{line.fix}", re.DOTALL), line.describe()
