"""Kernels of the codecs, for devices; each codec's plain torch version is their reference."""

from scaling.codecs.kernels.choice import Kernels, chunk_coder, stripe_codec, triton_problem

__all__ = ["Kernels", "chunk_coder", "stripe_codec", "triton_problem"]
