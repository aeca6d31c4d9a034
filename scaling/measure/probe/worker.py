"""A worker of the probe: `python -m scaling.measure.probe.worker --samples FILE --seconds S`, by a launcher.

Rank 0 adds what was measured (`probe.ranks`) to FILE, a line of JSON for each row, at last `{"done": true}`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from launchers.processes import die_with_parent
from launchers.rank_info import LAUNCHER_VARIABLE, RankError, RankInfo
from scaling.errors import LaunchError
from scaling.measure.probe.ranks import Prober
from scaling.runtime import LaunchLibraries
from scaling.runtime.meeting import own_address
from scaling.runtime.workers import Workers
from topologies.detect import num_usable_cores


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if os.environ.get(LAUNCHER_VARIABLE) == "local":
        die_with_parent()
    try:
        info = RankInfo.from_env(os.environ)
        os.environ.update(info.meeting_variables(os.environ))
        device = _device(info, options.device)
        libraries = LaunchLibraries(info)
        workers = Workers(info, libraries.share(), own_address(info, os.environ))
    except (RankError, LaunchError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    libraries.offer(workers)

    def write(row: dict[str, Any]) -> None:
        with options.samples.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    num_threads = max(1, num_usable_cores() // info.local_world_size)
    group = workers.group(device, peer_access=not options.host_only)
    prober = Prober(group, device, num_threads, write, host_only=options.host_only)
    prober.run(options.seconds, only_messages=options.only_messages, with_products=not options.only_messages)
    if info.rank == 0:
        write({"done": True})
    workers.close()
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m scaling.measure.probe.worker", description=__doc__)
    parser.add_argument("--samples", type=Path, required=True, help="file that lines are added to")
    parser.add_argument("--seconds", type=float, required=True, help="what measuring may take")
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument(
        "--no-peer-access", dest="host_only", action="store_true", help="no access between GPUs"
    )
    parser.add_argument("--only-messages", action="store_true", help="no copies, no sums")
    return parser.parse_args(arguments)


def _device(info: RankInfo, kind: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    if info.local_rank >= torch.cuda.device_count():
        raise LaunchError(
            f"local rank {info.local_rank} needs its own GPU; {torch.cuda.device_count()} are visible; "
            "use fewer workers (--world-size)"
        )
    torch.cuda.set_device(info.local_rank)
    return torch.device("cuda", info.local_rank)


if __name__ == "__main__":
    sys.exit(main())
