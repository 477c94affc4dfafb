#!/bin/sh
# Runs a compiler, and fails if ptxas reports that a kernel spills registers, keeps arrays in local memory or
# serializes its wgmma (remarks C75xx), or if -v reports a large stack frame, as from a structure that every
# thread copies there. Each costs most of such a kernel's speed, but is no error for the compiler.
#   refuse_slow_code.sh COMPILER ARGUMENTS...
frame=256 # limit in bytes; smaller frames hold one or two registers, or an array with a dynamic index
log=$("$@" 2>&1)
status=$?
# -v output for every kernel is no remark; remarks begin with a code in brackets.
remarks=$(printf '%s\n' "$log" | grep -v -e '^ptxas info *: [^(]' -e 'bytes stack frame')
[ -z "$remarks" ] || printf '%s\n' "$remarks" >&2
[ $status -eq 0 ] || exit $status
case $remarks in
*'(C75'* | *'Registers are spilled'* | *'Local memory used'*)
  echo "refused: the remarks above" >&2
  exit 1
  ;;
esac
# -v prints two lines per kernel; the first one names it.
printf '%s\n' "$log" | awk -v limit=$frame '
  /^ptxas info .*Function properties for / { name = $NF }
  / bytes stack frame/ && $1 >= limit { printf "refused: a stack frame of %d bytes in %s\n", $1, name; refused = 1 }
  END { exit refused }' >&2
