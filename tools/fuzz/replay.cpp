// Gives files to a fuzz target, without clang or libFuzzer: precbench_fuzz_replay TARGET FILE...
//
// A finding ends it with the exception; with a sanitizer's build, with the sanitizer's report.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "tools/fuzz/fuzz.h"

int main(int argc, char** argv) {
  const auto& targets = precbench::fuzz_targets();
  const auto target = argc < 3 ? targets.end() : targets.find(argv[1]);
  if (target == targets.end()) {
    std::fprintf(stderr, "precbench_fuzz_replay TARGET FILE...; targets:");
    for (const auto& [name, unused] : targets) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    if (!file) {
      std::fprintf(stderr, "precbench_fuzz_replay: %s cannot be read\n", argv[i]);
      return 2;
    }
    target->second(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
}
