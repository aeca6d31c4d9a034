"""A schedule bound to a group, a buffer size and the way its bytes take: sends, peer memory, host memory.

`transport: auto` takes peer memory where all ranks can reach each other's and the study allows it, and sends
elsewhere. `one_kernel` is peer memory too, in one launch where a schedule has a kernel (`execute_fused`): for
small buffers, whose time goes to barriers. `host_memory` is one launch as well, of `stripes` through pinned
memory of the host (`execute_pinned`): for GPUs without access to each other.

A captured exchange is one CUDA graph: below a few MiB the time goes to launches, not to bytes. On CUDA all
ways can be captured; on the CPU there are no graphs, and sums in host memory (`execute_host`) are the
processor's work, which no graph holds, as are messages between workers that share a GPU.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scaling.collectives.execute import Execution
from scaling.collectives.execute_kernels import FusedExecution, PinnedExecution
from scaling.collectives.execute_peer import PeerExecution
from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError
from scaling.process_group import Group

Transport = Literal["auto", "sends", "peer_memory", "one_kernel", "host_memory"]

BY_PEERS = ("peer_memory", "one_kernel")  # Those over memory that other ranks read and write


class RankExchange:
    """One rank's part. Collective to make and to run. `schedule`: between ranks only. `num_elements`,
    `dtype`, `device`: of the flat buffer that it runs on. `captured`: replay a CUDA graph, which needs a
    buffer of its own; None: on CUDA. `buffer`: the tensor that it runs on without a copy; None if any will
    do. `transport`: any but "auto", as decided. ScheduleError: the schedule needs host memory, or `captured`
    is asked for without CUDA, or of a group whose messages go through host memory. LaunchError: peer or
    shared host memory is asked for and cannot be had."""

    def __init__(
        self,
        schedule: Schedule,
        group: Group,
        num_elements: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        transport: Transport = "auto",
        captured: bool | None = None,
    ) -> None:
        if captured and device.type != "cuda":
            raise ScheduleError(
                f"{schedule.name}: captured needs CUDA, the ranks compute on {device.type}; leave it out"
            )
        if captured and group.through_host:
            raise ScheduleError(
                f"{schedule.name}: captured needs messages that a CUDA graph can hold, and those of workers "
                "that share a GPU go through host memory; leave it out"
            )
        idle = group.world_size == 1 or not num_elements
        peer = transport in BY_PEERS or (transport == "auto" and group.can_access_peers(device))
        chosen: Transport = "peer_memory" if transport == "auto" and peer else transport
        self.transport: Transport = "sends" if idle or chosen == "auto" else chosen
        on_device = device.type == "cuda" and not group.through_host
        self.captured = not idle and on_device and captured is not False
        self._group = group
        self._in_place: PeerExecution | FusedExecution | PinnedExecution | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self.buffer: Tensor | None = None
        if self.transport in BY_PEERS:
            memory = group.peer_memory(num_elements, dtype, device)
            execution = FusedExecution if self.transport == "one_kernel" else PeerExecution
            self._in_place = execution(schedule, group, memory)
            self.buffer = memory.local
        elif self.transport == "host_memory":
            self.buffer = torch.zeros(num_elements, dtype=dtype, device=device)
            self._in_place = PinnedExecution(schedule, group, self.buffer)
        else:
            self._execution = Execution(schedule, group.rank, num_elements, dtype, device)
            if self.captured:
                self.buffer = torch.zeros(num_elements, dtype=dtype, device=device)
        if self.captured:
            self._capture()

    @property
    def note(self) -> str:
        """What was decided, for the record of a run."""
        return f"transport: {self.transport}{', captured in a CUDA graph' if self.captured else ''}"

    def run(self, tensor: Tensor) -> Tensor:
        """The schedule on `tensor`; the result is in `buffer` if there is one, else in `tensor`."""
        if self.buffer is None:
            self._execution.run(tensor, self._group)
            return tensor
        if tensor.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(tensor)
        # Inside the capture of a whole step the exchange becomes a part of that graph.
        if self._graph is not None and not torch.cuda.is_current_stream_capturing():
            self._graph.replay()
            self._group.meter.count(*self._metered)
        else:
            self._run_on_buffer()
        return self.buffer

    def _run_on_buffer(self) -> None:
        assert self.buffer is not None
        if self._in_place is not None:
            self._in_place.run()
        else:
            self._execution.run(self.buffer, self._group)

    def _capture(self) -> None:
        meter = self._group.meter
        before = (meter.bytes_sent, meter.messages_sent)
        self._run_on_buffer()  # libraries set themselves up on first use, which cannot be captured
        self._metered = (meter.bytes_sent - before[0], meter.messages_sent - before[1])
        torch.cuda.synchronize()
        self._group.barrier()
        self._graph = torch.cuda.CUDAGraph()
        # Only this thread is kept from other CUDA calls: NCCL's own asks its events at any time.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._run_on_buffer()
        torch.cuda.synchronize()
        self._group.barrier()
        meter.bytes_sent, meter.messages_sent = before
