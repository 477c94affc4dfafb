// Fuzzes a sweep file: TOML with lists and ranges.
#include "bench/cli/config_file.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(sweep_file) {
  const std::string path = scratch().write("sweep.toml", std::string(text_of(data, size)));
  taken([&] { expect(!read_sweep_file(path).grids.empty()); });
  return 0;
}
