// Cases with packed documents: what is refused before anything starts, and what the plan counts.
#include <fmt/format.h>

#include <string>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Case packing_case(const std::string& path) {
  Case c = case_with("sample_packing", "on");
  c.device = "cpu";
  c.data = path;
  c.seq = 64;
  return c;
}

std::string packing_reason(const Case& c) { return unsupported_reason(validate(c)).value_or(""); }

}  // namespace

TEST_CASE("packing: needs documents, and names what a GPU does not support", "[packing]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", "{\"prompt\": [1, 2], \"answer\": [3]}\n");
  CHECK_THROWS_WITH(
      validate(packing_case("synthetic")),
      "--packing on: packs documents of prompt and answer (.jsonl), which --data synthetic is not");
  Case c = packing_case(path);
  CHECK(packing_reason(c) == "");
  CHECK(case_to_json(c).at("packing") == "on");
  CHECK(!case_to_json(Case{}).contains("packing"));
  Case off = c;
  off.packing = "off";
  CHECK(validate(off).id != validate(c).id);
  Case tempered = c;
  tempered.model =
      directory.write("tempered.json", R"({"layers": 1, "width": 64, "ffn": 128, "heads": 2, "vocab": 128,
                         "layers_without_rope": [0], "temperature": 0.1, "temperature_positions": 64})");
  CHECK(packing_reason(tempered) ==
        "seq: with 64 the model scales the last query of a sequence, which is not supported with packing");
  tempered.seq = 32;
  CHECK(packing_reason(tempered) == "");
  // On the CPU all of these are supported.
  const auto refused = [&](const Case& on_cpu) {
    CHECK(packing_reason(on_cpu) == "");
    Case on_gpu = on_cpu;
    on_gpu.device = "cuda";
    return packing_reason(on_gpu);
  };
  CHECK(refused(c) == "");
  Case latent = c;
  latent.model = directory.write(
      "latent.json", R"({"layers": 1, "width": 64, "ffn": 128, "heads": 2, "head_dim": 48, "vocab": 128,
                         "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 32})");
  CHECK(refused(latent) ==
        "--packing on: the cuda device has no kernel for latent attention (MLA) within documents");
  Case shared = c;
  shared.model = directory.write("shared.json", R"({"layers": 1, "width": 128, "ffn": 256, "heads": 2,
                                                    "kv_heads": 1, "head_dim": 64, "vocab": 128})");
  shared.gpus = shared.context = 2;
  CHECK(
      refused(shared) ==
      "--packing on: the cuda device has no kernel for documents in sequences that ranks share (--context)");
  const auto of_width = [&](std::int64_t head_dim) {
    Case wide = c;
    wide.model = directory.write(fmt::format("wide{}.json", head_dim),
                                 fmt::format(R"({{"layers": 1, "width": 256, "ffn": 256, "heads": 1,
                                                  "kv_heads": 1, "head_dim": {}, "vocab": 128}})",
                                             head_dim));
    return wide;
  };
  CHECK(refused(of_width(256)) == "");
  CHECK(refused(of_width(264)) ==
        "--packing on: head_dim is 264; attention within documents takes at most 256 on the cuda device");
  Case capped = c;
  capped.model = directory.write("capped.json", R"({"layers": 1, "width": 128, "ffn": 256, "heads": 2,
                                                    "head_dim": 64, "vocab": 128, "attention_softcap": 50})");
  CHECK(refused(capped) == "");
  Case library = c;
  library.device = "cuda";
  library.attention = "cudnn";
  CHECK(packing_reason(library) ==
        "--packing on: cuDNN attention has no documents that share sequences; use auto or own");
}
