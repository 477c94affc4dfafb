"""Shared by inject_faults.py and inject_kills.py: processes that can be found again, and the rows written by a sweep."""
import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MARK = "PRECBENCH_INJECTION"


def command_line(doc, what, default, program, more=lambda parser: None):
    """Returns the count, the program, the random seed with its generator, and all arguments. `more` adds options."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument(what, type=int, nargs="?", default=default)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32,
                        help="random seed (default: from the clock)")
    parser.add_argument("--program", default=os.path.join(REPOSITORY, "build", program))
    more(parser)
    arguments = parser.parse_args()
    return getattr(arguments, what), arguments.program, arguments.seed, random.Random(arguments.seed), arguments


class FaultInjection:
    """A folder, a mark in the environment of every process started here, and the violations found."""

    def __init__(self):
        self.mark = secrets.token_hex(8)
        self.folder = tempfile.mkdtemp(prefix="precbench-faults-")
        self.violations = []

    def start(self, command, log, environment={}):
        """Starts a process in its own group, like a shell; appends its output to a file."""
        threads = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
        everything = {**os.environ, **threads, **environment, MARK: self.mark}
        with open(log, "ab") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=everything,
                                    start_new_session=True)

    def ours(self):
        """Returns all live processes of this injection except zombies, whoever their parent is."""
        wanted, found = f"{MARK}={self.mark}".encode(), []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    if wanted in environ.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                pass  # it has just ended, or is another user's
        return found

    def wait(self, processes, seconds, what):
        """Returns exit statuses. A process still running at the end is a violation and killed."""
        end = time.monotonic() + seconds
        for process in processes:
            try:
                process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.violation(f"{what}: process {process.pid} has not ended after {seconds} s")
                process.kill()
                process.wait()
        return [process.returncode for process in processes]

    def no_orphans(self, what, seconds=300):
        """Checks that all started processes have ended, shortly after their parents at the latest."""
        end = time.monotonic() + seconds
        while (left := self.ours()) and time.monotonic() < end:
            time.sleep(0.01)
        for pid in left:
            self.violation(f"{what}: process {pid} is left over")
            kill(pid, signal.SIGKILL)

    def violation(self, text):
        print("VIOLATION", text, flush=True)
        self.violations.append(text)

    def finish(self, summary):
        """Prints the summary and returns the exit status. Keeps the folder after violations."""
        if self.violations:
            summary += f"; logs are in {self.folder}"
        else:
            shutil.rmtree(self.folder)
        print(f"{summary}; {len(self.violations)} violations", flush=True)
        return 1 if self.violations else 0


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has already ended


def rows(folder):
    """Returns the complete lines of DIR/records.jsonl, parsed. A partial line is no row; the program reports it."""
    try:
        with open(os.path.join(folder, "records.jsonl"), "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
