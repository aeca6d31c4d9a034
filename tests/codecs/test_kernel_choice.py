"""Which kernels a codec by chunks runs with, and that a run is told."""

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass

import pytest
import torch

from scaling.aggregators.qsgd import QsgdCodec
from scaling.aggregators.registry import create
from scaling.aggregators.sign import MeanSignCodec
from scaling.bucket import BucketLayout
from scaling.codecs import kernels
from scaling.codecs.chunks import Chunks, TorchChunks
from scaling.codecs.kernels import chunk_coder, stripe_codec, triton_problem
from scaling.codecs.kernels.chunk_engine import LARGEST_BUCKET, _written, kernel_problem
from scaling.codecs.one_bit_stripes import StripeBuffers, TorchStripes
from scaling.codecs.stripes import StripeLayout
from scaling.collectives.plan import CodecWork
from scaling.errors import LaunchError, StudyError
from tests.aggregators.conftest import of_states

CPU = torch.device("cpu")
CODEC = MeanSignCodec(64)
LAYOUT = BucketLayout.of([("weight", (40, 10))])
TOO_OLD = "is installed, and the kernels are tested with 3.6 and later"
no_interpreter = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="then they run")


@dataclass(frozen=True)
class OwnCodec(MeanSignCodec):
    def scale(self, values, valid):
        return super().scale(values, valid) / 2


class OwnCoder(TorchChunks):
    """A kernel of somebody's own."""


@dataclass(frozen=True)
class CodecWithKernel(OwnCodec):
    kernel = OwnCoder


@dataclass(frozen=True)
class CodecWithUnknownKernel(OwnCodec):
    kernel = "ROUND"


class TestChoice:
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    def test_processors_run_plain_torch(self, kernels):
        coder = chunk_coder(CODEC, CODEC, CODEC.chunks(100), CPU, kernels)
        assert type(coder) is TorchChunks
        assert coder.note == "ef_sign in plain torch operations"

    def test_a_codec_of_ones_own_may_bring_its_kernel_and_an_unknown_one_is_an_error(self, monkeypatch):
        monkeypatch.setattr(kernels, "triton_problem", lambda device: None)
        codec, meta = CodecWithKernel(64), torch.device("meta")
        chunks = codec.chunks(100)
        asked = [("torch", CPU), ("auto", CPU), ("triton", CPU), ("auto", meta)]
        coders = [type(chunk_coder(codec, codec, chunks, device, which)) for which, device in asked]
        assert coders == [TorchChunks, TorchChunks, OwnCoder, OwnCoder]
        codec = CodecWithUnknownKernel(64)
        with pytest.raises(LaunchError, match="names the kernel 'ROUND'; allowed: FLAT, MEAN"):
            chunk_coder(codec, codec, chunks, CPU, "triton")

    def test_a_codec_of_ones_own_has_no_kernel(self):
        assert kernel_problem(CODEC, CODEC.chunks(100)) is None
        assert "no kernel for the codec 'ef_sign'" in str(kernel_problem(OwnCodec(64), CODEC.chunks(100)))

    def test_buckets_that_are_too_large_or_whose_codes_are_too_many_bytes_have_none(self):
        assert kernel_problem(CODEC, Chunks(LARGEST_BUCKET, 64)) is None
        assert f"{LARGEST_BUCKET} at most" in str(kernel_problem(CODEC, Chunks(LARGEST_BUCKET + 1, 64)))
        codec, num = QsgdCodec(64, 8), 64 * (LARGEST_BUCKET // 68)
        assert kernel_problem(codec, codec.chunks(num)) is None
        problem = kernel_problem(codec, codec.chunks(num + 1))
        assert f"is encoded in {num // 64 * 68 + 68} bytes" in str(problem)

    def test_more_chunks_that_programs_share_than_a_launch_has_room_for_have_none(self):
        codec = MeanSignCodec(16384 + 32)
        assert kernel_problem(codec, codec.chunks(65535 * codec.chunk_elements)) is None
        assert "65536 chunks" in str(kernel_problem(codec, codec.chunks(65535 * codec.chunk_elements + 1)))
        whole = MeanSignCodec(16384)
        assert kernel_problem(whole, whole.chunks(65536 * 16384)) is None


class TestVersion:
    """What of Triton is installed decides; on a device that is no processor, as a GPU is not."""

    GPU = torch.device("meta")

    @pytest.fixture(autouse=True)
    def interpreted(self, monkeypatch):
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # Triton's kernels can run on any device

    @pytest.fixture
    def install(self, monkeypatch):
        """install(version): of Triton, as its packages tell it; None: there is none."""
        find_spec, known = importlib.util.find_spec, importlib.metadata.version

        def version_of(name, version):
            if name != "triton":
                return known(name)
            if version == "":
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        def install(version):
            kernels._packaged_version.cache_clear()
            spec = None if version is None else find_spec("json")
            monkeypatch.setattr(
                importlib.util, "find_spec", lambda name: spec if name == "triton" else find_spec(name)
            )
            monkeypatch.setattr(importlib.metadata, "version", lambda name: version_of(name, version))
            monkeypatch.setattr(importlib.metadata, "packages_distributions", dict)

        yield install
        kernels._packaged_version.cache_clear()

    @pytest.mark.parametrize("version", ["3.6.0", "3.7", "3.7b1", "3.6rc1", "3.10.1+git1234", "4.0.0"])
    def test_later_ones_can_run(self, install, version):
        install(version)
        assert triton_problem(self.GPU) is None

    def test_of_a_package_of_another_name_it_is_told_too(self, install, monkeypatch):
        install("")
        monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"triton": ["pytest"]})
        assert kernels.triton_version() == importlib.metadata.version("pytest")

    @pytest.mark.parametrize(("version", "reason"), [
        (None, "Triton is not installed (pip install 'triton>=3.6')"),
        ("3.5.1", f"Triton 3.5.1 {TOO_OLD}"),
        ("2.1.0", f"Triton 2.1.0 {TOO_OLD}"),
        ("", f"a Triton that tells no version {TOO_OLD}"),
    ])  # fmt: skip
    def test_without_a_later_one_the_reference_runs_and_says_why(self, install, version, reason):
        install(version)
        assert triton_problem(self.GPU) == reason
        coder = chunk_coder(CODEC, CODEC, CODEC.chunks(100), self.GPU, "auto")
        assert (type(coder), coder.note) == (TorchChunks, f"ef_sign in plain torch operations: {reason}")
        stripes = StripeLayout.of(LAYOUT, "torch", 1, 2)
        codec = stripe_codec(StripeBuffers(stripes, 0, self.GPU), "zero", "auto")
        assert (type(codec), codec.note) == (TorchStripes, f"{TorchStripes.note}: {reason}")
        with pytest.raises(LaunchError, match=r"kernels: triton: .*3\.6.*; use kernels: auto or torch"):
            chunk_coder(CODEC, CODEC, CODEC.chunks(100), self.GPU, "triton")


@pytest.mark.parametrize("at", [0, 4, 1027, 3 * 2**30 + 6])
def test_rows_are_told_from_an_aligned_address_near_them(at):
    """Kernels count bytes in 32 bits, and a rank's rows may lie behind those of many others."""
    rows = torch.empty(at + 96, dtype=torch.int32, device="meta")[at:].view(8, 12)
    words, row_bytes, begin = _written(rows)
    assert 4 * (begin + rows.numel()) == row_bytes.numel() < 2**10
    assert (words.storage_offset() + begin, words.storage_offset() % 4) == (at, 0)
    assert row_bytes.storage_offset() == 4 * words.storage_offset()


@pytest.mark.parametrize("name", ["one_bit_flat", "one_bit_momentum", "two_bit", "sign", "ef_sign", "qsgd"])
class TestAggregators:
    def test_the_default_does_not_show_in_the_label_and_unknown_kernels_are_an_error(self, name):
        assert create(name).label() == name
        assert create(name, {"kernels": "torch"}).label() == f"{name}(kernels=torch)"
        with pytest.raises(StudyError, match="kernels"):
            create(name, {"kernels": "cuda"})

    def test_runs_are_told_what_encodes(self, name):
        notes = [of_states(create(name), LAYOUT, size, lambda state: state.notes) for size in (2, 1)]
        assert notes[0] == [[f"{name} in plain torch operations"]] * 2
        assert notes[1] == [[]], "alone, nothing is encoded"

    @no_interpreter
    def test_triton_where_it_cannot_run_is_an_error(self, name):
        with pytest.raises(LaunchError, match=r"kernels: triton: .*use kernels: auto or torch"):
            of_states(create(name, {"kernels": "triton"}), LAYOUT, 2, type)

    def test_plain_torch_moves_more_bytes(self, name):
        def moved(kernels):
            stages = create(name, {"kernels": kernels}).stages(LAYOUT, 4)
            return [stage.bytes_moved for stage in stages if isinstance(stage, CodecWork)]

        pairs = list(zip(moved("torch"), moved("auto"), strict=True))
        assert len(pairs) > 1
        assert all(plain > fused for plain, fused in pairs)
