#!/usr/bin/env bash
# Builds program and tests with a sanitizer in build-SANITIZER/ and runs the tests, which must be clean.
#
#   tools/ci/sanitize.sh address|thread [test names, tags or patterns of Catch2...]
#
# address: AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer. thread: ThreadSanitizer, since the
# ranks of a case are threads. Its build omits OpenMP, whose barriers it does not understand and would report
# in every parallel loop.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/setup/packages.sh

sanitizer=${1:-}
[[ $sanitizer =~ ^(address|thread)$ ]] || { echo "usage: $0 address|thread [tests]" >&2; exit 2; }
shift
build=build-$sanitizer
export OMP_WAIT_POLICY=passive
export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=second_deadlock_stack=1
export LSAN_OPTIONS=suppressions=$PWD/tools/ci/leaks.supp:print_suppressions=0

generator=()
[ -f "$build/CMakeCache.txt" ] || generator=(-G Ninja)
cmake "${generator[@]}" -B "$build" -DPRECBENCH_CUDA=OFF -DPRECBENCH_SANITIZE="$sanitizer" -DPRECBENCH_UNITY=ON \
  -DPRECBENCH_BUILD_TESTS=ON ||
  die "CMake could not configure the build"
cmake --build "$build" --parallel "$(jobs)" || die "the build failed"
if [ $# -gt 0 ]; then
  "$build/precbench_tests" "$@"
else
  ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" --timeout 7200
fi
