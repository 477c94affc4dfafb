// Cases that run one after another in one process leak nothing: rank threads with their OpenMP teams, packed
// operands of GEMMs, arenas.
#include <cstdint>
#include <fstream>
#include <string>

#include "bench/measure/checkpoint_testing.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

/// Returns the resident memory of this process in bytes.
std::int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string key, rest; status >> key && std::getline(status, rest);)
    if (key == "VmRSS:") return std::stoll(rest) * 1024;
  return 0;
}

}  // namespace

TEST_CASE("run_case: memory does not grow over cases in one process", "[session][moe][ep][address-space]") {
  const auto run_some = [](int count) {
    for (int i = 0; i < count; ++i) {
      Case c;
      c.model = i % 2 ? "tiny-moe" : "tiny";
      c.recipe = i % 4 < 2 ? "bf16" : "rowwise";
      c.device = "cpu";
      c.gpus = 4;
      c.ep = i % 2 ? 4 : 1;
      c.layers = 1, c.batch = 1, c.seq = 32, c.steps = 1;
      run_ok(c);
    }
  };
  // Memory that is kept for good, such as the C library's arenas, has been allocated by the first cases.
  run_some(8);
  const std::int64_t before = resident();
  constexpr int kCases = 20;
  run_some(kCases);
  const double grown = static_cast<double>(resident() - before) / (1 << 20);
  INFO(grown << " MiB in " << kCases << " cases");
  CHECK(before > 0);
  // A rank's arena alone is several MiB: one leaked per case would exceed this tenfold.
  CHECK(grown < 32);
}
