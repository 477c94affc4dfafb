#!/usr/bin/env bash
# Creates a virtual environment with the packages of the scripts in tools/data and tools/trained, and prints the path of
# its interpreter. Every package, its dependencies too, has the version and one of the hashes of python_packages.txt
# (Python 3.10 to 3.13, x86-64 and ARM64). The user's Python stays as it is. The program itself needs no Python.
#
#   tools/setup/python_packages.sh [FOLDER, default build/python]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(realpath --canonicalize-missing "${1:-$root/build/python}")
packages=$root/tools/setup/python_packages.txt
python=$folder/bin/python
# The copy of the list says which packages the environment has; it is written last.
if ! cmp -s "$packages" "$folder/python_packages.txt"; then
  { python3 -m venv "$folder" &&
    "$python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: --require-hashes -r "$packages" &&
    cp "$packages" "$folder/"; } >&2 ||
    { echo "$0: could not install the packages of $packages in $folder" >&2; exit 1; }
fi
echo "$python"
