#!/usr/bin/env bash
# Runs the command lines of standard input, as many at once as there are cores, and prints what each said once it has ended.
# Exit status 123: one of them failed.
#
#   tools/ci/at_once.sh < COMMANDS
set -euo pipefail
# shellcheck disable=SC2016
exec xargs -d '\n' -n 1 -P "$(nproc)" bash -c '
  said=$(bash -euc "$1" 2>&1) || failed=$?
  [ -z "$said" ] || printf "%s\n" "$said"
  [ -z "${failed:-}" ] || { echo "failed with status $failed: $1"; exit 1; }' at_once
