"""ranks.py NUMBER PORT SCRIPT [WORD ...]: so many ranks of it, as by torchrun, without torch."""

import os
import subprocess
import sys
import time

world_size, port, *words = sys.argv[1:]
meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world_size}
ranks = [
    subprocess.Popen(
        [sys.executable, *words], env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    )
    for rank in range(int(world_size))
]
while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
    time.sleep(0.05)
for rank in ranks:
    rank.kill()  # as torchrun, where one has failed
sys.exit(max(map(abs, filter(None, codes)), default=0))
