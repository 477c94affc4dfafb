#!/usr/bin/env python3
"""Checks every #include against the modules that CMake declares (precbench_module in */CMakeLists.txt).

A file may include its own module, the modules that its module LINKs, and theirs in turn. In a module with
FOLDERS, a folder may include the module's own folder and the folders named before it; the own folder may
include all of them; with TOP, those folders must not include the module's own. Tests and their helpers
(*_testing.h) may also include the modules of TEST_LINK, and kernels/testing. tools/program, above all modules,
may include any. Every folder with sources must belong to a module and have a README.md, and modules must not
depend on each other in cycles.

Usage: tools/ci/check_dependencies.py     prints each violation; exit status 1 if there is one.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOPS = ("bench", "kernels", "models", "results", "tools")
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
# Programs outside the modules: fuzz targets use every entry point, and setup belongs to the build itself.
OUTSIDE = {"tools/fuzz", "tools/program", "tools/setup", "kernels/testing"}
TESTING = "kernels/testing"


def declared_modules():
    """Returns module -> (LINK, TEST_LINK), and folder -> folders of its module that it may include,
    itself among them."""
    modules, folders = {}, {}
    for top in TOPS:
        text = re.sub(r"#.*", "", (ROOT / top / "CMakeLists.txt").read_text())
        for call in re.findall(r"precbench_module\(([^)]*)\)", text):
            name, *words = call.split()
            lists = {"UNTIMED": [], "TOP": [], "UNITY": [], "LINK": [], "TEST_LINK": [], "FOLDERS": [], "LIBRARIES": []}
            for word in words:
                if word in lists:
                    current = lists[word]
                else:
                    current.append(word)
            modules[name] = lists["LINK"], lists["TEST_LINK"]
            parts = [name] + [f"{name}/{folder}" for folder in lists["FOLDERS"]]
            for place, part in enumerate(parts):
                below = parts[1:place + 1] if "TOP" in words else parts[:place + 1]
                folders[part] = name, set(below if place else parts)
    return modules, folders


def reachable(modules, start):
    """Returns the modules that `start` links, directly or indirectly."""
    found, open_ends = set(), list(modules[start][0])
    while open_ends:
        module = open_ends.pop()
        if module not in modules:
            sys.exit(f"{start}: links {module}, which is not a module")
        if module not in found:
            found.add(module)
            open_ends += modules[module][0]
    return found


def main():
    modules, folders = declared_modules()
    faults = [f"{module}: depends on itself" for module in modules if module in reachable(modules, module)]
    files = [f for top in TOPS for f in sorted((ROOT / top).rglob("*")) if f.suffix in SOURCES]
    for module in sorted({str(f.parent.relative_to(ROOT)) for f in files} | set(TOPS)):
        if not (ROOT / module / "README.md").exists():
            faults.append(f"{module}: has no README.md")
    for file in files:
        folder, name = str(file.parent.relative_to(ROOT)), file.relative_to(ROOT)
        if folder in OUTSIDE:
            continue
        if folder not in folders:
            faults.append(f"{name}: {folder} belongs to no module")
            continue
        module, own = folders[folder]
        linked = reachable(modules, module)
        if file.stem.endswith(("_test", "_testing", "_samples")):
            for extra in modules[module][1]:
                linked |= {extra} | reachable(modules, extra)
            own = own | {TESTING}
        allowed = own | {f for f, (owner, _) in folders.items() if owner in linked}
        for number, line in enumerate(file.read_text().splitlines(), 1):
            include = re.match(r'#include "(.+)/[^/]+"', line)
            if include and include[1] not in allowed:
                faults.append(f"{name}:{number}: {folder} may not include {include[1]}")
    print("\n".join(faults) or f"{len(files)} files of {len(modules)} modules include only what their module may")
    return bool(faults)


sys.exit(main())
