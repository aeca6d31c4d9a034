"""What a worker starts beside torch.distributed: MPI, Horovod, and how its ranks meet by them."""

from scaling.runtime.libraries import Beside

__all__ = ["Beside"]
