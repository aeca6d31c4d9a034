"""What the doctor says of GPUs, without any."""

from scaling.doctor.devices import Gpus, devices, nccl, peer_access

H200 = {"name": "NVIDIA H200", "memory_bytes": 150_000_000_000, "driver": "580.1"}
FOUR = Gpus([H200] * 4, 4, "13.0", "2.28.3", [])
NONE = Gpus([], 0, None, None, [])


def test_machine_without_gpus_is_fine():
    assert devices(NONE, 2).describe() == "ok       devices        no GPU: CPU processes over Gloo; 2 cores"
    assert {peer_access(NONE, {}).state, nccl(NONE, {}).state} == {"ok"}


def test_gpus_are_counted_by_name():
    line = devices(FOUR, 64)
    assert (line.state, line.text) == ("ok", "4 x NVIDIA H200, CUDA 13.0, driver 580.1; 64 cores")
    assert (peer_access(FOUR, {}).text, nccl(FOUR, {}).text) == ("between all 4 GPUs", "2.28.3")


def test_gpus_that_torch_cannot_use_are_an_error_with_the_fix():
    without = devices(Gpus([H200], 0, None, None, []), 8)
    assert (without.state, without.text) == (
        "error",
        "1 GPUs, driver 580.1, but torch was built without CUDA",
    )
    assert without.fix == "install torch for CUDA; or use device=cpu"
    too_new = devices(Gpus([H200], 0, "13.0", None, []), 8)
    assert too_new.state == "error"
    assert "update the driver" in too_new.fix


def test_gpus_that_are_hidden_are_a_warning():
    line = devices(Gpus([H200] * 4, 2, "13.0", "2.28.3", []), 64)
    assert (line.state, line.fix) == ("warning", "see CUDA_VISIBLE_DEVICES")


def test_pairs_without_access_are_named():
    line = peer_access(Gpus([H200] * 2, 2, "13.0", "2.28.3", [(0, 1), (1, 0)]), {})
    assert (line.state, line.text) == (
        "warning",
        "none from GPU 0 to 1, 1 to 0: these go through host memory",
    )
    assert "peer_access=false" in line.fix


def test_settings_of_nccl_are_shown():
    assert peer_access(FOUR, {"NCCL_P2P_DISABLE": "1"}).state == "warning"
    line = nccl(FOUR, {"NCCL_ALGO": "Ring", "NCCL_VERSION": "2.27"})
    assert (line.state, line.text) == ("warning", "2.28.3, told NCCL_ALGO=Ring")
