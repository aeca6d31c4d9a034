"""One rank of test_mpi_world.py: the last one raises or leaves while the others wait in MPI; or all wait."""

import os
import sys
import time

from launchers.rank_info import RankInfo
from scaling.runtime import LaunchLibraries


def main(how):
    info = RankInfo.from_env(os.environ)
    libraries = LaunchLibraries(info)
    if how == "wait":
        os.write(1, f"{os.getpid()}\n".encode())  # at once: the ranks' lines are not mixed
        time.sleep(600)
    if info.rank == info.world_size - 1:
        if how == "raise":
            raise RuntimeError("planted failure")
        libraries.end_all(3)
        sys.exit(3)
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    main(sys.argv[1])
