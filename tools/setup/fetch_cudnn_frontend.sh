#!/usr/bin/env bash
# Fetches cudnn-frontend, the header-only C++ interface to cuDNN's fused attention, into
# build/third_party/cudnn_frontend, where CMake looks for it. Needs Python with pip; no root. The headers come
# from NVIDIA's wheel on the package index, whose hash is in cudnn_frontend.txt, and are equal for all platforms.
# Without network access, fails with one line; the build then uses precbench's own attention kernels.
#
#   tools/setup/fetch_cudnn_frontend.sh [build directory]      default: build
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
package=$root/tools/setup/cudnn_frontend.txt
version=$(sed -n 's/^nvidia-cudnn-frontend==\([0-9.]*\).*/\1/p' "$package")
target=${1:-$root/build}/third_party/cudnn_frontend
wanted="#define CUDNN_FRONTEND_MINOR_VERSION $(cut -d. -f2 <<<"$version")"
if grep -qs "^$wanted\$" "$target/include/cudnn_frontend_version.h"; then
  echo "cudnn-frontend $version is already in $target"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --implementation cp --abi cp312 \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
  --dest "$work" --require-hashes -r "$package" >"$work/log" 2>&1; then
  echo "cudnn-frontend $version could not be downloaded ($(grep . "$work/log" | tail -n 1));" \
    "attention will use precbench's own kernels" >&2
  exit 1
fi

mkdir -p "$target"
python3 - "$work" "$target" <<'PYTHON'
import pathlib, sys, zipfile

work, target = map(pathlib.Path, sys.argv[1:])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    for name in wheel.namelist():
        if name.startswith("include/") and name.endswith((".h", ".hpp")):
            wheel.extract(name, target)
        elif name.rsplit("/", 1)[-1].upper().startswith("LICENSE"):
            (target / "LICENSE").write_bytes(wheel.read(name))
PYTHON
echo "cudnn-frontend $version is in $target"
