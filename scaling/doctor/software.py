"""Versions, and the launchers that can be used here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Callable

import scaling
from scaling.codecs.kernels import OLDEST_TRITON, triton_version, version_problem
from scaling.doctor.line import CheckResult, failure, ok, warning
from scaling.process_group.base import HOW_TO_BRING

OLDEST_TORCH = (2, 6)
ANSWER_LIMIT_S = 20.0

Which = Callable[[str], str | None]
Ask = Callable[[str], str]
Version = Callable[[str], str | None]  # package -> its version, None where it is not installed


def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_line(program: str) -> str:
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((line.strip() for line in answer.stdout.splitlines() if line.strip()), "")


def versions(version: Version = package_version) -> CheckResult:
    torch = version("torch") or "missing"
    python, numpy = platform.python_version(), version("numpy")
    text = f"scaling {scaling.__version__}, Python {python}, torch {torch}, numpy {numpy}"
    numbers = tuple(int(part) for part in torch.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return failure("versions", text, f"torch {oldest} or later is needed: pip install 'torch>={oldest}'")
    return ok("versions", text)


def launchers(which: Which = shutil.which, ask: Ask = version_line) -> CheckResult:
    programs = ["torchrun"]
    for program in ("mpirun", "mpiexec.hydra", "horovodrun", "srun"):
        if path := which(program):
            programs.append(f"{program} ({ask(path) or path})")
    return ok("launchers", ", ".join(programs))


def triton(has_gpus: bool, version: Callable[[], str | None] = triton_version) -> CheckResult:
    installed = version()
    problem = version_problem(installed)
    if problem is None:
        where = "codecs of few bits run as its kernels" if has_gpus else "its kernels need a GPU"
        return ok("Triton", f"{installed}: {where}")
    text = f"{problem}: codecs of few bits run in plain torch operations"
    if not has_gpus:
        return ok("Triton", f"{text}, as they do without a GPU")
    oldest = ".".join(map(str, OLDEST_TRITON))
    return warning("Triton", text, f"pip install 'triton>={oldest}', if this torch allows it")


def mpi(which: Which = shutil.which, version: Version = package_version) -> CheckResult:
    program, package = which("mpirun") or which("mpiexec"), version("mpi4py")
    if program and package:
        return ok("MPI", f"mpi4py {package}, {program}")
    if program or package:
        there, missing = (program, "mpi4py") if program else (f"mpi4py {package}", "mpirun")
        return warning("MPI", f"{there}, but no {missing}", "pip install 'scaling-study[mpi]'")
    return ok("MPI", f"none: {HOW_TO_BRING['mpi']}")


def horovod(has_gpus: bool, version: Version = package_version) -> CheckResult:
    if importlib.util.find_spec("horovod") is None:
        return ok("Horovod", f"none: {HOW_TO_BRING['horovod']}")
    name = f"Horovod {version('horovod')}"
    try:
        import horovod.torch as hvd
    except ImportError as error:
        return warning("Horovod", f"{name} does not fit this torch: {error}", "make horovod")
    built = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built()}
    text = f"{name} over {', '.join(library for library, is_built in built.items() if is_built)}"
    if has_gpus and not built["NCCL"]:
        return warning("Horovod", f"{text}: not on GPUs", "HOROVOD_GPU_OPERATIONS=NCCL make horovod")
    return ok("Horovod", text)
