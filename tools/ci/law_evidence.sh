#!/usr/bin/env bash
# Writes results/law/evidence.csv, the loss gaps that the law of tools/law is fitted to, from the records under results/.
#
#   tools/ci/law_evidence.sh            writes it; build again afterwards, because it is part of the program
#   tools/ci/law_evidence.sh --check    fails if it is not what the records say
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
  "") write=1 ;;
  --check) write= ;;
  *) sed -n '2,5p' "$0" >&2; exit 2 ;;
esac

# The records as one folder. Predictions and baselines of check have no losses of their own; causes-smollm2- are further
# forks on the text that deployment-smollm2 has (tools/trained/causes), except for those on prose; recipes of COAT's study are none of
# the program's, and causes-qwen-1.5b-code lacks one of three BF16 runs. Fine-tuning (tuned-, lora-) has the loss of answers alone.
folder=out/law
rm -rf "$folder"
while read -r records; do
  mkdir -p "$(dirname "$folder/${records#results/}")"
  ln -s "$PWD/$records" "$folder/${records#results/}"
done < <(git ls-files --cached --others --exclude-standard 'results/*.jsonl' 'results/*.jsonl.xz' |
  grep -v -e ^results/predicted/ -e ^results/baseline/ -e /tuned- -e /lora- -e '/causes-smollm2-\(base\|coat\|decay\|rewarm\|scales\)' -e /causes-36m-coat \
    -e /causes-qwen-1.5b-code)
build/precbench law --evidence "$folder" >"$folder/evidence.csv"
if [ -n "$write" ]; then
  cp "$folder/evidence.csv" results/law/evidence.csv
elif ! diff results/law/evidence.csv "$folder/evidence.csv"; then
  echo "$0: results/law/evidence.csv is not what the records say; tools/ci/law_evidence.sh writes it" >&2
  exit 1
fi
