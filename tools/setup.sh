#!/usr/bin/env bash
# Brings a fresh Debian 12/13 or Ubuntu 22.04/24.04 to a finished build in build/: installs the packages that are
# missing, configures, builds. Called by quickstart.sh and test.sh; does nothing that is done already.
#
#   tools/setup.sh [cmake options]         e.g. -DPRECBENCH_WERROR=ON
#
# Where nvidia-smi shows a GPU the CUDA device is built too, if a CUDA toolkit (nvcc) is installed. Elsewhere it is
# left out, because its kernels take minutes to compile; -DPRECBENCH_CUDA=ON builds it all the same.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  echo "$0: $*" >&2
  exit 1
}

# Prints the packages that are not installed. A tool that is there need not have come from a package.
missing_packages() {
  local tool package
  for tool in cmake ninja:ninja-build g++ git; do
    command -v "${tool%:*}" >/dev/null || echo "${tool#*:}"
  done
  for package in ca-certificates nlohmann-json3-dev libcli11-dev libfmt-dev catch2 libopenblas-dev; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

install_packages() {
  local root=() log=build/apt.log
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo here; as root: apt-get install $*"
    root=(sudo)
    [ -t 0 ] || root=(sudo -n)  # with nobody to ask, sudo must not wait for a password
  fi
  # A machine that has just booted may be updating itself: wait for it.
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install --no-install-recommends "$@")
  mkdir -p build
  echo "Installing $* ..."
  # The package lists may be missing or old: only then are they fetched.
  "${install[@]}" >"$log" 2>&1 </dev/null || { "${apt[@]}" update && "${install[@]}"; } >"$log" 2>&1 </dev/null ||
    die "apt-get could not install $*: $(grep -E '^(E:|sudo:)' "$log" | tail -n 1) (all of it: $log)"
}

# As many compilers at a time as there are cores, and 1.5 GiB for each.
jobs() {
  local cores memory_kib limit
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)  # of a container; "max": none
  [[ $limit =~ ^[0-9]+$ ]] && [ $((limit / 1024)) -lt "${memory_kib:-0}" ] && memory_kib=$((limit / 1024))
  local fit=$((${memory_kib:-1572864} / 1572864))
  [ "$fit" -lt "$cores" ] && cores=$fit
  echo $((cores > 0 ? cores : 1))
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
else
  echo "No apt-get here: cmake, ninja, g++, nlohmann_json, CLI11, fmt, Catch2 and OpenBLAS must be installed already"
fi

cuda=OFF
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  cuda=ON
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    tools/fetch_cudnn_frontend.sh || true  # attention has its own kernels
  else
    echo "There is a GPU but no CUDA toolkit: building for the CPU only. Install CUDA 12.4 or newer to use the GPU"
  fi
fi

generator=()
[ -f build/CMakeCache.txt ] || generator=(-G Ninja)
cmake "${generator[@]}" -B build -DPRECBENCH_CUDA=$cuda "$@" || die "CMake could not configure the build"
cmake --build build --parallel "$(jobs)" || die "the build failed"
