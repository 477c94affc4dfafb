#!/usr/bin/env python3
"""Runs the tests that need a GPU, each in a process of its own, several at a time on every GPU.

    tools/ci/gpu_tests.py [--tests build/precbench_tests] [--jobs 5] [--only FILTER] [--log FILE]

Tests of several GPUs run afterwards, one at a time, with all of them. A test that ran out of memory beside others runs once
more alone, because tests that fill the GPU's memory disturb each other. If FILE is the log of an earlier run, the tests that
took longest there start first. Prints the output of every failure and a summary; exit status 1 if a test fails, 2 if there is
no GPU or no test.
"""
import argparse
import os
import queue
import re
import subprocess
import sys
import threading
import time

SEVERAL = "[gpu][comm],[gpu][rank],[gpu][ep]"
NO_MEMORY = "out of memory"  # in the output of a test that other tests left too little
LIMIT_S = 1800  # ends hanging tests; nothing else takes this long


def listed(tests, filter_):
    """Returns the names of the tests that the filter selects."""
    output = subprocess.run([tests, "--list-test-names-only", filter_], capture_output=True, text=True).stdout
    return [line for line in output.splitlines() if line.strip()]


def gpus_here():
    """Returns the indices of the GPUs that may be used."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu]
    try:
        output = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return []
    return [str(index) for index, line in enumerate(output.splitlines()) if line.startswith("GPU")]


def run(tests, name, gpus, threads):
    """Runs one test. Returns whether it passed, its output, and its duration."""
    pattern = "".join("\\" + c if c in "\\,[" else c for c in name)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "OMP_NUM_THREADS": str(threads),
                   "OMP_WAIT_POLICY": "passive",
                   # Not as clients of an MPS daemon: some tests plant kernel errors, which end all of its clients.
                   "CUDA_MPS_PIPE_DIRECTORY": os.path.join(os.devnull, "none")}
    begun = time.monotonic()
    try:
        process = subprocess.run([tests, pattern], capture_output=True, text=True, env=environment, timeout=LIMIT_S)
        passed, output = process.returncode == 0, process.stdout + process.stderr
    except subprocess.TimeoutExpired as hung:
        passed, output = False, f"not finished after {LIMIT_S} s\n{(hung.stdout or b'').decode(errors='replace')}"
    return passed, output, time.monotonic() - begun


def durations(log):
    """Returns the seconds that each test took in an earlier run; none if there is no log."""
    try:
        with open(log, encoding="utf-8") as lines:
            found = (re.match(r"(?:ok|FAILED) ([0-9.]+) s: (.*)", line) for line in lines)
            return {match[2]: float(match[1]) for match in found if match}
    except OSError:
        return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", default="build/precbench_tests", help="the program (default build/precbench_tests)")
    parser.add_argument("--jobs", type=int, default=5, help="tests at a time on each GPU (default 5)")
    parser.add_argument("--only", default="[gpu]", help="filter of Catch2 for the tests (default [gpu])")
    parser.add_argument("--log", default=os.devnull, help="file for a line per test and the output of failed ones")
    arguments = parser.parse_args()
    gpus = gpus_here()
    several = set(listed(arguments.tests, SEVERAL))
    names = listed(arguments.tests, arguments.only)
    if not gpus or not names:
        why = "no GPU here" if not gpus else f"{arguments.tests} has no test {arguments.only}"
        print(f"{sys.argv[0]}: {why}", file=sys.stderr)
        return 2
    threads = max(1, (os.cpu_count() or 1) // (arguments.jobs * len(gpus)))
    waiting, failed, lock = queue.Queue(), [], threading.Lock()
    earlier = durations(arguments.log)
    for name in sorted(names, key=lambda name: -earlier.get(name, LIMIT_S)):
        if name not in several:
            waiting.put(name)
    begun = time.monotonic()
    with open(arguments.log, "w", encoding="utf-8") as log:

        def record(name, result):
            passed, output, seconds = result
            log.write(f"{'ok' if passed else 'FAILED'} {seconds:.1f} s: {name}\n" + ("" if passed else output))
            log.flush()
            return passed

        def work(gpu):
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                result = run(arguments.tests, name, [gpu], threads)
                with lock:
                    if not record(name, result):
                        failed.append((name, result[1]))
                        print(f"failed beside others: {name}\n{result[1]}")

        workers = [threading.Thread(target=work, args=(gpu,)) for gpu in gpus for _ in range(arguments.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        still = [name for name, output in failed if NO_MEMORY not in output]
        alone = [name for name, output in failed if NO_MEMORY in output]
        for name in alone + [name for name in names if name in several]:
            result = run(arguments.tests, name, gpus if name in several else gpus[:1], os.cpu_count() or 1)
            if not record(name, result):
                still.append(name)
                print(result[1])
    for name in still:
        print(f"FAILED: {name}")
    print(f"{len(names)} tests on {len(gpus)} GPU{'s' if len(gpus) > 1 else ''} in {time.monotonic() - begun:.0f} s: "
          f"{len(still)} failed" + (f", {len(alone)} lacked memory beside others" if alone else ""))
    return 1 if still else 0


if __name__ == "__main__":
    sys.exit(main())
