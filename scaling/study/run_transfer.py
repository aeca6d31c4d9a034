"""Runs a transfer cell on one rank: the probe's cases, in the study's own launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import torch

from scaling.measure.probe.machine_file import with_detected
from scaling.measure.probe.ranks import Prober
from scaling.process_group import TorchGroup
from scaling.study.transfer import TransferCell
from topologies.detect import read_facts


def measure_transfers(
    cell: TransferCell,
    group: TorchGroup,
    device: torch.device,
    write: Callable[[Iterable[Mapping[str, Any]]], None],
) -> list[str]:
    """Measures everything that the cell has, and hands out its rows; returns what was left out. Collective.

    Args:
        cell: of the group's world size and this kind of device.
        group: the ranks.
        device: of this one.
        write: takes the rows of rank 0, whose times are those of the slowest rank; other ranks have none.
    """
    rows: list[dict[str, Any]] = []
    prober = Prober(group, device, cell.threads, rows.append, host_only=cell.peer_access is False)
    prober.run(cell.seconds)
    if group.rank == 0:
        # Recorded with the samples: the report makes a machine file of both, on whatever machine it runs.
        facts = with_detected(rows[0]["facts"], read_facts(), datetime.now().astimezone().date().isoformat())
        write([{"facts": facts}, *rows[1:]])
    return [row["note"] for row in rows if "note" in row]
