// Tests the scripts of a GPU runner with stand-ins for the programs that they call: ci-gpu.sh and gpu_tests.py.
#include <filesystem>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
namespace fs = std::filesystem;

TEST_CASE("ci-gpu.sh: exits with 1 if tests fail however many", "[check]") {
  const TempDirectory directory;
  const auto program = [&](const std::string& name, const std::string& text) {
    fs::permissions(directory.write(name, "#!/bin/sh\n" + text + "\n"), fs::perms::owner_all);
  };
  program("bin/nvidia-smi", "case $1 in --list-gpus) echo GPU 0: NVIDIA H200;; *) echo NVIDIA H200;; esac");
  program("tools/setup/setup.sh", "");
  program("build/precbench", "case $1 in check) exit 3;; esac");
  fs::create_directory(directory.path() / "tools/ci");
  for (const char* script : {"ci-gpu.sh", "gpu_tests.py"})
    fs::copy(fs::path(PRECBENCH_SOURCE_DIR "/tools/ci") / script, directory.path() / "tools/ci");
  const std::string command = "PATH=" + (directory / "bin") + ":$PATH " + (directory / "tools/ci/ci-gpu.sh");
  const std::string list = "case $1 in --list-test-names-only) echo one; exit;; esac; ";
  program("build/precbench_tests", list + "exit 42");
  CHECK(output_of(command).status == 1);
  program("build/precbench_tests", list);
  CHECK(output_of(command).status == 3);  // status of the check
}

TEST_CASE("gpu_tests.py: repeats tests that lacked memory alone, and gives tests of several GPUs all of them",
          "[check]") {
  const TempDirectory directory;
  const std::string log = directory / "log", script = PRECBENCH_SOURCE_DIR "/tools/ci/gpu_tests.py";
  // "crowded" lacks memory until it runs again; "ranks, both" is a test of several GPUs.
  const std::string tests = directory.write("tests", R"sh(#!/bin/sh
cd "$(dirname "$0")"
case $1$2 in
  --list-test-names-only*comm*) echo "ranks, both"; exit;;
  --list-test-names-only*) printf 'one\ncrowded\nbroken\nranks, both\n'; exit;;
  one) exit 0;;
  crowded) [ -e crowded ] && exit 0; touch crowded; echo "the GPU is out of memory"; exit 1;;
  'ranks\, both') [ "$CUDA_VISIBLE_DEVICES" = 3,5 ]; exit;;
esac
echo what is wrong
exit 1
)sh");
  fs::permissions(tests, fs::perms::owner_all);
  const Answer answer =
      output_of("CUDA_VISIBLE_DEVICES=3,5 " + script + " --tests " + tests + " --log " + log);
  CHECK(answer.status == 1);
  CHECK(contains(answer.text, "what is wrong"));
  CHECK(contains(answer.text, "FAILED: broken\n4 tests on 2 GPUs in "));
  CHECK(contains(answer.text, ": 1 failed, 1 lacked memory beside others"));
  CHECK(contains(file_text(log), "ranks, both"));
  // A log of an earlier run puts what took longest first.
  directory.write("log", "ok 1.5 s: one\nok 30.2 s: crowded\nok 4.0 s: broken\n");
  output_of("CUDA_VISIBLE_DEVICES=3 " + script + " --tests " + tests + " --jobs 1 --log " + log);
  const std::string again = file_text(log);
  CHECK(again.find(": crowded") < again.find(": broken"));
  CHECK(again.find(": broken") < again.find(": one"));
  CHECK(output_of("CUDA_VISIBLE_DEVICES= " + script + " --tests " + tests).status == 2);
}
