#!/usr/bin/env bash
# Builds in build/ on a fresh Debian 12/13 or Ubuntu 22.04/24.04: installs missing packages, configures,
# builds. Called by quickstart.sh and test.sh; skips steps that are already done.
#
#   tools/setup/setup.sh [--program] [cmake options]         e.g. -DPRECBENCH_WERROR=ON
#
# --program builds precbench without the tests, which take as long again, and installs nothing that only they need. A
# build folder created here joins files of a module (PRECBENCH_UNITY), the fastest way to a first build.
# If nvidia-smi shows a GPU, the CUDA device is built as well, for the GPUs of this machine, provided that a CUDA toolkit (nvcc) is
# installed.
# Otherwise it is left out, because its kernels take minutes to compile; -DPRECBENCH_CUDA=ON builds it anyway.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/setup/packages.sh

target=all tests=ON
[ "${1:-}" != --program ] || { target=precbench tests=AUTO; shift; }

# Prints the packages that are not installed. Existing tools need not come from a package.
missing_packages() {
  local tool package
  local tools=(cmake ninja:ninja-build g++ git) packages=(ca-certificates nlohmann-json3-dev libcli11-dev libfmt-dev liblzma-dev zlib1g-dev libsqlite3-dev)
  [ $target != all ] || { tools+=(python3); packages+=(catch2); }  # some tests run scripts
  for tool in "${tools[@]}"; do
    command -v "${tool%:*}" >/dev/null || echo "${tool#*:}"
  done
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
else
  echo "No apt-get here: cmake, ninja, g++, nlohmann_json, CLI11, fmt, liblzma, zlib and SQLite must be installed already," \
    "and for the tests Catch2 and Python"
fi

cuda=OFF architectures=()
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  cuda=ON
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    tools/setup/fetch_cudnn_frontend.sh || true  # there are own attention kernels
    # A kernel compiles several times as fast for one architecture. GPUs of others run what the default list has for them.
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -u | sed 's/^8\.[06]$/80-real/; s/^8\.9$/89-real/; s/^9\.0$/90a-real/')
    [[ $found == *.* || -z $found ]] || architectures=("-DPRECBENCH_CUDA_ARCHS=${found//$'\n'/;}")
  else
    echo "There is a GPU but no CUDA toolkit: building for the CPU only. Install CUDA 12.4 or newer to use the GPU"
  fi
fi

generator=()
[ -f build/CMakeCache.txt ] || generator=(-G Ninja -DPRECBENCH_UNITY=ON)
cmake "${generator[@]}" -B build -DPRECBENCH_CUDA=$cuda "${architectures[@]}" -DPRECBENCH_BUILD_TESTS=$tests "$@" ||
  die "CMake could not configure the build"
cmake --build build --parallel "$(jobs)" --target "$target" || die "the build failed"
