"""The plans of exchanges of folders that were written before runs recorded them (plan_record.py).

Only for those: what an aggregator sends today is what its own `stages` say, which the worker records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.listing import schedule as schedule_by_name
from scaling.collectives.owners import star
from scaling.collectives.plan_record import ExchangePlan, PlannedExchange, sent_by_pair
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.tree import caffe_tree, tree
from scaling.errors import ScheduleError

BYTES_PER_ELEMENT = 4  # gradients were float32

NATIVE = ("all_reduce",)


_SCHEDULES: dict[str, Callable[[int, Mapping[str, Any]], Schedule]] = {
    "ring": lambda n, values: ring(n, directions=values.get("directions", 1)),
    "tree": lambda n, _: tree(n),
    "schedule": lambda n, values: schedule_by_name(str(values.get("collective")), n),
    "torch_dpt": lambda n, _: star(n),
    "caffe": lambda n, values: caffe_tree(n, int(values.get("gpus_per_board", 1))),
    "host_serial": lambda n, _: host_serial(n),
    "host_parallel": lambda n, _: host_parallel(n),
    "all_reduce": lambda n, _: ring(n),
}  # aggregator -> collective of its whole buffer; the library's all-reduce as a ring


def plan_before_records(
    aggregator: str, parameters: Mapping[str, Any], world_size: int, num_elements: int
) -> ExchangePlan:
    """The plan of an aggregator's exchange as it was then; ScheduleError: it cannot be made."""
    if aggregator not in _SCHEDULES:
        raise ScheduleError("which schedule its bytes follow is not known to the report")
    try:
        schedule = _SCHEDULES[aggregator](world_size, parameters)
    except ScheduleError as error:
        raise ScheduleError(f"its schedule cannot be made: {error}") from None
    part = num_elements * BYTES_PER_ELEMENT / schedule.num_chunks
    num_bytes = sent_by_pair(schedule, [chunk * part for chunk in range(schedule.num_chunks + 1)])
    exchange = PlannedExchange(schedule.name, aggregator in NATIVE, "", len(schedule.steps), num_bytes)
    return ExchangePlan(world_size, (exchange,))
