#!/usr/bin/env python3
"""Tests of what the scripts install: the packages of setup.sh, and the hashes of everything that pip downloads."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "tools").mkdir()
        shutil.copytree(HERE, self.folder / "tools/setup")
        # A system that has nothing: dpkg-query knows no package, and PATH has only what the script itself calls.
        self.path = self.folder / "bin"
        self.path.mkdir()
        for tool in ("bash", "id", "mkdir", "env", "grep", "tail", "dirname", "awk", "nproc", "cat"):
            (self.path / tool).symlink_to(shutil.which(tool))
        self.fake("dpkg-query", "exit 1")
        self.fake("apt-get", f'echo "$@" >>{self.folder}/apt')
        self.fake("sudo", 'while [ "$1" = -n ]; do shift; done; exec "$@"')
        self.fake("cmake", f'echo "$@" >>{self.folder}/cmake')

    def fake(self, name, text):
        (self.path / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.path / name).chmod(0o755)

    def run_setup(self, *arguments):
        """Returns the packages that apt-get was to install, and CMake's arguments in the first call."""
        done = subprocess.run([self.path / "bash", self.folder / "tools/setup/setup.sh", *arguments], text=True,
                              capture_output=True, env={"PATH": str(self.path), "HOME": str(self.folder)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        installed = (self.folder / "apt").read_text().split()
        return installed[installed.index("install") + 2:], (self.folder / "cmake").read_text().splitlines()[0].split()

    def test_the_program_needs_no_package_of_the_tests(self):
        packages, arguments = self.run_setup("--program")
        self.assertLessEqual({"libfmt-dev", "liblzma-dev", "zlib1g-dev", "libsqlite3-dev"}, set(packages))
        self.assertEqual({"catch2", "python3"} & set(packages), set())
        self.assertIn("-DPRECBENCH_BUILD_TESTS=AUTO", arguments)

    def test_the_tests_get_what_they_need(self):
        packages, arguments = self.run_setup()
        self.assertLessEqual({"catch2", "python3", "libfmt-dev", "g++"}, set(packages))
        self.assertIn("-DPRECBENCH_BUILD_TESTS=ON", arguments)

    def test_what_is_there_is_not_installed_again(self):
        self.fake("python3", "exit 0")
        self.assertNotIn("python3", self.run_setup()[0])

    def architectures(self, capabilities):
        """Returns PRECBENCH_CUDA_ARCHS as CMake gets it on a machine with these GPUs, or None."""
        for tool in ("sed", "sort"):
            if not (self.path / tool).exists():
                (self.path / tool).symlink_to(shutil.which(tool))
        self.fake("nvcc", "exit 0")
        self.fake("nvidia-smi", f"[ $1 = -L ] && echo 'GPU 0: one' || printf '{capabilities}'")
        (self.folder / "tools/setup/fetch_cudnn_frontend.sh").write_text("#!/bin/sh\n")
        _, arguments = self.run_setup()
        return next((a.split("=")[1] for a in arguments if a.startswith("-DPRECBENCH_CUDA_ARCHS")), None)

    def test_kernels_are_built_for_the_gpus_of_the_machine(self):
        self.assertEqual(self.architectures("9.0\\n9.0\\n"), "90a-real")

    def test_kernels_are_built_for_every_kind_of_gpu_of_the_machine(self):
        self.assertEqual(self.architectures("8.6\\n9.0\\n"), "80-real;90a-real")

    def test_kernels_are_built_for_every_architecture_where_a_gpu_is_of_another(self):
        self.assertIsNone(self.architectures("9.0\\n12.0\\n"))


class Help(unittest.TestCase):
    def test_scripts_print_their_whole_first_comment_and_nothing_else(self):
        found = 0
        for script in ROOT.glob("tools/*/*.sh"):
            lines = script.read_text().splitlines()
            for last in re.findall(r"sed -n '2,(\d+)p' \"\$0\"", script.read_text()):
                found += 1
                code = next(number for number, line in enumerate(lines, 1) if not line.startswith("#"))
                self.assertEqual(int(last), code - 1, script)
        self.assertGreaterEqual(found, 4)  # the scripts that print it


class Downloads(unittest.TestCase):
    LOCKED = ["python_packages.txt", "cudnn_frontend.txt", "smollm2_weights.txt", "gemma3_weights.txt",
              "qwen-0.5b_weights.txt", "qwen-1.5b_weights.txt"]

    def entries(self, name):
        text = re.sub(r"\\\n", " ", (HERE / name).read_text())
        return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]

    def test_every_package_has_a_version_and_hashes(self):
        for name in self.LOCKED:
            entries = self.entries(name)
            self.assertTrue(entries, name)
            for entry in entries:
                self.assertRegex(entry, r"^[a-z0-9.-]+==[0-9][^ ]*( ; python_version [<>=]+ \"3\.[0-9]+\")?"
                                        r"( +--hash=sha256:[0-9a-f]{64})+ *$")

    def test_packages_with_compiled_code_have_wheels_for_every_python_and_machine(self):
        entries = {entry.split("==")[0]: entry for entry in self.entries("python_packages.txt")
                   if '< "3.11"' not in entry}
        for package in ("numpy", "regex", "pyyaml", "markupsafe"):  # not for the stable ABI: three Pythons, two machines
            self.assertGreaterEqual(entries[package].count("sha256:"), 6, package)

    def test_pip_downloads_nothing_without_a_hash(self):
        calls = 0
        scripts = [*ROOT.glob("tools/**/*.sh"), ROOT / ".ci/run", *ROOT.glob(".github/workflows/*.yml")]
        for script in scripts:
            text = re.sub(r"\\\n", " ", script.read_text())
            for line in text.splitlines():
                if re.search(r"\bpip3? (install|download)\b", line) and not line.lstrip().startswith(("#", "echo")):
                    calls += 1
                    self.assertIn("--require-hashes", line, script)
        self.assertEqual(calls, 3)

    def test_actions_are_pinned_by_commit(self):
        uses = [line for workflow in ROOT.glob(".github/workflows/*.yml") for line in workflow.read_text().splitlines()
                if "uses:" in line]
        self.assertTrue(uses)
        for line in uses:
            self.assertRegex(line, r"uses: [a-z]+/[a-z-]+@[0-9a-f]{40}  # v[0-9.]+$")


class Systems(unittest.TestCase):
    def test_ci_runs_both_commands_on_every_system_that_the_readme_names(self):
        listed = re.search(r"Debian ([0-9, ]+), Ubuntu ([0-9., ]+) \(", (ROOT / "README.md").read_text()).groups()
        systems = [f"{name}:{version}" for name, versions in zip(("debian", "ubuntu"), listed) for version in versions.split(", ")]
        job = re.search(r"^  readme:\n(.*?)^  \w+:\n", (ROOT / ".github/workflows/ci.yml").read_text(), re.S | re.M).group(1)
        self.assertEqual(re.findall(r'"([a-z]+:[0-9.]+)"', job), systems)
        self.assertIn("run: tools/ci/in_debian.sh here", job)
        script = (ROOT / "tools/ci/in_debian.sh").read_text()
        self.assertIn("commands='tools/quickstart.sh && tools/test.sh'", script)

    def test_the_script_of_a_minimal_system_refuses_what_is_no_suite(self):
        for arguments in [], ["../etc"]:
            done = subprocess.run([ROOT / "tools/ci/in_debian.sh", *arguments], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
