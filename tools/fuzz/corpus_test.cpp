// Every fuzz target takes or properly refuses the inputs of its corpus and some random changes of each. Tests under
// sanitizers (tools/ci/sanitize.sh) check memory and arithmetic as well; run.sh searches for new inputs.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "tools/fuzz/fuzz.h"

namespace precbench {
namespace {

constexpr int kChangesOfAnInput = 3;

/// Restores the environment variables that targets change.
class RestoredEnvironment {
 public:
  RestoredEnvironment() {
    for (const char* name : kChanged) {
      const char* value = std::getenv(name);
      before_.push_back(value ? std::optional<std::string>(value) : std::nullopt);
    }
  }
  ~RestoredEnvironment() {
    for (std::size_t i = 0; i < std::size(kChanged); ++i)
      before_[i] ? setenv(kChanged[i], before_[i]->c_str(), 1) : unsetenv(kChanged[i]);
  }
  RestoredEnvironment(const RestoredEnvironment&) = delete;
  RestoredEnvironment& operator=(const RestoredEnvironment&) = delete;

 private:
  static constexpr const char* kChanged[] = {"PATH", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"};
  std::vector<std::optional<std::string>> before_;
};

/// Discards standard output. Standard error stays, for the reports of sanitizers.
class QuietOutput {
 public:
  QuietOutput() {
    std::fflush(stdout);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    close(nowhere);
  }
  ~QuietOutput() {
    std::fflush(stdout);
    dup2(out_, STDOUT_FILENO);
    close(out_);
  }
  QuietOutput(const QuietOutput&) = delete;
  QuietOutput& operator=(const QuietOutput&) = delete;

 private:
  const int out_ = dup(STDOUT_FILENO);
};

/// Returns what a target throws for an input; "" if it takes or properly refuses it.
std::string finding(FuzzTarget target, const std::string& input) {
  const QuietOutput quiet;
  try {
    target(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  } catch (const std::exception& error) {
    return std::string("threw ") + error.what();
  }
  return "";
}

/// Returns the folders whose files a target reads first.
std::vector<std::filesystem::path> seeds_of(const std::string& target) {
  const std::filesystem::path root = PRECBENCH_SOURCE_DIR, corpus = root / "tools/fuzz/corpus";
  if (target == "record" || target == "report" || target == "check") return {corpus / "records"};
  if (target == "sweep_file" || target == "recipe") return {corpus / target, root / "bench/sweeps"};
  return {corpus / target};
}

std::string bytes_in(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns a copy in which some bytes are replaced, dropped or repeated, or whose end is missing.
std::string changed(std::string input, std::minstd_rand& random) {
  for (auto changes = 1 + random() % 4; changes > 0 && !input.empty(); --changes) {
    const std::size_t at = random() % input.size();
    switch (random() % 4) {
      case 0:
        input[at] = static_cast<char>(random());
        break;
      case 1:
        input.erase(at, 1 + random() % 8);
        break;
      case 2:
        input.insert(at, input.substr(at, 1 + random() % 64));
        break;
      default:
        if (random() % 8 == 0) input.resize(at);
    }
  }
  return input;
}

TEST_CASE("fuzz targets: inputs of the corpus and changes of them are taken or properly refused", "[fuzz]") {
  const std::filesystem::directory_iterator sources(std::filesystem::path(PRECBENCH_SOURCE_DIR) /
                                                    "tools/fuzz");
  CHECK(std::count_if(begin(sources), end(sources), [](const auto& file) {
          return file.path().filename().string().ends_with("_fuzz.cpp");
        }) == static_cast<std::ptrdiff_t>(fuzz_targets().size()));
  for (const auto& [name, target] : fuzz_targets()) {
    const RestoredEnvironment environment;  // targets change it once, for all of their inputs
    std::minstd_rand random(1);
    int inputs = 0;
    for (const std::filesystem::path& folder : seeds_of(name))
      for (const auto& file : std::filesystem::directory_iterator(folder)) {
        const std::string seed = bytes_in(file.path());
        for (int change = 0; change <= kChangesOfAnInput; ++change, ++inputs) {
          const std::string input = change == 0 ? seed : changed(seed, random);
          INFO(name << ", change " << change << " of " << file.path());
          CHECK(finding(target, input) == "");
        }
      }
    INFO(name);
    CHECK(inputs > 0);
  }
}

}  // namespace
}  // namespace precbench
