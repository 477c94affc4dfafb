// Cases with adapters: what the flags mean, what is refused, and that other cases do not notice.

#include <fmt/format.h>

#include <string>
#include <tuple>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Case lora_case(const char* recipe = "mxfp8") {
  Case c = case_with("lora", "8");
  c.device = "cpu";
  c.recipe = recipe;
  c.steps = 4;
  return c;
}

std::string lora_reason(const Case& c) { return unsupported_reason(validate(c)).value_or(""); }

}  // namespace

TEST_CASE("resolve: adapters have a rank and an alpha, and the recipe no wgrad", "[lora]") {
  Case c = lora_case();
  CHECK(lora_reason(c) == "");
  Plan plan = validate(c);
  CHECK((plan.parameters.lora.rank == 8 && plan.parameters.lora.alpha == 16));
  CHECK(plan.recipe.fprop.b.quantized());
  CHECK(!plan.recipe.wgrad.a.quantized());
  CHECK(definition_record(plan).recipe->at("wgrad").dump().find("e4m3") == std::string::npos);
  CHECK(plan.parameters.frozen_formats.size() == static_cast<std::size_t>(plan.model.layers));
  c.lora_alpha = 4;
  CHECK(validate(c).parameters.lora.scale() == 0.5);
  CHECK(validate(c).id != plan.id);
  c.switch_recipe = "bf16@2";
  CHECK(validate(c).parameters.frozen_formats.empty());
  const nlohmann::ordered_json json = case_to_json(lora_case());
  CHECK(json.at("lora_rank") == 8);
  CHECK(!json.contains("lora_alpha"));
  CHECK(!case_to_json(Case{}).contains("lora_rank"));
  CHECK(!validate(Case{}).parameters.lora);
}

TEST_CASE("lora_unsupported_reason: names the flag that is not supported", "[lora]") {
  CHECK_THROWS_WITH(validate(case_with("lora_alpha", "4")),
                    "--lora-alpha: scales the output of adapters; add --lora RANK");
  Case flow = lora_case("blockwise_pow2");
  flow.flow = "on";
  CHECK_THROWS_WITH(
      validate(flow),
      "--flow on: chooses the operands of wgrad, which frozen weights (--lora-rank) do not have");
  for (const auto& [field, text, reason] :
       {std::tuple{"gather", "fp8",
                   "--lora-rank: --gather fp8 is not supported with frozen weights; use --gather bf16"},
        {"master", "fp16", "--lora-rank: adapters have no FP16 master with scales"},
        {"grads", "e4m3",
         "--lora-rank: adapters' gradients in e4m3 are not supported; use --grads fp32 or bf16"},
        {"optimizer", "muon",
         "--lora-rank: muon orthogonalizes the model's matrices, which are frozen; use adamw, lion or "
         "adafactor"},
        {"model", "gpt2",
         "--lora-rank: checkpoints of gpt2 have several of its matrices in one tensor or under other names, "
         "whose adapters are not supported"}}) {
    Case c = lora_case("tensorwise");
    c.gpus = 2;
    set_text(c, *find_field(field), text);
    CHECK(lora_reason(c) == reason);
  }
  Case experts = case_with("ep", "2");
  experts.model = "tiny-moe", experts.lora_rank = 8, experts.gpus = 2;
  CHECK(lora_reason(experts) ==
        "--lora-rank: frozen experts are not divided among ranks (--ep); use --parallel fsdp");
  Case weights = lora_case("tensorwise");
  weights.weights = "e4m3";
  CHECK(lora_reason(weights) == "--lora-rank: --weights e4m3 is not supported with frozen weights");
  Case sensitivity = lora_case();
  sensitivity.fidelity_batches = 1, sensitivity.sensitivity = "roles";
  CHECK(lora_reason(sensitivity) == "--lora-rank: --sensitivity is not supported with adapters");
}

TEST_CASE("lora_unsupported_reason: refuses parts of blocks that have no adapters and no frozen form",
          "[lora]") {
  const TempDirectory directory;
  const auto reason_of = [&](const char* keys) {
    Case c = lora_case();
    c.model =
        directory.write("model.json", fmt::format(R"({{"layers": 2, "width": 64, "ffn": 128, "heads": 4, )"
                                                  R"("head_dim": 32, "vocab": 256, {}}})",
                                                  keys));
    return lora_reason(c);
  };
  CHECK(reason_of(R"("kv_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 32)") ==
        "--lora-rank: adapters of latent attention (MLA) are not supported");
  CHECK(reason_of(R"("attention_sinks": true)") == "--lora-rank: frozen attention sinks are not supported");
  CHECK(reason_of(R"("qk_norm": true)") == "");
}
