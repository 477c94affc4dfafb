#!/usr/bin/env bash
# Creates a virtual environment in build/python with the packages of the scripts in tools/data and
# tools/trained, and prints the path of its interpreter. The program itself needs no Python.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=(gguf==0.19.0 tokenizers==0.23.3 transformers==5.24.0 jinja2==3.1.6)
python=build/python/bin/python
if ! "$python" -c 'import gguf, tokenizers, transformers, jinja2' 2>/dev/null; then
  { python3 -m venv build/python && "$python" -m pip install --quiet "${packages[@]}"; } >&2 ||
    { echo "$0: could not install ${packages[*]} in build/python" >&2; exit 1; }
fi
echo "$PWD/$python"
