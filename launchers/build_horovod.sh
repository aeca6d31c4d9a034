#!/usr/bin/env bash
# Builds Horovod 0.28.1 against the torch of a Python environment, installs it there, and tries it with two processes.
#
#   launchers/build_horovod.sh [PYTHON]                              over Gloo: needs no MPI
#   HOROVOD_WITH_MPI=1 launchers/build_horovod.sh [PYTHON]           also over the MPI whose mpicxx is on the PATH
#   HOROVOD_GPU_OPERATIONS=NCCL launchers/build_horovod.sh [PYTHON]  also NCCL between GPUs; needs nvcc
#
# PYTHON (python3 unless given) has torch and numpy. The wheel is kept in the user's cache (XDG_CACHE_HOME) under the
# versions it belongs to: another torch or Python means another build. It takes about five minutes on two cores.
set -euo pipefail

version=0.28.1
python=${1:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() { echo "error: $*" >&2; exit 1; }
say() { echo "horovod: $*" >&2; }

"$python" -c 'import numpy, torch' 2>/dev/null || die "$python has no torch and numpy; install them first"

# What a build depends on is its name in the cache.
name=$("$python" - <<'PYTHON'
import platform, sys, torch
print(f"torch{torch.__version__}-cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}")
PYTHON
)
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
name=$version-$name-gloo
if [ "${HOROVOD_WITH_MPI:-}" = 1 ]; then
  command -v mpicxx >/dev/null || die "HOROVOD_WITH_MPI=1 needs mpicxx (Debian: apt-get install libopenmpi-dev)"
  name=$name-mpi$(mpicxx -show | cksum | cut -d' ' -f1)
else
  export HOROVOD_WITHOUT_MPI=1
fi
if [ -n "${HOROVOD_GPU_OPERATIONS:-}" ]; then
  name=$name-$(echo "$HOROVOD_GPU_OPERATIONS" | tr '[:upper:]' '[:lower:]')
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/scaling-study/horovod/$name

# Compiler, build tools and Python's headers, where they are missing and may be installed.
require_tools() {
  local missing=() headers
  for tool in g++ make cmake; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -e "$headers/Python.h" ] || missing+=("$(basename "$headers")-dev")  # Debian's package of /usr/include/python3.11
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then die "${missing[*]} missing; install them"; fi
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# CUDA's compiler, and the NCCL that torch's own packages bring: headers, and the library under the linker's name.
find_nccl() {
  local nvcc nccl
  nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
  [ -x "$nvcc" ] || nvcc=$(readlink -f "$(command -v nvcc)" || true)
  [ -x "$nvcc" ] || die "HOROVOD_GPU_OPERATIONS=$HOROVOD_GPU_OPERATIONS needs CUDA's nvcc; set CUDA_HOME"
  CUDA_HOME=$(dirname "$(dirname "$nvcc")")
  export CUDA_HOME HOROVOD_CUDA_HOME=$CUDA_HOME PATH=$CUDA_HOME/bin:$PATH
  nccl=$("$python" -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])') \
    || die "torch's package of NCCL (nvidia-nccl-cu...) is not there: its headers are needed"
  mkdir -p "$work/nccl"
  ln -sf "$nccl/lib/libnccl.so.2" "$work/nccl/libnccl.so"
  export HOROVOD_NCCL_INCLUDE=$nccl/include HOROVOD_NCCL_LIB=$work/nccl HOROVOD_NCCL_LINK=SHARED
  if [ -z "${HOROVOD_BUILD_CUDA_CC_LIST:-}" ]; then
    HOROVOD_BUILD_CUDA_CC_LIST=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
    export HOROVOD_BUILD_CUDA_CC_LIST
  fi
}

build() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  require_tools
  "$python" -m pip install --disable-pip-version-check --quiet setuptools wheel packaging cffi cloudpickle psutil pyyaml
  if [ -n "${HOROVOD_GPU_OPERATIONS:-}" ]; then find_nccl; fi
  mkdir -p "$cache"
  say "building $name, some minutes"
  # pip's own cache goes by the version alone and not by these settings. CMake 4 refuses files as old as Gloo's.
  if ! env MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 CMAKE_TOOLCHAIN_FILE="$here/horovod_toolchain.cmake" \
    "$python" -m pip wheel --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps --verbose \
    --wheel-dir "$work/wheel" "${HOROVOD_SOURCE:-horovod==$version}" >"$cache/build.log" 2>&1; then
    grep -E -m 20 -A 3 'error:|Error at' "$cache/build.log" >&2 || true
    die "the build failed; what it printed is in $cache/build.log"
  fi
  mv "$work"/wheel/horovod-*.whl "$cache/"
}

wheels() { find "$cache" -maxdepth 1 -name 'horovod-*.whl' 2>/dev/null; }

if [ -n "$(wheels)" ]; then say "taken from $cache"; else build; fi
wheel=$(wheels | head -n 1)
"$python" -m pip install --disable-pip-version-check --quiet --force-reinstall --no-deps "$wheel"
"$python" -m pip install --disable-pip-version-check --quiet cloudpickle psutil pyyaml packaging cffi

say "two processes"
"$python" -m horovod.runner.launch -np 2 --gloo "$python" -c '
import os, torch, horovod.torch as hvd
hvd.init()
assert hvd.size() == 2, f"a world of {hvd.size()}"
device = "cpu"
if os.environ.get("HOROVOD_GPU_OPERATIONS") == "NCCL":
    assert hvd.nccl_built(), "built without NCCL"
if torch.cuda.device_count() > 1 and hvd.nccl_built():
    torch.cuda.set_device(hvd.local_rank())
    device = "cuda"
mean = hvd.allreduce(torch.arange(8.0, device=device) * (hvd.rank() + 1), name="smoke")
assert mean.tolist() == [1.5 * value for value in range(8)], mean
hvd.shutdown()
'
say "works: $wheel"
