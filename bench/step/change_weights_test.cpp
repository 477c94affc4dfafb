// A stress preserves BF16's loss bit for bit and changes a recipe's gradient; a perturbation changes one
// weight's last bit; and any number of ranks makes the same changes.
#include "bench/step/change_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kLayers = 2, kWidth = 64, kFfn = 160;

struct PathSetup {
  std::string recipe = "bf16", stress = "none", perturb = "none";
  int ranks = 1;
  std::string parallel = "ddp", master = "fp32";
  bool biases = false;  ///< biases of q, k and v instead of norms of q and k
  bool tied = false;
  std::string experts = "";  ///< further keys of the model
  bool qk_norm = true;       ///< false for Llama 4's layout, which has none
};

/// MoE models in the four naming schemes: Mixtral's with experts in every layer; one with a dense first
/// layer, a shared expert and a different width of each; Llama 4's, which names the router differently; Qwen2's with a
/// gate of the shared expert.
constexpr const char* kNamedMixtures[] = {
    R"("experts": 4, "top_k": 2, "expert_ffn": 32, "expert_names": "mixtral")",
    R"("experts": 4, "top_k": 2, "expert_ffn": 32, "shared_ffn": 64, "dense_layers": 1, "score": "sigmoid", "normalise": true)",
    R"("experts": 4, "top_k": 1, "expert_ffn": 64, "shared_ffn": 32, "weight_at": "input", "score": "sigmoid",
       "expert_names": "llama4")",
    R"("experts": 4, "top_k": 2, "expert_ffn": 32, "shared_ffn": 64, "shared_gate": true, "expert_names": "qwen2")"};

/// Query heads form groups of two, so that O has two columns for each channel of V.
Plan path_plan(const PathSetup& setup) {
  const TempDirectory directory;
  Case c;
  c.model = directory.write(
      "model.json",
      fmt::format(R"({{"layers": {}, "width": {}, "ffn": {}, "heads": 4, "kv_heads": 2, "head_dim": 16,
                                    "vocab": 96, "tied": {}, "qk_norm": {}, "qkv_bias": {}{}{}}})",
                  kLayers, kWidth, kFfn, setup.tied, setup.qk_norm && !setup.biases, setup.biases,
                  setup.experts.empty() ? "" : ", ", setup.experts));
  c.recipe = setup.recipe;
  c.stress = setup.stress;
  c.perturb = setup.perturb;
  c.seq = 32;
  c.batch = 2 / setup.ranks;
  c.gpus = setup.ranks;
  c.parallel = setup.parallel;
  c.master = setup.master;
  c.lr = 1e-3;
  return validate(c);
}

struct PathOutcome {
  Named first, gradients;  ///< weights before the first step; gradients of the last one
  std::vector<double> losses;
};

/// Trains from weights and biases that are far from equal.
PathOutcome outcome_of(const PathSetup& setup, int steps = 1) {
  const Plan plan = path_plan(setup);
  PathOutcome outcome;
  run_cpu_ranks(
      plan, dry_run(plan, nullptr).extent + watching_bytes(plan), [&](Rank& rank, const DataSource& data) {
        Parameters& parameters = rank.parameters();
        parameters.load([&](const Parameter& p, float* values) {
          const std::uint64_t stream =
              std::hash<std::string>{}(p.name);  // the same on every rank, whichever parts it loads
          for (std::int64_t i = 0; i < p.size(); ++i)
            values[i] = 0.1f * irwin_hall_normal(stream, i) + (p.kind == ParameterKind::gain ? 1.0f : 0.0f);
        });
        change_weights(parameters, plan.model, plan.init);
        const Named first = saved(parameters, Parameters::Kind::weights);
        std::vector<double> losses;
        for (int i = 0; i < steps; ++i) {
          rank.prepare(data, i, 0);
          rank.enqueue();
          losses.push_back(rank.finish().loss);
        }
        const Named gradients = saved(parameters, Parameters::Kind::gradients);
        if (rank.comm().rank() == 0) outcome = {first, gradients, losses};
      });
  return outcome;
}

/// Returns |a - b| / |b| over the tensors that are unscaled in both runs.
double distance_of_changes(const Named& a, const Named& b, const Named& like_a, const Named& like_b) {
  double difference = 0, size = 0;
  for (const auto& [name, values] : a) {
    if (like_a.at(name) != like_b.at(name)) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double other = b.at(name)[i];
      difference += (values[i] - other) * (values[i] - other);
      size += other * other;
    }
  }
  return std::sqrt(difference / size);
}

/// Number of changed elements of all tensors with one name suffix, and the factors by which they changed.
struct Scaled {
  std::int64_t count = 0;
  std::set<float> factors;
};

std::map<std::string, Scaled> scaled_parts(const Named& now, const Named& before) {
  std::map<std::string, Scaled> parts;
  for (const auto& [name, values] : now)
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i] != before.at(name)[i]) {
        Scaled& part = parts[name.substr(name.find('.', std::string("model.layers.").size()) + 1)];
        ++part.count;
        part.factors.insert(values[i] / before.at(name)[i]);
      }
  return parts;
}

}  // namespace

TEST_CASE("change_weights: a stress scales its channels by exact powers of two", "[stress]") {
  const Named before = outcome_of({.biases = true}, 0).first;
  const auto changed = [&](const char* stress) {
    return scaled_parts(outcome_of({.stress = stress, .biases = true}, 0).first, before);
  };
  const auto check = [](const std::map<std::string, Scaled>& got, const char* name, std::int64_t count,
                        float factor) {
    INFO(name);
    REQUIRE(got.count(name) == 1);
    CHECK(got.at(name).count == kLayers * count);
    CHECK(got.at(name).factors == std::set<float>{factor});
  };
  const auto ffn = changed("ffn:5");
  CHECK(ffn.size() == 2);
  check(ffn, "mlp.up_proj.weight", 4 * kWidth, 32);
  check(ffn, "mlp.down_proj.weight", 4 * kWidth, 1.0f / 32);
  const auto norm = changed("norm:-2:3");
  CHECK(norm.size() == 7);
  for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight"})
    check(norm, name, 3, 0.25f);
  for (const char* name : {"self_attn.k_proj.weight", "self_attn.v_proj.weight"})
    check(norm, name, 3 * 32, 4);
  check(norm, "self_attn.q_proj.weight", 3 * 64, 4);
  for (const char* name : {"mlp.gate_proj.weight", "mlp.up_proj.weight"}) check(norm, name, 3 * kFfn, 4);
  const auto vo = changed("vo:1:5");
  CHECK(vo.size() == 3);
  check(vo, "self_attn.v_proj.weight", 5 * kWidth, 2);
  check(vo, "self_attn.v_proj.bias", 5, 2);
  check(vo, "self_attn.o_proj.weight", 5 * 2 * kWidth, 0.5f);  // two heads of a group read each channel
}

TEST_CASE("change_weights: BF16 losses are the same bit for bit under every stress", "[stress]") {
  std::vector<PathSetup> setups = {{}, {.biases = true}};
  for (const char* experts : kNamedMixtures) setups.push_back({.experts = experts, .qk_norm = false});
  for (const PathSetup& setup : setups) {
    const PathOutcome plain = outcome_of(setup);
    for (const char* kind : {"ffn", "norm", "vo"})
      for (int exponent = -16; exponent <= 16; exponent += exponent < 0 || !setup.experts.empty() ? 8 : 1) {
        PathSetup stressed = setup;
        stressed.stress = fmt::format("{}:{}:7", kind, exponent);
        const PathOutcome hard = outcome_of(stressed);
        INFO(kind << ":" << exponent << (setup.biases ? " with biases " : " ") << setup.experts);
        CHECK(hard.losses == plain.losses);
        CHECK((hard.first == plain.first) == (exponent == 0));
        // Unstressed tensors keep their gradients; gradients of stressed ones are scaled by the inverse
        // factor.
        CHECK(distance_of_changes(hard.gradients, plain.gradients, hard.first, plain.first) == 0);
        const std::set<float> powers = {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
        for (const auto& [name, part] : scaled_parts(hard.gradients, plain.gradients)) {
          INFO(name);
          CHECK(std::includes(powers.begin(), powers.end(), part.factors.begin(), part.factors.end()));
        }
      }
  }
}

TEST_CASE("change_weights: a stress reaches every expert and the shared expert and the router",
          "[stress][moe]") {
  for (const char* experts : kNamedMixtures) {
    INFO(experts);
    const auto changed = [&](const char* stress) {
      const Named before = outcome_of({.experts = experts, .qk_norm = false}, 0).first;
      std::set<std::string> names;
      for (const auto& [name, values] :
           outcome_of({.stress = stress, .experts = experts, .qk_norm = false}, 0).first)
        if (values != before.at(name)) names.insert(name);
      return names;
    };
    std::set<std::string> ffn, norm;
    for (const auto& [name, values] : outcome_of({.experts = experts, .qk_norm = false}, 0).first) {
      const bool attention = contains(name, "self_attn"), block = contains(name, "layers.");
      if (!block || attention || contains(name, "layernorm")) continue;
      const bool router = name.ends_with(".gate.weight") || name.ends_with(".router.weight") ||
                          name.ends_with(".shared_expert_gate.weight");
      const bool gate = name.ends_with(".gate_proj.weight") || name.ends_with(".w1.weight");
      const bool down = name.ends_with(".down_proj.weight") || name.ends_with(".w2.weight");
      if (!router && !gate) ffn.insert(name);
      if (!down) norm.insert(name);
    }
    CHECK(changed("ffn:3") == ffn);
    std::set<std::string> others = changed("norm:3");
    std::erase_if(others, [](const std::string& name) {
      return contains(name, "self_attn") || contains(name, "layernorm");
    });
    CHECK(others == norm);
  }
}

TEST_CASE("change_weights: recipes with little range have larger gradient errors under stress", "[stress]") {
  const PathOutcome exact = outcome_of({});
  for (const char* recipe : {"tensorwise", "rowwise", "mxfp8"})
    for (const char* kind : {"ffn", "norm"}) {
      const auto error = [&](int exponent) {
        const PathOutcome got =
            outcome_of({.recipe = recipe, .stress = fmt::format("{}:{}", kind, exponent)});
        return distance_of_changes(got.gradients, exact.gradients, got.first, exact.first);
      };
      const double calm = error(0), hard = error(16);
      INFO(recipe << " under " << kind << ": " << calm << ", then " << hard);
      CHECK(calm > 0);
      CHECK(hard > 1.05 * calm);
      if (std::string(recipe) == "tensorwise") CHECK(hard > 2 * calm);
    }
}

TEST_CASE("change_weights: a perturbation is one BF16 unit in one weight of the head and changes losses",
          "[stress]") {
  for (const bool tied : {false, true})
    for (const char* master : {"fp32", "bf16"}) {
      INFO("master " << master << (tied ? ", tied" : ""));
      const PathOutcome plain = outcome_of({.master = master, .tied = tied}, 4);
      const PathOutcome moved = outcome_of({.perturb = "ulp", .master = master, .tied = tied}, 4);
      CHECK(plain.losses == outcome_of({.master = master, .tied = tied}, 4).losses);
      CHECK(moved.losses != plain.losses);
      CHECK(std::fabs(moved.losses[0] - plain.losses[0]) < 1e-4);
      int changed = 0;
      for (const auto& [name, values] : moved.first)
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float was = plain.first.at(name)[i];
          if (values[i] == was) continue;
          ++changed;
          CHECK(name == (tied ? "model.embed_tokens.weight" : "lm_head.weight"));
          CHECK(bf16_encode(values[i]) == bf16_encode(was) + 1);
        }
      CHECK(changed == 1);
    }
}

TEST_CASE("change_weights: several ranks start from the same weights as one", "[stress]") {
  for (const char* stress : {"none", "ffn:9:7", "norm:9:7", "vo:9:7"})
    for (const char* master : {"fp32", "bf16"}) {
      const Named alone = outcome_of({.stress = stress, .perturb = "ulp", .master = master}, 0).first;
      for (const char* parallel : {"ddp", "fsdp"}) {
        INFO(stress << ", master " << master << ", " << parallel);
        const Named shared =
            outcome_of(
                {.stress = stress, .perturb = "ulp", .ranks = 2, .parallel = parallel, .master = master}, 0)
                .first;
        CHECK(first_difference(shared, alone) == "");
      }
    }
}
