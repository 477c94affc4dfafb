#!/usr/bin/env bash
# Checks that results of the CPU device do not depend on the machine (kernels/cpu/README.md). The numeric
# tests must pass with 1, 2 and 4 threads. The sweep of the CPU baseline must give the same bits and pass its
# check with 1, 2 and 4 threads, with every vector width of this CPU, and under the names of CPUs for which
# OpenBLAS has kernels: the program links no BLAS that could choose among them. Its losses and gradient norms must be
# those whose hash stands below, whatever compiler and system built the program.
#
#   tools/ci/same_bits.sh [PRECBENCH...]     after a build in build/; takes some minutes on two cores
#
# PRECBENCH: more programs, as from builds by other compilers, which must give the same bits.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_WAIT_POLICY=passive
# Hash of the losses and gradient norms of all cases (see below). An intended change of the numerics changes it.
export SAME_BITS=fbf31876ef00a544

if ldd build/precbench | grep -i blas; then
  echo "$0: the program is linked with a BLAS, whose rounding differs by CPU" >&2
  exit 1
fi

# Tests that compare bits or counts between different work splits, and the ops below them.
numeric="[gemm],[matmul],[threads],[ep]~[checkpoint]~[session],[amax]~[session],[rank]~[gpu],measure_fidelity: route flips increase with fewer mantissa bits"
names() { build/precbench_tests --list-test-names-only "$numeric" | grep -c . || true; }
(( $(names) > 50 )) || { echo "$0: the filter finds too few tests" >&2; exit 1; }

widths=(128)
grep -qw avx2 /proc/cpuinfo && widths+=(256)
grep -qw avx512f /proc/cpuinfo && widths+=(512)

# check NAME [PRECBENCH]: runs and checks the baseline's sweep in this environment, and keeps it as out/same-bits/NAME.
check() {
  "${2:-build/precbench}" sweep --config bench/sweeps/baseline-cpu.toml --fresh --quiet --out "out/same-bits/$1"
  build/precbench check --baseline results/baseline/cpu-tiny.jsonl "out/same-bits/$1" --tokens-per-s off --loss 0.1% --numerics \
    > "out/same-bits/$1/check.txt" || { cat "out/same-bits/$1/check.txt"; exit 1; }
}
export -f check

# Every setting has another name of a CPU: if any of the three matters, the bits of two settings differ.
rm -rf out/same-bits
cores=(Nehalem Sandybridge Haswell Zen SkylakeX)
{
  for bits in "${widths[@]}"; do
    echo "OMP_NUM_THREADS=1 PRECBENCH_VECTOR_BITS=$bits OPENBLAS_CORETYPE=${cores[0]} check threads-1-bits-$bits-${cores[0]}"
    cores=("${cores[@]:1}")
  done
  echo "OMP_NUM_THREADS=4 OPENBLAS_CORETYPE=${cores[0]} check threads-4-${cores[0]}"
  for core in "${cores[@]:1}"; do
    echo "OMP_NUM_THREADS=2 OPENBLAS_CORETYPE=$core check threads-2-$core"
  done
  number=0
  for program in "$@"; do
    number=$((number + 1))
    echo "check program-$number $(printf %q "$program")"
  done
} | tools/ci/at_once.sh
python3 - <<'END'
import hashlib, json, os, pathlib, platform, sys

def numbers(folder):
    rows = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [[row["case"]["recipe"], row["training"], row["quantization"]] for row in rows]

folders = sorted(pathlib.Path("out/same-bits").iterdir())
first = numbers(folders[0])
different = [folder.name for folder in folders if numbers(folder) != first]
print(f"{len(first)} cases in {len(folders)} settings")
if different:
    sys.exit(f"other bits than {folders[0].name}: {', '.join(different)}")
losses = sorted([recipe, training["loss"], training["grad_norm"]] for recipe, training, _ in first)
digest = hashlib.sha256(json.dumps(losses).encode()).hexdigest()[:16]
if digest != os.environ["SAME_BITS"] and platform.machine() == "x86_64":
    sys.exit(f"the losses are not those of other compilers and systems: hash {digest}, not {os.environ['SAME_BITS']}")
END

# All tests in one process, whose memory must not grow from test to test. tools/test.sh uses one
# thread per processor.
python3 - "$numeric" <<'END'
import os, subprocess, sys, tempfile

MOST_GIB = 4
running = {}
for threads in {1, 2, 4} - {os.cpu_count()}:
    log = tempfile.TemporaryFile()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(["build/precbench_tests", sys.argv[1]], env=environment, stdout=log, stderr=log)
    running[threads] = process, log
failed = False
for threads, (process, log) in running.items():
    status, usage = os.wait4(process.pid, 0)[1:]
    status, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss / 2**20
    log.seek(0)
    print(log.read().decode(errors="replace"))
    print(f"{threads} threads: exit status {status}, at most {peak:.2f} GiB in one process", flush=True)
    failed |= status != 0 or peak > MOST_GIB
sys.exit(failed)
END
