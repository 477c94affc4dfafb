#!/usr/bin/env python3
"""Runs sweeps on two hosts: network namespaces of this machine with names, addresses and clocks of their own.

    tools/fuzz/two_hosts.py [--only NAME] [--program build/precbench_fault_node]
    tools/fuzz/two_hosts.py --program build/precbench         cases on two GPUs, one per host, with NCCL over sockets

Packets between the hosts pass a relay, which delays, holds or drops them. A host vanishes by SIGKILL to all of its processes, or
by the loss of its link; then the other one must end the case, leave whole records, and the same command must complete them. With
clocks an hour apart, 50 ms between the hosts, or seconds without a packet, the sweep must go on. Each row must say that its
case had two nodes. Tensor ranks on both hosts must be refused.

Needs root or user namespaces, and /dev/net/tun; without them it says so and ends with exit status 0. With GPUs it then runs
what needs no relay, with two host names on 127.0.0.1. Exit status 1 if any check fails.
"""
import argparse
import collections
import concurrent.futures
import ctypes
import datetime
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from fault_injection import REPOSITORY, FaultInjection, kill, rows

BOUND_S = 600  # ends what hangs
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
PORT = 29500
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
# Shifts the wall clock, and gives a name to a host that has no namespace for it.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char* s = getenv("HOST_CLOCK_S"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t id, struct timespec* t) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  const int r = real(id, t);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) t->tv_sec += shift();
  return r;
}
time_t time(time_t* out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return out ? *out = t.tv_sec : t.tv_sec;
}
int gettimeofday(struct timeval* restrict v, void* restrict zone) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  v->tv_sec = t.tv_sec, v->tv_usec = t.tv_nsec / 1000;
  return 0;
}
int gethostname(char* name, size_t size) {
  static int (*real)(char*, size_t);
  const char* own = getenv("HOST_NAME");
  if (!real) real = dlsym(RTLD_NEXT, "gethostname");
  return own ? snprintf(name, size, "%s", own), 0 : real(name, size);
}
"""
libc = ctypes.CDLL(None, use_errno=True)


def system_call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def set_up_link(name, address=None):
    """Brings a network interface of this namespace up. No `ip` is needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        def ask(request, value):
            fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), value))
        if address:
            for request, text in ((0x8916, address), (0x891C, "255.255.255.0")):  # SIOCSIFADDR, SIOCSIFNETMASK
                ask(request, struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(text)))
            ask(0x8922, struct.pack("i", 60000))  # SIOCSIFMTU: few packets, as the relay is slow
        ask(0x8914, struct.pack("H", 0x41))  # SIOCSIFFLAGS: up, running


class Host:
    """A thread with namespaces of its own, which the processes that it starts inherit."""

    def __init__(self, index, namespaces):
        self.index, self.name, self.link, self.shift = index, f"host-{'ab'[index]}", None, 0
        self.address = ADDRESSES[index] if namespaces else "127.0.0.1"
        self.namespaces = namespaces
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        if namespaces:
            self.thread.submit(self.enter).result()

    def enter(self):
        system_call("unshare", CLONE_NEWNET | CLONE_NEWUTS)
        system_call("sethostname", self.name.encode(), len(self.name))
        set_up_link("lo")
        self.link = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(self.link, 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001))  # TUNSETIFF: IFF_TUN | IFF_NO_PI
        set_up_link("tun0", self.address)

    def start(self, injection, command, log, environment):
        environment = {**environment, "RANK": str(self.index), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                       "CUDA_VISIBLE_DEVICES": str(self.index), "NCCL_HOSTID": self.name, "NCCL_P2P_DISABLE": "1",
                       "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
                       "NCCL_SOCKET_IFNAME": "tun0" if self.namespaces else "lo", "HOST_CLOCK_S": str(self.shift)}
        if not self.namespaces:
            environment["HOST_NAME"] = self.name
        return self.thread.submit(injection.start, command, log, environment).result()

    def close(self):
        self.thread.shutdown()
        if self.link:
            os.close(self.link)


class Relay(threading.Thread):
    """Carries packets between two hosts."""

    def __init__(self, hosts):
        super().__init__(daemon=True)
        self.delay_s, self.held_until, self.dropping, self.ended = 0, 0, False, False
        self.links = [host.link for host in hosts]
        self.start()

    def run(self):
        waiting = [collections.deque(), collections.deque()]  # to each host: time, packet
        while not self.ended:
            due = min((queue[0][0] for queue in waiting if queue), default=time.monotonic() + 0.05)
            ready = select.select(self.links, [], [], max(0, due - time.monotonic()))[0]
            now = time.monotonic()
            for link in ready:
                packet = os.read(link, 65536)
                if not self.dropping:
                    waiting[self.links[0] == link].append((max(now + self.delay_s, self.held_until), packet))
            for link, queue in zip(self.links, waiting):
                while queue and queue[0][0] <= now:
                    try:
                        os.write(link, queue.popleft()[1])
                    except OSError:
                        pass  # lost, as on any network

    def hold(self, seconds):
        self.held_until = time.monotonic() + seconds

    def end(self):
        self.ended = True
        self.join()


class Pair:
    """Two hosts, the relay between them, and the sweeps that they run together into one folder."""

    def __init__(self, tests, name):
        self.tests, self.injection, self.name = tests, tests.injection, name
        self.folder = os.path.join(self.injection.folder, name.replace(" ", "-"))
        self.hosts = [Host(index, tests.namespaces) for index in (0, 1)]
        self.relay = Relay(self.hosts) if tests.namespaces else None
        self.processes, self.port = [], PORT

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.relay:
            self.relay.end()
        for host in self.hosts:
            host.close()

    def start(self, *options):
        """Starts the sweep on both hosts."""
        if not self.tests.namespaces:
            self.port += 2  # that of the last sweep may still be in use
        environment = {"NCCL_COMM_ID": f"{self.hosts[0].address}:{self.port}", "PRECBENCH_SECRET": secrets.token_hex(16),
                       "LD_PRELOAD": self.tests.shim}
        command = [self.tests.program, *self.tests.sweep, "--out", self.folder, "--quiet", *options]
        self.processes = [host.start(self.injection, command, f"{self.folder}.{host.name}.log", environment)
                          for host in self.hosts]

    def case_of(self, index):
        """Returns the processes of a host's part of a case."""
        pid = self.processes[index].pid
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as children:
                return [int(child) for child in children.read().split()]
        except OSError:
            return []

    def wait_for_rows(self, count):
        """Waits for `count` rows and both parts of the next case."""
        end = time.monotonic() + BOUND_S
        while time.monotonic() < end and self.processes[0].poll() is None:
            if len(rows(self.folder)) >= count and self.case_of(0) and self.case_of(1):
                return
            time.sleep(0.01)
        self.violation(f"it ended, or stood still, with {len(rows(self.folder))} rows: {self.said()}")

    def kill_host(self, index):
        for pid in [*self.case_of(index), self.processes[index].pid]:
            kill(pid, signal.SIGKILL)

    def end(self, expected, what):
        statuses = self.injection.wait(self.processes, BOUND_S, f"{self.name}, {what}")
        if statuses != expected:
            self.violation(f"{what}: exit statuses {statuses}, not {expected}: {self.said()}")

    def said(self, index=0):
        with open(f"{self.folder}.{self.hosts[index].name}.log", errors="replace") as log:
            return log.read()[-2000:]

    def violation(self, text):
        self.injection.violation(f"{self.name}: {text}")

    def finished_rows(self):
        """Returns the rows, of which each case must have one that is ok."""
        found = rows(self.folder)
        bad = [f"{row['status']}: {row['error']}" for row in found if row["status"] != "ok"]
        if bad or len({row["id"] for row in found}) != len(found) or len(found) != self.tests.cases:
            self.violation(f"{len(found)} rows of {self.tests.cases} cases, not ok: {bad}")
        self.check_nodes(found)
        return found

    def check_nodes(self, found):
        for row in found:
            if row["env"].get("nodes") != 2:
                self.violation(f"a row says {row['env'].get('nodes')} nodes")

    def complete(self):
        """Runs the same command again, to the end."""
        self.start()
        self.end([0, 0], "the restart")
        return self.finished_rows()


def undisturbed(pair):
    pair.start()
    pair.end([0, 0], "the sweep")
    found = pair.finished_rows()
    if pair.tests.gpus:
        alone = os.path.join(pair.injection.folder, "one-process")
        process = pair.injection.start([pair.tests.program, *pair.tests.sweep, "--out", alone, "--quiet"], alone + ".log", {})
        pair.injection.wait([process], BOUND_S, "one process on both GPUs")
        losses = {row["id"]: row["training"]["loss"] for row in rows(alone)}
        for row in found:
            off = max(abs(a / b - 1) for a, b in zip(row["training"]["loss"], losses[row["id"]]))
            print(f"{row['case']['recipe']}: losses of two hosts within {off:.1e} of one process's; "
                  f"{row['timing']['median_ms']:.3g} ms a step", flush=True)
            if off > 1e-3:
                pair.violation(f"losses differ by {off}")


def host_killed(pair, index):
    pair.start()
    pair.wait_for_rows(1)
    pair.kill_host(index)
    pair.end([130, -signal.SIGKILL] if index else [-signal.SIGKILL, 1], "a killed host")
    lost = [row["error"] for row in rows(pair.folder) if row["status"] != "ok"]
    if index and (len(lost) != 1 or not lost[0].startswith("process 1 (host-b, rank 1): the connection to it is lost")):
        pair.violation(f"the rows of the lost host say {lost}")
    pair.check_nodes(rows(pair.folder))
    pair.complete()


def link_lost(pair, timeout_s, expected):
    pair.start("--timeout", str(timeout_s))
    pair.wait_for_rows(1)
    pair.relay.dropping = True
    pair.end([130, 1], "a lost link")
    last = rows(pair.folder)[-1]
    if expected not in (last["error"] or ""):
        pair.violation(f"the last row is {last['status']}: {last['error']}")
    pair.check_nodes(rows(pair.folder))
    pair.relay.dropping = False
    pair.complete()


def clocks(pair):
    for shift in (3600, 0):
        pair.hosts[0].shift, pair.hosts[1].shift = shift, 3600 - shift
        begin = time.time() + shift
        pair.start("--fresh")
        pair.end([0, 0], "clocks an hour apart")
        for row in pair.finished_rows():
            created = datetime.datetime.fromisoformat(row["created"].replace("Z", "+00:00")).timestamp()
            if not int(begin) <= created <= time.time() + shift:
                pair.violation(f"a row was created at {row['created']} on a host whose clock is {shift} s ahead")
    pair.start("--fresh", "--timeout", "0.01")
    pair.end([1, 0], "clocks an hour apart, --timeout")
    statuses = [row["status"] for row in rows(pair.folder)]
    if set(statuses) != {"timeout"}:
        pair.violation(f"the rows are {statuses}, not timeout")


def delayed(pair):
    pair.relay.delay_s = 0.05
    pair.start()
    pair.end([0, 0], "50 ms between the hosts")
    pair.finished_rows()


def stalled(pair):
    pair.relay.hold(3)  # while the processes meet
    pair.start()
    pair.wait_for_rows(1)
    pair.relay.hold(4)
    pair.end([0, 0], "seconds without a packet")
    pair.finished_rows()


def tensor_apart(pair):
    pair.start("--tensor", "2")
    pair.end([2, 2], "tensor ranks on two hosts")
    for index in (0, 1):
        if "--tensor 2: tensor ranks exchange activations in every layer and must be on one host" not in pair.said(index):
            pair.violation(f"tensor ranks on two hosts: {pair.said(index)}")


class Tests:
    def __init__(self, arguments):
        self.injection, self.program = FaultInjection(), arguments.program
        self.gpus = os.path.basename(self.program) == "precbench"
        self.sweep = ["sweep", "--device", "cuda", "--gpus", "2", "--model", "tiny", "--recipe", "bf16,tensorwise", "--parallel",
                      "fsdp", "--seq", "128", "--batch", "2", "--steps", "20" if self.gpus else "50",
                      *([] if self.gpus else ["--seed", "1-2"])]
        self.cases, self.namespaces = 2 if self.gpus else 4, True
        self.shim = os.path.join(self.injection.folder, "shim.so")
        compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-x", "c", "-o", self.shim, "-", "-ldl"]
        subprocess.run(compiler, input=SHIM.encode(), check=True)

    def all(self):
        tests = {"undisturbed": undisturbed,
                 "host 1 killed": lambda pair: host_killed(pair, 1),
                 "host 0 killed": lambda pair: host_killed(pair, 0),
                 "clocks an hour apart": clocks,
                 "tensor ranks apart": tensor_apart}
        if self.namespaces:
            # Before the system gives up a silent connection, and after.
            tests["link lost, short timeout"] = lambda pair: link_lost(pair, 20, "still running after 20 s (--timeout)")
            tests["link lost, long timeout"] = lambda pair: link_lost(pair, 300, "the connection to it is lost")
            tests["delay"], tests["stall"] = delayed, stalled
        return tests

    def run(self, name, test):
        begin = time.monotonic()
        try:
            with Pair(self, name) as pair:
                test(pair)
            print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
        except Exception as error:  # a check that cannot even be made
            self.injection.violation(f"{name}: {error!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="name of a test; repeatable (default all)")
    parser.add_argument("--program", default=os.path.join(REPOSITORY, "build", "precbench_fault_node"))
    arguments = parser.parse_args()
    if os.geteuid() and shutil.which("unshare") and "HOSTS_AS_ROOT" not in os.environ:
        if subprocess.run(["unshare", "-Ur", "true"], stderr=subprocess.DEVNULL).returncode == 0:
            os.environ["HOSTS_AS_ROOT"] = "1"
            os.execvp("unshare", ["unshare", "-Ur", sys.executable, *sys.argv])
    tests, begin = Tests(arguments), time.monotonic()
    try:
        Host(0, True).close()
    except OSError as error:
        print(f"two hosts: skipped, there are no network namespaces here: {error}" if not tests.gpus else
              f"two hosts: no network namespaces here ({error}): without a relay, on 127.0.0.1", flush=True)
        tests.namespaces = False
        if not tests.gpus:
            return tests.injection.finish("two hosts: nothing was tested")
    chosen = {name: test for name, test in tests.all().items() if not arguments.only or name in arguments.only}
    if not chosen:
        parser.error(f"--only: no such test here; there are {', '.join(tests.all())}")
    # Processes that share GPUs take turns; the others are mostly idle.
    with concurrent.futures.ThreadPoolExecutor(1 if tests.gpus else len(chosen)) as pool:
        for done in [pool.submit(tests.run, name, test) for name, test in chosen.items()]:
            done.result()
    tests.injection.no_orphans("two hosts")
    return tests.injection.finish(f"two hosts: {len(chosen)} tests, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
