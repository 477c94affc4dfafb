#!/usr/bin/env python3
"""Runs one sweep in several processes, as torchrun would start them, and injects a fault into one or between them.

    tools/fuzz/inject_faults.py [faults, default 10] [--seed N] [--program build/precbench_fault_node]
    tools/fuzz/inject_faults.py 4 --program build/precbench --processes 2 --kind "kill a case"      on two GPUs
    tools/fuzz/inject_faults.py 4 --processes 2 --tensor 2      tensor ranks

Processes and their cases are killed, or stopped for a while or forever; strangers send garbage to the port during the
rendezvous; the connection of one process runs through a proxy that hangs up. Every sweep must end within a bound and
leave no process. Faults that only disturb (a temporary stop, a stranger) must change nothing: exit status 0, all rows,
and no more delay by a stranger than a busy machine explains. After other faults the same command must complete all rows
once all processes are restarted. Traffic stays on 127.0.0.1. Exit status 1 if any check fails.
"""
import json
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time

from fault_injection import FaultInjection, command_line, kill, rows

CASES = 5
BOUND_S = 1800  # ends hanging processes; nothing else takes this long on any machine
KINDS = ["kill", "kill a case", "stop", "stop a case", "stop and go on", "hang up", "strangers"]
CHANCES = [2, 1, 1, 1, 1, 1, 2]


class Limits:
    """The numbers of processes and of tensor ranks, and limits in seconds, derived from an undisturbed sweep on this machine."""
    processes = 3
    tensor = 1
    timeout = 600  # per case
    delay = 600    # attributable to a stranger

    @classmethod
    def measured(cls, usual_s):
        cls.timeout, cls.delay = max(2, round(usual_s)), max(5, 3 * usual_s)


def sweep():
    return ["sweep", "--device", "cuda", "--gpus", str(Limits.processes), "--seed", f"1-{CASES}", "--steps", "5", "--tensor",
            str(Limits.tensor), "--timeout", str(Limits.timeout), "--quiet"]


def free_port():
    """Returns the first of two consecutive free ports: NCCL's, followed by the program's own."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except (OSError, OverflowError):
                continue


class Proxy(threading.Thread):
    """Forwards bytes between one worker and the coordinator until told to drop them."""

    def __init__(self, coordinator_port):
        super().__init__(daemon=True)
        self.coordinator_port, self.dropped = coordinator_port, threading.Event()
        self.nccl_port = free_port()
        self.listener = socket.create_server(("127.0.0.1", self.nccl_port + 1))
        self.start()

    def run(self):
        end = time.monotonic() + BOUND_S
        while time.monotonic() < end and not self.dropped.is_set():
            if not select.select([self.listener], [], [], 0.05)[0]:
                continue
            worker = self.listener.accept()[0]
            try:
                coordinator = socket.create_connection(("127.0.0.1", self.coordinator_port))
            except OSError:  # not listening yet: the worker retries
                worker.close()
                continue
            with worker, coordinator:
                self.pass_on({worker: coordinator, coordinator: worker}, end)
        self.listener.close()

    def pass_on(self, other, end):
        while time.monotonic() < end and not self.dropped.is_set():
            for ready in select.select(list(other), [], [], 0.02)[0]:
                try:
                    words = ready.recv(65536)
                    other[ready].sendall(words)
                except OSError:
                    return
                if not words:
                    return


def real_hello(injection, program, folder):
    """Returns the first message that a process of this program sends to any listener."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 1)) as listener:
        engine = {"RANK": "1", "WORLD_SIZE": str(Limits.processes), "LOCAL_RANK": "1",
                  "NCCL_COMM_ID": f"127.0.0.1:{port}", "PRECBENCH_SECRET": secrets.token_hex(16)}
        process = injection.start([program, *sweep(), "--out", folder], f"{folder}.hello.log", engine)
        listener.settimeout(BOUND_S)
        with listener.accept()[0] as worker:
            worker.settimeout(BOUND_S)
            line = worker.makefile().readline()
        kill(process.pid, signal.SIGKILL)
        process.wait()
    return json.loads(line)


def strange_words(chance, real):
    """Returns a stranger's message, with its name. `real`: a hello of this build, whose secret is unknown."""
    def hello(process, of):
        return json.dumps(dict(real, process=process, of=of, host="stranger")).encode() + b"\n"

    depth = 100_000
    return chance.choice([
        ("silence", b""),
        ("random bytes", chance.randbytes(chance.randrange(1, 5000))),
        ("a line without an end", b"x" * 3_000_000),
        ("deep nesting", b'{"a":' + b"[" * depth + b"]" * depth + b',"b":1,"c":2}\n'),
        ("many keys", b"{" + b",".join(b'"%d":0' % i for i in range(90_000)) + b"}\n"),
        ("a web request", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        ("empty lines", b"\n" * 10_000),
        ("a hello of another sweep", hello(1, Limits.processes + 1)),
        ("a hello of nobody", hello(Limits.processes + 4, Limits.processes)),
        ("a hello of the coordinator", hello(0, Limits.processes)),
        ("a hello without a proof", hello(1, Limits.processes)),
        ("a hello with a wrong proof", hello(1, Limits.processes) + b'{"proof": "' + b"0" * 64 + b'"}\n'),
        ("a hello of another build", json.dumps(dict(real, commit="0" * 40)).encode() + b"\n"),
    ])


def strangers(port, chance, real):
    """Opens connections that send a message as soon as possible and stay open. Returns its name and the sockets."""
    name, words = strange_words(chance, real)
    count, connected, end = chance.choice([1, 3, 40]), [], time.monotonic() + 5
    while len(connected) < count and time.monotonic() < end:
        try:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=0.2)
        except OSError:
            time.sleep(0.005)
            continue
        connected.append(stranger)
        try:
            stranger.sendall(words)
        except OSError:
            pass  # hung up on, as expected
    return name, connected


class Processes:
    """The processes of a sweep, one per rank. The last one's connection goes through the proxy, if there is one."""

    def __init__(self, injection, program, folder, chance, options=(), proxied=False, hostile=None):
        self.injection, self.folder = injection, folder
        port, self.said = free_port(), None
        self.proxy = Proxy(port + 1) if proxied else None
        secret = secrets.token_hex(16)

        def start(rank, meeting_port):
            engine = {"RANK": str(rank), "WORLD_SIZE": str(Limits.processes), "LOCAL_RANK": str(rank),
                      "NCCL_COMM_ID": f"127.0.0.1:{meeting_port}", "PRECBENCH_SECRET": secret}
            return injection.start([program, *sweep(), "--out", folder, *options], f"{folder}.{rank}.log", engine)

        self.processes = [start(0, port)]
        guests = []
        if hostile:
            self.said, guests = strangers(port + 1, chance, hostile)
        for rank in range(1, Limits.processes):
            last = rank == Limits.processes - 1
            self.processes.append(start(rank, self.proxy.nccl_port if self.proxy and last else port))
        if hostile:
            self.under_way(1, BOUND_S)
        for guest in guests:
            guest.close()

    def under_way(self, count, seconds):
        """Waits for `count` rows; returns False if the sweep ends before."""
        end = time.monotonic() + seconds
        while len(rows(self.folder)) < count and time.monotonic() < end:
            if self.processes[0].poll() is not None:
                return False
            time.sleep(0.01)
        return len(rows(self.folder)) >= count

    def case_of(self, rank):
        """Returns the process that runs a rank's share of a case now, or none."""
        parent = self.processes[rank].pid
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as children:
                return [int(pid) for pid in children.read().split()]
        except OSError:
            return []

    def end(self, what):
        return self.injection.wait(self.processes, BOUND_S, what)


def all_rows(injection, folder, what):
    found = rows(folder)
    seeds = sorted(row["case"]["seed"] for row in found)
    if seeds != list(range(1, CASES + 1)):
        injection.violation(f"{what}: the rows are of the cases {seeds}")
    for row in found:
        if row["status"] != "ok":
            injection.violation(f"{what}: a row is {row['status']}: {row['error']}")


def disturb(injection, program, folder, chance, number, seed, kind, usual_s, hello):
    """Runs one sweep with one fault of a kind. `hello`: of this build, for strangers."""
    begin = time.monotonic()
    what = f"fault {number} (--seed {seed}), {kind}"
    ranks = Processes(injection, program, folder, chance, proxied=kind == "hang up",
                      hostile=hello if kind == "strangers" else None)
    if ranks.said:
        what += f": {ranks.said}"
    rank = chance.randrange(Limits.processes)
    process = ranks.processes[rank].pid
    going = kind == "strangers" or ranks.under_way(1, BOUND_S)
    time.sleep(chance.uniform(0, 0.3))
    if not going:
        injection.violation(f"{what}: it ended, or stood still, before there was a fault")
    elif kind == "kill":
        kill(process, signal.SIGKILL)
    elif kind == "kill a case":
        for case in ranks.case_of(rank):
            kill(case, chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM]))
    elif kind == "stop a case":  # ends by the time limit of the case
        for case in ranks.case_of(rank):
            kill(case, signal.SIGSTOP)
    elif kind == "stop":
        rank = chance.randrange(1, Limits.processes)  # a stopped coordinator is a pause, not an end
        kill(ranks.processes[rank].pid, signal.SIGSTOP)
        what += f" of process {rank}"
        others = [p for p in ranks.processes if p is not ranks.processes[rank]]
        injection.wait(others, BOUND_S, what)
        kill(ranks.processes[rank].pid, signal.SIGCONT)
    elif kind == "stop and go on":
        kill(process, signal.SIGSTOP)
        time.sleep(chance.uniform(0.1, 0.7))
        kill(process, signal.SIGCONT)
    elif kind == "hang up":
        ranks.proxy.dropped.set()
    statuses = ranks.end(what)
    injection.no_orphans(what)
    print(f"{what}: exit statuses {statuses}, rows {[row['error'] or row['status'] for row in rows(folder)]}", flush=True)
    if kind in ("strangers", "stop and go on"):
        if any(statuses):
            injection.violation(f"{what}: exit statuses {statuses}")
        all_rows(injection, folder, what)
    if kind == "strangers" and time.monotonic() - begin > usual_s + Limits.delay:
        injection.violation(f"{what}: it took {time.monotonic() - begin:.1f} s, and {usual_s:.1f} s with nobody there")


def undisturbed(injection, program, folder, chance, what, options=()):
    """Checks that an undisturbed run completes all rows, whatever existed before."""
    statuses = Processes(injection, program, folder, chance, options).end(what)
    injection.no_orphans(what)
    if any(statuses):
        injection.violation(f"{what}: exit statuses {statuses}")
    all_rows(injection, folder, what)


def main():
    def more(parser):
        parser.add_argument("--processes", type=int, default=3, help="ranks, of a GPU each (default 3)")
        parser.add_argument("--tensor", type=int, default=1, help="ranks that divide each matrix (default 1)")
        parser.add_argument("--kind", choices=KINDS, action="append", help="only faults of this kind; repeatable (default all)")

    faults, program, seed, chance, arguments = command_line(__doc__, "faults", 10, "precbench_fault_node", more)
    Limits.processes, Limits.tensor = arguments.processes, arguments.tensor
    injection = FaultInjection()
    begin, kinds = time.monotonic(), {}
    undisturbed(injection, program, os.path.join(injection.folder, "straight"), chance, "straight")
    usual_s = time.monotonic() - begin
    Limits.measured(usual_s)
    hello = real_hello(injection, program, os.path.join(injection.folder, "stranger"))
    for number in range(faults):
        folder = os.path.join(injection.folder, f"sweep{number}")
        if arguments.kind:
            kind = arguments.kind[number % len(arguments.kind)]
        else:
            kind = chance.choices(KINDS, CHANCES)[0]
        disturb(injection, program, folder, chance, number, seed, kind, usual_s, hello)
        kinds[kind] = kinds.get(kind, 0) + 1
        undisturbed(injection, program, folder, chance, f"fault {number} (--seed {seed}), {kind}, the restart",
                    ["--retry-failed"])
        if len(injection.violations) >= 10:
            break
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    sys.exit(injection.finish(f"fault injection: {sum(kinds.values())} faults ({counts}), {time.monotonic() - begin:.0f} s"))


if __name__ == "__main__":
    main()
