#!/usr/bin/env python3
"""Kills a small sweep repeatedly at random moments and restarts it: no row may be lost, duplicated or changed.

    tools/fuzz/inject_kills.py [kills, default 40] [--seed N] [--program build/precbench]

Each run of the sweep receives one signal (SIGKILL, SIGTERM or SIGINT), sent to the sweep, the process of its case, both,
or the group. It must end soon, leave no process, and neither lose nor repeat existing rows. Once all rows exist, or after
some runs, the same command runs undisturbed; then every case must have one row, with losses equal to the last digit to
those of an undisturbed sweep. Every third sweep is interleaved. Exit status 1 if any check fails.
"""
import os
import signal
import sys
import time

from fault_injection import FaultInjection, command_line, kill, rows

HANG_S = 1800  # ends hanging processes; nothing else takes this long on any machine
STARTS = 8  # runs of one sweep before it may finish
SWEEP = ["sweep", "--device", "cpu", "--recipe", "bf16,tensorwise,rowwise,mxfp8", "--seed", "1-2", "--seq", "32",
         "--batch", "1", "--steps", "2"]


def finished(folder):
    return {row["id"]: row for row in rows(folder) if row["status"] == "ok"}


def losses(found):
    return {case: row["training"]["loss"] for case, row in found.items()}


def lost(before, now):
    """Returns the rows that have disappeared or changed."""
    return [case for case in before if now.get(case) != before[case]]


def undisturbed(injection, sweep, folder, options, what):
    """Runs the sweep to its end and returns its rows."""
    status = injection.wait([sweep(folder, options)], HANG_S, what)[0]
    if status != 0:
        injection.violation(f"{what}: exit status {status} of the run that nobody disturbed")
    injection.no_orphans(what)
    found = rows(folder)
    ids = [row["id"] for row in found]
    if len(ids) != len(set(ids)):
        injection.violation(f"{what}: {len(ids)} rows of {len(set(ids))} cases")
    for row in found:
        if row["status"] != "ok":
            injection.violation(f"{what}: a row is {row['status']}: {row['error']}")
    return finished(folder)


def hit(injection, process, chance):
    """Sends one signal to one victim."""
    victim = chance.choice(["sweep", "case", "both", "group"])
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    others = [pid for pid in injection.ours() if pid != process.pid]
    if victim == "group":
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
    if victim in ("sweep", "both"):
        kill(process.pid, number)
    if victim in ("case", "both"):
        for pid in others:
            kill(pid, number)
    return f"{signal.Signals(number).name} to {victim}"


def main():
    wanted_kills, program, seed, chance, _ = command_line(__doc__, "kills", 40, "precbench")
    injection = FaultInjection()
    begin = time.monotonic()

    def sweep(folder, options):
        return injection.start([program, *SWEEP, "--out", folder, *options], folder + ".log")

    reference, length = {}, {}
    for mode in ([], ["--interleave"]):
        start = time.monotonic()
        folder = os.path.join(injection.folder, f"straight{len(mode)}")
        reference[bool(mode)] = undisturbed(injection, sweep, folder, mode, "straight")
        length[bool(mode)] = time.monotonic() - start

    kills = sweeps = starts = 0
    while kills < wanted_kills and len(injection.violations) < 10:
        folder = os.path.join(injection.folder, f"sweep{sweeps}")
        mode = ["--interleave"] if sweeps % 3 == 2 else []
        sweeps += 1
        wanted, known = reference[bool(mode)], {}
        for _ in range(STARTS):
            if kills == wanted_kills or len(known) == len(wanted):
                break
            process = sweep(folder, mode)
            starts += 1
            time.sleep(chance.uniform(0, length[bool(mode)] * (1 - len(known) / len(wanted))))
            what = f"sweep {sweeps} (--seed {seed})"
            if process.poll() is None:  # after its end the pid may belong to another process
                what += f", {hit(injection, process, chance)}"
                kills += 1
            injection.wait([process], HANG_S, what)
            injection.no_orphans(what)
            now = finished(folder)
            for case in lost(known, now):
                injection.violation(f"{what}: the row of {case} was there and is not, or is another")
            known = now
        # A case whose process was hit twice may be recorded as crashed.
        found = undisturbed(injection, sweep, folder, [*mode, "--retry-failed"], f"sweep {sweeps} (--seed {seed}), the end")
        if losses(found) != losses(wanted) or lost(known, found):
            injection.violation(f"sweep {sweeps} (--seed {seed}): {len(found)} rows, {len(wanted)} wanted, or other losses")
        if os.path.exists(os.path.join(folder, "records.jsonl.first-runs")):
            injection.violation(f"sweep {sweeps} (--seed {seed}): first runs are left")
    sys.exit(injection.finish(f"kill injection: {kills} kills in {starts} starts of {sweeps} sweeps of {len(reference[False])} "
                          f"cases, {time.monotonic() - begin:.0f} s"))


if __name__ == "__main__":
    main()
