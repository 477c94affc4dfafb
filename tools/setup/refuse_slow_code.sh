#!/bin/sh
# Runs a compiler, and fails where ptxas remarks that a kernel spills registers, keeps arrays in local memory or runs its
# wgmma products one after another (remarks C75xx), or tells (-v) of a stack frame that a structure needs which every thread
# copies there: each costs most of such a kernel's speed, and none is an error to it.
#   refuse_slow_code.sh COMPILER ARGUMENTS...
frame=256 # bytes from which it is refused; less is a register or two put aside, or an index that only the program knows
log=$("$@" 2>&1)
status=$?
# What -v tells of every kernel is no remark; remarks begin with a code in brackets.
remarks=$(printf '%s\n' "$log" | grep -v -e '^ptxas info *: [^(]' -e 'bytes stack frame')
[ -z "$remarks" ] || printf '%s\n' "$remarks" >&2
[ $status -eq 0 ] || exit $status
case $remarks in
*'(C75'* | *'Registers are spilled'* | *'Local memory used'*)
  echo "refused: the remarks above" >&2
  exit 1
  ;;
esac
# Of a kernel -v has two lines, of which the first names it.
printf '%s\n' "$log" | awk -v limit=$frame '
  /^ptxas info .*Function properties for / { name = $NF }
  / bytes stack frame/ && $1 >= limit { printf "refused: a stack frame of %d bytes in %s\n", $1, name; refused = 1 }
  END { exit refused }' >&2
