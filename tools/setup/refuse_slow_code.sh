#!/bin/sh
# Runs a compiler, and fails where ptxas remarks that a kernel spills registers, keeps arrays in local memory or runs its
# wgmma products one after another (remarks C75xx): each costs most of such a kernel's speed, and none is an error to it.
#   refuse_slow_code.sh COMPILER ARGUMENTS...
log=$("$@" 2>&1)
status=$?
[ -z "$log" ] || printf '%s\n' "$log" >&2
[ $status -eq 0 ] || exit $status
case $log in
*'(C75'* | *'Registers are spilled'* | *'Local memory used'*)
  echo "refused: the remarks above" >&2
  exit 1
  ;;
esac
