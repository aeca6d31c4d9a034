"""What goes wrong in these tests, named in studies as `planted:Plant` and `planted:other_width`."""

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.one_bit import StripedOneBit
from scaling.workloads.base import Model

calls: dict[str, int] = {}
LAST_EXCHANGE = 80


@dataclass(frozen=True)
class Plant(AllReduce):
    """One rank goes wrong in one of its exchanges, once: where it is tried again nothing happens.

    Attributes:
        fault: stop, hold, exit, kill or nan.
        rank: that goes wrong.
        call: of `aggregate`, from 1.
        code: of exit.
        once: a file that is made then.
    """

    name = "plant"
    fault: str = ""
    rank: int = 0
    call: int = 1
    code: int = 0
    once: str = ""

    def aggregate(self, state, gradient, phase=unmarked):
        calls[self.fault] = calls.get(self.fault, 0) + 1
        mean = super().aggregate(state, gradient, phase)
        is_due = calls[self.fault] == self.call and state.group.rank == self.rank
        if is_due and not Path(self.once).exists():
            Path(self.once).touch()
            self._go_wrong()
        if self.fault == "nan" and calls[self.fault] >= self.call:
            mean.fill_(float("nan"))
        return mean

    def _go_wrong(self):
        if self.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.fault == "hold":
            ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock
        elif self.fault == "exit":
            os._exit(self.code)
        elif self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class SlowOneBit(StripedOneBit):
    """1-bit SGD that waits in each exchange, and in a late one for ever, until there is a file.

    Attributes:
        until: the file.
    """

    name = "slow_one_bit"
    until: str = ""

    def exchange(self, *messages):
        calls[self.name] = calls.get(self.name, 0) + 1
        is_last = calls[self.name] > LAST_EXCHANGE
        while not Path(self.until).exists():
            time.sleep(0.03)
            if not is_last:
                break
        super().exchange(*messages)


def _build(shape):
    width = 8 + int(os.environ.get("RANK", "0"))
    return nn.Sequential(nn.Linear(shape.input_shape[0], width), nn.Linear(width, shape.num_classes))


other_width = Model("other_width", _build, shape=None, dataset="synthetic", source="a test", parameters={})
