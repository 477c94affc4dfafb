// The case that tests of fidelity and sensitivity measure.
#pragma once

#include <string>

#include "bench/case/case.h"
#include "kernels/testing/temp_directory.h"

namespace precbench::testing {

/// Returns a case of `layers` blocks with dimensions that every recipe can run, and two fidelity batches. The
/// tokens of a step are the same for any number of ranks.
inline Case fidelity_case(int layers, const std::string& recipe, int ranks = 1,
                          const std::string& parallel = "ddp") {
  static const TempDirectory directory;
  Case c;
  c.model = directory.write(
      "layers-" + std::to_string(layers) + "/small.json",
      R"({"layers": )" + std::to_string(layers) +
          R"(, "width": 128, "ffn": 256, "heads": 2, "kv_heads": 1, "head_dim": 64, "vocab": 128,
      "qk_norm": true})");
  c.recipe = recipe;
  c.seq = 64;
  c.batch = 4 / ranks;
  c.gpus = ranks;
  c.parallel = parallel;
  c.shard_group = parallel == "hsdp" ? 2 : 1;
  c.fidelity_batches = 2;
  return c;
}

}  // namespace precbench::testing
