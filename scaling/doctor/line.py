"""One line of the doctor's: what was looked at, how it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scaling.files.texts import folded

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class CheckResult:
    name: str  # what was looked at
    state: State  # "ok"; "warning", studies run but something is missing or slow; "error", studies fail
    text: str  # what was found
    fix: str = ""  # what to do; empty where nothing is to be done

    def describe(self) -> str:
        text = folded(f"{self.state:8} {self.name:14} ", self.text)
        return f"{text}\n{folded(' ' * 24 + 'fix: ', self.fix)}" if self.fix else text


def ok(name: str, text: str) -> CheckResult:
    return CheckResult(name, "ok", text)


def warning(name: str, text: str, fix: str = "") -> CheckResult:
    return CheckResult(name, "warning", text, fix)


def failure(name: str, text: str, fix: str) -> CheckResult:
    return CheckResult(name, "error", text, fix)
