#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy on the given files, on the .cpp files that differ from a
# commit, or on all (half an hour on two cores). Needs a build folder for its compile_commands.json; only
# generated files need to be built.
#
#   tools/ci/tidy.sh all | since COMMIT | FILE...
#   BUILD=build CLANG_TIDY=clang-tidy-14 tools/ci/tidy.sh since main
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/setup/packages.sh

build=${BUILD:-build-tidy}
tidy=${CLANG_TIDY:-$(compgen -c clang-tidy | grep -E '^clang-tidy(-[0-9]+)?$' | sort -V | head -n 1)}
[ -n "$tidy" ] || die "no clang-tidy here: apt-get install clang-tidy"
case ${1:-} in
  "") echo "usage: $0 all | since COMMIT | FILE..." >&2; exit 2 ;;
  all) mapfile -t files < <(git ls-files '*.cpp') ;;
  since) mapfile -t files < <(git diff --name-only --diff-filter=d "${2:?which commit?}" -- '*.cpp') ;;
  *) files=("$@") ;;
esac
if [ ! -f "$build/compile_commands.json" ]; then
  cmake -G Ninja -B "$build" -DPRECBENCH_CUDA=OFF >/dev/null || die "CMake could not configure $build"
fi
cmake --build "$build" --target precbench_build_info >/dev/null
# Files that this build does not compile (CUDA device, fuzz targets) have no compile command.
known=()
for file in "${files[@]}"; do
  ! grep -qF "\"file\": \"$PWD/$file\"" "$build/compile_commands.json" || known+=("$file")
done
echo "$tidy over ${#known[@]} files, ${#files[@]} named"
[ ${#known[@]} -gt 0 ] || exit 0
printf '%s\0' "${known[@]}" | xargs -0 -n 1 -P "$(jobs)" "$tidy" --quiet -p "$build" \
  --extra-arg=-Wno-unknown-warning-option  # the command may be for GCC
