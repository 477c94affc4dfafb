#!/usr/bin/env python3
"""Measures how fast a checkpoint is written, compared with dd in the same folder, and its memory usage.

  checkpoint_speed.py build/precbench FOLDER --model llama3.2-1b --layers 4 --device cpu --seq 64 --batch 1

The options are those of a case. Runs three rounds ($TURNS) of: one step and a checkpoint, timed from its
first file to its final name; then dd of its files with conv=fdatasync. dd copies the same bytes, since a disk
may be faster with zeros, from the page cache, and at most 32 GiB per file. FOLDER needs space for two
checkpoints, or one and 32 GiB, and is left empty. Prints GB/s of each and the ratio of the means, and the
run's memory according to driver or system, compared with a run without a checkpoint.
"""
import json, os, pathlib, shutil, statistics, subprocess, sys, time

TURNS = int(os.environ.get("TURNS", "3"))
BLOCK, MOST_BLOCKS = 4 << 20, 8192  # dd's block size and limit: 32 GiB
PARTIAL = ".partial"  # suffix of an incomplete checkpoint


def memory_of(out):
    record = json.loads((out / "records.jsonl").read_text())
    if record["status"] != "ok":
        sys.exit(f"the case ended {record['status']}: {record['error']}")
    return record["memory"]["driver"] or record["memory"]["measured"]["total"]


def run(command, out, states):
    """Returns the seconds that the checkpoint took (0: there was none), and memory."""
    shutil.rmtree(out, ignore_errors=True)
    process = subprocess.Popen([*command, "--out", str(out)])
    begin, seconds = None, 0.0
    while process.poll() is None:
        time.sleep(0.002)
        partial = any(states.rglob("*" + PARTIAL)) if states.exists() else False
        if partial and begin is None:
            begin = time.monotonic()
        if begin is not None and not partial and not seconds:
            seconds = time.monotonic() - begin
    return seconds, memory_of(out)


def dd(states, copy):
    """Returns GB/s of dd over the same files."""
    seconds = size = 0
    for path in states.rglob("*"):
        if path.is_file():
            begin = time.monotonic()
            subprocess.run(["dd", f"if={path}", f"of={copy}", f"bs={BLOCK}", f"count={MOST_BLOCKS}", "conv=fdatasync", "status=none"],
                           check=True)
            seconds += time.monotonic() - begin
            size += copy.stat().st_size
            copy.unlink()
    return size / seconds / 1e9


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    program, folder, options = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    out, states = folder / "run", folder / "states"
    command = [program, "sweep", "--recipe", "bf16", *options, "--steps", "1", "--quiet"]
    _, without = run(command, out, states)
    ours, theirs = [], []
    for _ in range(TURNS):
        seconds, memory = run([*command, "--checkpoint-every", "1", "--checkpoint-dir", str(states)], out, states)
        size = sum(path.stat().st_size for path in states.rglob("*") if path.is_file())
        ours.append(size / seconds / 1e9)
        theirs.append(dd(states, folder / "copy"))
        shutil.rmtree(states)
        print(f"{size / 1e9:.2f} GB: checkpoint {ours[-1]:.2f} GB/s, dd {theirs[-1]:.2f} GB/s; "
              f"memory {memory / 1e9:.3f} GB, without {without / 1e9:.3f}", flush=True)
    shutil.rmtree(out)
    print(f"over dd: {statistics.mean(ours) / statistics.mean(theirs):.2f}x")


main()
