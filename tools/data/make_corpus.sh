#!/usr/bin/env bash
# Makes a corpus of realistic size from text in Debian: the sources and documentation of Linux 6.1, as tokens
# of a BPE trained on it. Deterministic for one version of the package; checksums are printed and kept.
#
#   tools/data/make_corpus.sh OUT [tokens, default all]      writes OUT/linux.u16, OUT/linux.eval.u16 (1% of the files),
#                                                            OUT/linux.json and OUT/tokenizer.json
#
# VOCAB=16384 sets the vocabulary. VOCAB=bytes keeps the text as it is, in OUT/linux.txt and
# OUT/linux.eval.txt, for models with byte tokens. PYTHON sets the interpreter; without one, a virtual
# environment is created in OUT/.venv (tools/setup/python_packages.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,10p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
limit=()
[ -z "${2:-}" ] || limit=(--tokens "$2")

[ -n "${PYTHON:-}" ] || PYTHON=$("$here/../setup/python_packages.sh" "$out/.venv")

work=$out/.work
mkdir -p "$work"
cd "$work"
if [ ! -d source ]; then
  command -v apt-get >/dev/null || { echo "$0: needs apt-get, which fetches linux-source-6.1" >&2; exit 2; }
  ls linux-source-6.1_*.deb >/dev/null 2>&1 || apt-get download linux-source-6.1
  rm -rf package unpacked && mkdir package unpacked
  dpkg-deb --extract linux-source-6.1_*.deb package
  tar -xf package/usr/src/linux-source-6.1.tar.xz -C unpacked
  mv unpacked source
  rm -rf package
fi
# Prose and code in an order that mixes the folders and depends only on the names.
(cd source && find . -type f \( -name '*.c' -o -name '*.h' -o -name '*.rst' -o -name '*.txt' -o -name '*.S' -o -name '*.py' \
  -o -name '*.dts' -o -name '*.dtsi' -o -name 'Kconfig*' -o -name '*.yaml' \) -size -512k -print0) |
  tr "\0" "\n" | LC_ALL=C sort >names
"$PYTHON" - "$work" >list <<'PYTHON'
import hashlib, pathlib, sys
work = pathlib.Path(sys.argv[1])
names = (work / "names").read_text().splitlines()
names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
print("\n".join(str(work / "source" / name) for name in names))
PYTHON
tokenizer=$out/tokenizer.json
if [ "${VOCAB:-}" = bytes ]; then
  tokenizer=bytes
elif [ ! -f "$tokenizer" ]; then
  "$PYTHON" "$here/train_bpe.py" --vocab "${VOCAB:-16384}" --out "$tokenizer" @list
fi
"$PYTHON" "$here/tokenize_text.py" --tokenizer "$tokenizer" --out "$out/linux" "${limit[@]}" @list
[ "$tokenizer" = bytes ] || sha256sum "$tokenizer"
