#!/usr/bin/env bash
# Runs the CUDA ops' tests under compute-sanitizer, at the small sizes of the op tests; needs a GPU and a
# build. Each test is a process of its own, JOBS (default 4) at a time, spread over the GPUs that are visible.
#   memcheck   invalid addresses
#   synccheck  barriers that not all threads reach
#   initcheck  reads of uninitialized memory
#   racecheck  shared-memory races between threads of a block
# Prints a line per test, then one per tool; exit status 1 if one found something or did not finish.
#
# Only our own kernels are watched, not those of cuBLASLt and cuDNN. initcheck must see all writes, so it
# watches all kernels; it skips the tests of cuDNN's attention, one of whose kernels reads uninitialized
# memory. It does not see TMA stores: tests of such kernels fill their outputs first, and sum_parts_kernel,
# which only reads the output of a cuBLASLt GEMM, is skipped.
#
# racecheck does not understand mbarriers in shared memory, at which kernels for Hopper wait for their tiles.
# It skips the attention kernels that use them, and the tests of GEMMs (including route's), in which it fails
# with an internal error. It does not understand barriers of a part of a block either, at which pairs of warps
# of flash_key_side_kernel meet, and reports even accesses separated by __syncthreads. So it skips that
# kernel, except in a build in which all warps meet together: -DCMAKE_CUDA_FLAGS=-DPRECBENCH_BLOCK_BARRIERS,
# with BLOCK_BARRIERS=1 set for this script.
#
#   tools/ci/sanitize_gpu.sh
#   BUILD=build-cuda LIMIT=300 tools/ci/sanitize_gpu.sh racecheck      # one tool, with a limit in seconds
#   ONLY='lion*,embedding copies*' tools/ci/sanitize_gpu.sh            # only these of the tests above
set -euo pipefail
cd "$(dirname "$0")/../.."

tests=${BUILD:-build}/precbench_tests
limit=${LIMIT:-600}
nan="attention: a NaN in one head*"
hopper="hopper attention*"
libraries=("attention: replay from a graph*" "hopper attention: errors are at most 1.1 times*")
gemms=("grouped_matmul*" "route*" "products of*")
grouped=("grouped:*" "blockwise:*")

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
  echo "$0: no compute-sanitizer here; it comes with the CUDA toolkit (cuda-sanitizer, cuda-sanitizer-api)" >&2
  exit 2
}
if [ ! -x "$tests" ]; then
  echo "$0: $tests is not built; run tools/setup/setup.sh, or name the build folder in BUILD" >&2
  exit 2
fi
if why=$("$tests" "fill*" | grep -m 1 -E 'skipped: |No test'); then
  echo "$0: nothing to watch: $why" >&2
  exit 2
fi

# Fail if a pattern matches no test, as after a renaming.
for pattern in "$nan" "$hopper" "${libraries[@]}" "${gemms[@]}" "${grouped[@]}"; do
  found=$("$tests" --list-test-names-only "$pattern" || true)  # its status is their number
  [ -n "$found" ] || { echo "$0: no test is named $pattern" >&2; exit 2; }
done

# Runs one test: watch_test OPTIONS "NUMBER NAME". Leaves NUMBER.done, and NUMBER.failed with its output.
watch_test() {
  local options number=${2%% *} name=${2#* } begun=$SECONDS status=0 left=$((deadline - $(date +%s)))
  eval "options=($1)"
  [ "$left" -gt 0 ] || return 0
  [ "$gpus" -le 1 ] || export CUDA_VISIBLE_DEVICES=$((number % gpus))
  timeout "$left" "$sanitizer" "${options[@]}" --error-exitcode 42 "$tests" \
    "$(sed 's/[\\,[]/\\&/g' <<<"$name")" >"$logs/$number.log" 2>&1 || status=$?
  [ $status -ne 124 ] || return 0
  [ $status -eq 0 ] || mv "$logs/$number.log" "$logs/$number.failed"
  touch "$logs/$number.done"
  echo "$((SECONDS - begun)) s: $name"
}
export -f watch_test
jobs=${JOBS:-4} gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=1  # the caller has chosen

failed=0
[ $# -gt 0 ] || set -- memcheck synccheck initcheck racecheck
for tool in "$@"; do
  logs=$(mktemp -d)
  start=$SECONDS
  options=(--tool "$tool" --report-api-errors no) ops="[gpu][op]"
  [ "$tool" != initcheck ] || options+=(--kernel-name-exclude kernel_substring=sum_parts)
  [ "$tool" = initcheck ] || options+=(--kernel-name kernel_substring=precbench)
  [ "$tool" != racecheck ] || ops+=$(printf '~"%s"' "${gemms[@]}")
  watched=("$ops" "$nan" "\"$hopper\"~\"*cuDNN*\"")
  [ "$tool" = initcheck ] || watched+=("${libraries[@]}")
  [ "$tool" = racecheck ] || watched+=("${grouped[@]}")
  [ "$tool" != racecheck ] || options+=(--kernel-name-exclude kernel_substring=attend_)
  [ "$tool" != racecheck ] || [ -n "${BLOCK_BARRIERS:-}" ] || options+=(--kernel-name-exclude kernel_substring=flash_key_side)
  names() { "$tests" --list-test-names-only "$1" || true; }  # its status is their number
  names "$(IFS=,; echo "${watched[*]}")" >"$logs/names"
  [ -z "${ONLY:-}" ] || names "$ONLY" | grep -Fxf - "$logs/names" >"$logs/only" || true
  [ -z "${ONLY:-}" ] || mv "$logs/only" "$logs/names"
  count=$(grep -c . "$logs/names") || { echo "$0: $tests has no such tests" >&2; exit 2; }
  deadline=$(($(date +%s) + limit))
  export logs deadline tests sanitizer gpus
  status=0
  grep . "$logs/names" | awk '{print NR " " $0}' |
    xargs -d '\n' -P "$jobs" -n 1 bash -c 'watch_test "$@"' watch_test "$(printf '%q ' "${options[@]}")" || status=1
  failures=$(ls "$logs" | grep -c '\.failed$' || true) missed=$((count - $(ls "$logs" | grep -c '\.done$' || true)))
  cat "$logs"/*.failed 2>/dev/null |
    grep -oE 'FAILED.*|Race reported between [^(]*|Invalid [^(]*|Uninitialized .* on access by [a-zA-Z ]*|Uninitialized .* memory read' |
    sort | uniq -c | sort -rn | head -n 30 || true
  if [ "$failures" -gt 0 ]; then
    echo "$tool: $failures of $count tests failed after $((SECONDS - start)) s; their output: $logs/*.failed"
  elif [ "$missed" -gt 0 ]; then
    echo "$tool: $missed of $count tests not finished after $limit s (LIMIT)"
  elif [ $status -ne 0 ]; then
    echo "$tool: could not run"
  else
    echo "$tool: clean after $((SECONDS - start)) s, $count tests"
  fi
  [ $((failures + missed + status)) -eq 0 ] || failed=1
done
exit $failed
