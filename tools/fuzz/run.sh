#!/usr/bin/env bash
# Fuzzes the program's entry points: builds the targets into build-fuzz/ with clang's libFuzzer,
# AddressSanitizer and UndefinedBehaviorSanitizer, runs each for the given time, FUZZ_JOBS at once (default:
# all cores), and prints their numbers of executions.
#
#   tools/fuzz/run.sh [seconds per target, default 60] [target...]      a target is the X of tools/fuzz/X_fuzz.cpp
#
# Exit status 1: a target crashed, leaked, hung or used too much memory. Its input is then in
# build-fuzz/findings/TARGET-*, and build-fuzz/tools/fuzz/fuzz_TARGET FILE reproduces it. New inputs for the
# next run are collected in build-fuzz/corpus/. Skipped with a message if clang is not available.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/setup/packages.sh

# Succeeds if a compiler has everything that the targets need.
can_fuzz() {
  command -v "$1" >/dev/null && "$1" -std=c++20 -fsanitize=fuzzer,address,undefined -x c++ -o build-fuzz/probe - \
    2>/dev/null <<<'#include <string>
      extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }'
}

# Prints the newest clang that can fuzz; installs one if there is none.
find_clang() {
  local compiler version
  for compiler in clang++ $(compgen -c clang++- | sort -Vru); do
    ! can_fuzz "$compiler" || { echo "$compiler"; return; }
  done
  command -v apt-get >/dev/null || return 1
  command -v clang++ >/dev/null || (install_packages clang) >&2 || return 1
  version=$(clang++ -dumpversion)
  can_fuzz clang++ || (install_packages "libclang-rt-${version%%.*}-dev") >&2 || return 1
  ! can_fuzz clang++ || echo clang++
}

# Replaces this process by one target, which ends by itself; its log is in build-fuzz/log/.
fuzz() {
  local target=$1 seconds=$2 longest=4096 seeds=(tools/fuzz/corpus/"$1")
  case $target in
    record | report | check) longest=65536 seeds=(tools/fuzz/corpus/records) ;;
    history) longest=65536 seeds+=(tools/fuzz/corpus/records) ;;
    trace) longest=65536 ;;
    import) longest=16384 ;;
    sweep_file | recipe) seeds+=(bench/sweeps) ;;
  esac
  mkdir -p "build-fuzz/corpus/$target"
  TMPDIR=$work UBSAN_OPTIONS=print_stacktrace=1 exec "build-fuzz/tools/fuzz/fuzz_$target" \
    "build-fuzz/corpus/$target" "${seeds[@]}" -max_total_time="$seconds" -max_len=$longest \
    -timeout=10 -rss_limit_mb=2048 -close_fd_mask=3 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/findings/$target-" >"build-fuzz/log/$target" 2>&1
}

mkdir -p build-fuzz/findings build-fuzz/log
seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] && [ "$seconds" -gt 0 ] || die "$seconds: not a number of seconds"
shift || true
mapfile -t all < <(basename -s _fuzz.cpp -a tools/fuzz/*_fuzz.cpp)
targets=("$@")
[ $# -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [ -f "tools/fuzz/${target}_fuzz.cpp" ] || die "$target: no such target; there are ${all[*]}"
done

clang=$(find_clang || true)
[ -n "$clang" ] || { echo "Fuzzing skipped: no clang with libFuzzer here, and none could be installed"; exit 0; }
cmake -G Ninja -B build-fuzz -DPRECBENCH_FUZZ=ON -DCMAKE_CXX_COMPILER="$clang" >build-fuzz/log/cmake ||
  die "CMake could not configure the targets: build-fuzz/log/cmake"
ninja -C build-fuzz -j "$(jobs)" "${targets[@]/#/fuzz_}" || die "the targets could not be built"

work=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/precbench-fuzz-XXXXXX")
declare -A running=()
# The targets end with this script.
trap 'kill "${!running[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
failed=0
# Waits for one of the running targets and prints its result.
finish_one() {
  local pid status=0 target log executions
  wait -n -p pid "${!running[@]}" || status=$?
  target=${running[$pid]} log=build-fuzz/log/${running[$pid]}
  unset "running[$pid]"
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  printf '%-18s %12s executions' "$target" "${executions:-?}"
  [ $status -eq 0 ] && { echo; return; }
  failed=$((failed + 1))
  echo ", and a finding (status $status, all of it in $log):"
  grep -E '^SUMMARY|runtime error|^artifact_prefix' "$log" || tail -n 3 "$log"
}
for target in "${targets[@]}"; do
  [ ${#running[@]} -lt "${FUZZ_JOBS:-$(nproc)}" ] || finish_one
  fuzz "$target" "$seconds" &
  running[$!]=$target
done
while [ ${#running[@]} -gt 0 ]; do finish_one; done
echo "fuzzed ${#targets[@]} targets for $seconds s each: $failed with a finding"
[ $failed -eq 0 ]
