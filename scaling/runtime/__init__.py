"""What a worker starts in addition to torch.distributed: MPI, Horovod, and how its ranks meet by them."""

from scaling.runtime.libraries import LaunchLibraries

__all__ = ["LaunchLibraries"]
