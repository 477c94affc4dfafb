// The fidelity probe on ranks: its results equal those computed from two runs' gradients, for any sharding;
// BF16 has no error; recipes have a known order; and it changes neither weights nor memory of the training.
#include "bench/step/fidelity.h"

#include <cmath>

#include "bench/case/plan.h"
#include "bench/predict/predict.h"
#include "bench/step/change_weights.h"
#include "bench/step/fidelity_testing.h"
#include "bench/step/rank_testing.h"
#include "bench/step/route_flips.h"
#include "bench/step/weights.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Case case_of(const std::string& recipe, int ranks = 1, const std::string& parallel = "ddp") {
  return fidelity_case(2, recipe, ranks, parallel);
}

/// Measures at the initial weights. Checks that memory is as predicted and that all ranks return the same.
std::vector<Fidelity> measured(const Plan& plan, ReferencePlace place = ReferencePlace::device) {
  const DryRun accounts =
      dry_run(plan, nullptr, place == ReferencePlace::host ? std::optional(0) : std::nullopt);
  CHECK(accounts.reference == place);
  std::vector<std::vector<Fidelity>> results(plan.ranks);
  // One entry per rank: the test framework's checks are not thread-safe.
  std::vector<int> unchanged(plan.ranks);
  std::vector<std::int64_t> peaks(plan.ranks);
  run_cpu_ranks(plan, accounts.extent, [&](Rank& rank, const DataSource& data) {
    const int r = rank.comm().rank();
    Parameters& parameters = rank.parameters();
    parameters.initialize(plan.seed, kInitialDeviation);
    const std::vector<std::uint64_t> before = parameters.fingerprints();
    results[r] = measure_fidelity(rank, plan, data, place);
    unchanged[r] = parameters.fingerprints() == before;
    peaks[r] = rank.arena().peak().total();
  });
  CHECK(unchanged == std::vector<int>(plan.ranks, 1));
  CHECK(peaks == std::vector<std::int64_t>(plan.ranks, accounts.probe));
  for (const auto& other : results) {
    REQUIRE(other.size() == 1 + plan.fidelity_stresses.size());
    CHECK(other[0].whole.error.mean == results[0][0].whole.error.mean);
    CHECK(other[0].loss_difference.mean == results[0][0].loss_difference.mean);
  }
  return results[0];
}

double error_of(const Case& c, std::size_t state = 0) {
  return measured(validate(c)).at(state).whole.error.mean.value_or(NAN);
}

/// Returns the gradient and the loss of one step of a plan, under the plan's own stress.
std::pair<Named, double> gradient_of(const Plan& plan, std::int64_t step) {
  std::pair<Named, double> result;
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    change_weights(rank.parameters(), plan.model, plan.init);
    rank.prepare(data, step, 0);
    rank.enqueue();
    result = {saved(rank.parameters(), Parameters::Kind::gradients), rank.finish().loss};
  });
  return result;
}

}  // namespace

TEST_CASE("measure_fidelity: equals error and cosine and bias computed from the gradients of two runs",
          "[fidelity]") {
  for (const char* recipe : {"tensorwise", "blockwise", "mxfp8"}) {
    Case c = case_of(recipe);
    c.fidelity_stress = "ffn:9 norm:-9";
    const std::vector<Fidelity> probe = measured(validate(c));
    c.fidelity_batches = 0, c.fidelity_stress = "";
    for (const Fidelity& f : probe) {
      INFO(recipe << ", stress " << f.stress);
      c.stress = f.stress;
      double error = 0, cosine = 0, bias = 0, loss = 0, bf16_loss = 0;
      for (std::int64_t step = 0; step < 2; ++step) {
        c.recipe = recipe;
        const auto [r, recipe_loss] = gradient_of(validate(c), step);
        c.recipe = "bf16";
        const auto [g, reference_loss] = gradient_of(validate(c), step);
        double rg = 0, rr = 0, gg = 0, dd = 0;
        for (const auto& [name, values] : g)
          for (std::size_t i = 0; i < values.size(); ++i) {
            const double x = r.at(name)[i], y = values[i];
            rg += x * y, rr += x * x, gg += y * y, dd += (x - y) * (x - y);
          }
        error += std::sqrt(dd / gg) / 2, cosine += rg / std::sqrt(rr * gg) / 2, bias += (rg - gg) / gg / 2;
        loss += recipe_loss / 2, bf16_loss += reference_loss / 2;
      }
      CHECK(error > 0.02);
      CHECK(std::fabs(*f.whole.error.mean - error) < 1e-5 * error);
      CHECK(std::fabs(*f.whole.cosine.mean - cosine) < 1e-6);
      CHECK(std::fabs(*f.whole.bias.mean - bias) < 1e-6);
      CHECK(*f.loss_bf16 == bf16_loss);
      CHECK(std::fabs(*f.loss_difference.mean - (loss - bf16_loss)) < 1e-12);
      CHECK(*f.whole.error.low < *f.whole.error.mean);
      CHECK(*f.whole.error.mean < *f.whole.error.high);
    }
  }
}

TEST_CASE("measure_fidelity: decoded FP8 gradients are compared with BF16's before the cast", "[fidelity]") {
  /// Returns the relative error and the bias of one step's gradient of two plans.
  const auto apart = [](const Case& c, const Case& reference, std::int64_t step) {
    const Named r = gradient_of(validate(c), step).first, g = gradient_of(validate(reference), step).first;
    double rg = 0, gg = 0, dd = 0;
    for (const auto& [name, values] : g)
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double x = r.at(name)[i], y = values[i];
        rg += x * y, gg += y * y, dd += (x - y) * (x - y);
      }
    return std::pair{std::sqrt(dd / gg), (rg - gg) / gg};
  };
  for (const char* recipe : {"bf16", "msamp_o1", "msamp_o2"}) {
    Case c = case_of(recipe);
    const bool bf16 = c.recipe == "bf16";
    if (bf16) c.grads = "e4m3", c.fidelity_stress = "ffn:9";
    const int batches = bf16 ? 2 : 1;  // a second batch has delayed scales, and runs of one step have not
    c.fidelity_batches = batches;
    const std::vector<Fidelity> probe = measured(validate(c)),
                                from_host = measured(validate(c), ReferencePlace::host);
    c.fidelity_batches = 0, c.fidelity_stress = "";
    for (std::size_t i = 0; i < probe.size(); ++i) {
      c.stress = probe[i].stress;
      Case reference = c;
      reference.recipe = "bf16", reference.grads = "bf16";
      if (!bf16) reference.master = "fp16";  // as in these recipes
      double error = 0, bias = 0;
      for (int step = 0; step < batches; ++step) {
        const auto [of_step, along] = apart(c, reference, step);
        error += of_step / batches, bias += along / batches;
      }
      INFO(recipe << ", stress " << c.stress << ": " << error << ", " << bias);
      CHECK(std::fabs(*probe[i].whole.error.mean - error) < 1e-5 * error);
      CHECK(std::fabs(*probe[i].whole.bias.mean - bias) < 2e-6);
      CHECK(from_host[i].whole.error.mean == probe[i].whole.error.mean);
      // E4M3's rounding of BF16 GEMMs: half a unit of three mantissa bits, uniform, is 1.8% to 3.6% of a
      // value.
      if (bf16) CHECK((error > 0.018 && error < 0.036));
    }
  }
}

TEST_CASE("measure_fidelity: probes the first recipe even if another follows within the batches",
          "[fidelity]") {
  Case c = case_of("mxfp8");
  const double error = *measured(validate(c)).at(0).whole.error.mean;
  c.steps = 10;
  c.switch_recipe = "bf16@1";
  CHECK(*measured(validate(c)).at(0).whole.error.mean == error);
}

TEST_CASE("measure_fidelity: BF16 against itself has exactly zero error", "[fidelity]") {
  for (const auto& [ranks, parallel] : {std::pair{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}, {4, "hsdp"}})
    for (const char* changed : {"clip=1", "accumulation=2", "grads=bf16", "recompute=block", "master=bf16"}) {
      INFO(ranks << " " << parallel << " " << changed);
      Case c = case_of("bf16", ranks, parallel);
      const std::string text = changed;
      set_text(c, *find_field(text.substr(0, text.find('='))), text.substr(text.find('=') + 1));
      c.fidelity_stress = "ffn:16";
      for (const Fidelity& f : measured(validate(c))) {
        CHECK((f.whole.error.mean == 0 && f.whole.cosine.mean == 1 && f.whole.bias.mean == 0));
        CHECK(f.loss_difference.mean == 0);
        CHECK(f.layers.size() == 2);
        for (const GradientFidelity& part : f.roles) CHECK(part.error == 0);
      }
    }
}

TEST_CASE("measure_fidelity: known errors of recipes have their known order", "[fidelity]") {
  const auto stressed = [](const char* recipe) {
    Case c = case_of(recipe);
    c.fidelity_batches = 4;
    c.fidelity_stress = "ffn:16";
    return measured(validate(c));
  };
  const auto tensorwise = stressed("tensorwise"), mxfp8 = stressed("mxfp8");
  // Delayed scales come from the batches before, with the same weights, also under a stress.
  const auto delayed = stressed("tensorwise_delayed");
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(*delayed[i].whole.error.mean < 1.3 * *tensorwise[i].whole.error.mean);
    CHECK(*delayed[i].whole.error.mean != *tensorwise[i].whole.error.mean);
  }
  CHECK(*tensorwise[1].whole.error.low > *mxfp8[1].whole.error.high);
  CHECK(*tensorwise[1].whole.error.mean > 2 * *tensorwise[0].whole.error.mean);
  CHECK(error_of(case_of("rowwise_e5m2")) > 1.2 * error_of(case_of("rowwise")));
  CHECK(error_of(case_of("rowwise_e4m1")) > 2 * error_of(case_of("rowwise")));
  Case kept = case_of("rowwise");  // the first of two blocks stays in BF16
  kept.keep_bf16 = "first:1";
  CHECK(error_of(kept) < error_of(case_of("rowwise")));
}

TEST_CASE("measure_fidelity: several ranks return the results of one", "[fidelity]") {
  // With scales of 32 values, splitting the tokens among ranks splits no scale group.
  const std::vector<Fidelity> one = measured(validate(case_of("mxfp8")));
  for (const auto& [ranks, parallel] :
       {std::pair{2, "ddp"}, {2, "fsdp"}, {4, "ddp"}, {4, "fsdp"}, {4, "hsdp"}}) {
    INFO(ranks << " " << parallel);
    const Fidelity many = measured(validate(case_of("mxfp8", ranks, parallel)))[0], &alone = one[0];
    // A different order of summation changes the FP32 sums of weight gradients only, not the activations'
    // gradients.
    const auto same = [](double a, double b) { return std::fabs(a - b) < 1e-5; };
    CHECK(same(*many.whole.error.mean, *alone.whole.error.mean));
    CHECK(same(*many.whole.cosine.mean, *alone.whole.cosine.mean));
    CHECK(same(*many.whole.bias.mean, *alone.whole.bias.mean));
    CHECK(same(*many.loss_difference.mean, *alone.loss_difference.mean));
    REQUIRE(many.roles.size() == alone.roles.size());
    for (std::size_t i = 0; i < many.roles.size(); ++i) {
      CHECK(many.roles[i].name == alone.roles[i].name);
      CHECK(same(*many.roles[i].error, *alone.roles[i].error));
    }
  }
}

TEST_CASE("measure_fidelity: accumulated gradients are compared as a whole", "[fidelity]") {
  Case c = case_of("mxfp8");
  c.batch = 2, c.accumulation = 2;
  CHECK(std::fabs(error_of(c) - error_of(case_of("mxfp8"))) < 1e-5);
}

TEST_CASE("measure_fidelity: a reference on the host only reorders sums and saves device memory",
          "[fidelity]") {
  const TempDirectory directory;  // for a model whose embedding is larger than the staging buffer
  const std::string wide = directory.write("wide.json", R"({"layers": 1, "width": 128, "ffn": 128,
      "heads": 2, "kv_heads": 1, "head_dim": 64, "vocab": 66048, "tied": true})");
  CHECK(66048 * 128 * 4 > kStagingBytes);
  struct Choice {
    int ranks;
    const char *parallel, *grads;
    bool wide;
  };
  for (const auto& [ranks, parallel, grads, pieces] : {Choice{1, "ddp", "fp32", true},
                                                       {1, "ddp", "bf16", false},
                                                       {2, "fsdp", "fp32", false},
                                                       {2, "fsdp", "bf16", false}}) {
    INFO(ranks << " " << parallel << ", gradients " << grads);
    Case c = case_of("mxfp8", ranks, parallel);
    if (pieces) c.model = wide, c.seq = 32, c.batch = 1;
    c.fidelity_batches = 1;
    c.grads = grads;
    const Plan plan = validate(c);
    const DryRun device = dry_run(plan, nullptr), host = dry_run(plan, nullptr, 0);
    CHECK(host.extent < device.extent);
    CHECK(host.peak.bytes == device.peak.bytes);
    CHECK(dry_run(plan, nullptr, device.extent).reference == ReferencePlace::device);
    CHECK(dry_run(plan, nullptr, device.extent - 1).reference == ReferencePlace::host);
    const Fidelity a = measured(plan)[0], b = measured(plan, ReferencePlace::host)[0];
    CHECK(*a.whole.error.mean > 0);
    CHECK(std::fabs(*b.whole.error.mean - *a.whole.error.mean) < 1e-6 * *a.whole.error.mean);
    CHECK(std::fabs(*b.whole.bias.mean - *a.whole.bias.mean) < 1e-6);
    CHECK(a.loss_difference.mean == b.loss_difference.mean);
  }
}

TEST_CASE("under_stress: weights are restored bit for bit even if the stress made some vanish",
          "[fidelity][stress]") {
  for (const char* master : {"fp32", "bf16"})
    for (const auto& [ranks, parallel] : {std::pair{1, "ddp"}, {2, "fsdp"}})
      for (const char* kind : {"ffn:30:7", "norm:-30:7", "vo:30:7"}) {
        INFO("master " << master << ", " << ranks << " ranks, " << kind);
        Case c = case_of("bf16", ranks, parallel);
        c.master = master;
        const Plan plan = validate(c);
        const Stress stress = *parse_stress(kind);
        const Stress inverse{stress.kind, -stress.exponent, stress.channels};
        struct Seen {
          int changed, back, changed_by_inverse, back_from_both;
          bool operator==(const Seen&) const = default;
        };
        std::vector<Seen> seen(plan.ranks);
        const auto watch = [&](Rank& rank, const DataSource&) {
          Seen& own = seen[rank.comm().rank()];
          Parameters& parameters = rank.parameters();
          const auto weights = [&] { return saved(parameters, Parameters::Kind::weights); };
          parameters.load([](const Parameter& p, float* values) {
            for (std::int64_t i = 0; i < p.size(); ++i)
              values[i] = std::ldexp(1.0f + (i % 3 ? 0x1p-7f : 0x1p-20f), -110);
          });
          const Named before = weights();
          under_stress(parameters, plan.model, stress, [&] { own.changed = weights() != before; });
          own.back = weights() == before;
          // Applying the inverse stress would not restore them.
          under_stress(parameters, plan.model, stress, [&] {
            under_stress(parameters, plan.model, inverse,
                         [&] { own.changed_by_inverse = weights() != before; });
          });
          own.back_from_both = weights() == before;
        };
        run_cpu_ranks(plan, dry_run(plan, nullptr).extent + watching_bytes(plan), watch);
        CHECK(seen == std::vector<Seen>(plan.ranks, Seen{1, 1, 1, 1}));
      }
}

TEST_CASE("KeptChoices: a slot flips if its expert was none of the token's", "[fidelity][moe]") {
  Case c = case_of("bf16");
  c.model = "tiny-moe", c.seq = 2, c.batch = 1, c.accumulation = 2;
  const Plan plan = validate(c);
  REQUIRE(plan.model.moe.rule.top_k == 2);
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource&) {
    Routers& routers = *rank.parameters().routers();
    const auto choose = [&](std::int64_t layer, int micro_step, std::vector<std::int32_t> experts) {
      routers.note_choices(layer, micro_step, {experts.data(), DType::i32, 2, 2});
    };
    KeptChoices choices(rank, plan);
    for (std::int64_t layer = 0; layer < routers.layers(); ++layer)
      for (const int micro : {0, 1}) choose(layer, micro, {0, 1, 2, 3});
    choices.keep();
    CHECK(choices.flips() == std::vector<double>(routers.layers()));
    choose(0, 1, {1, 0, 2, 4});  // one flip in eight slots: the first token's experts only changed order
    choose(1, 0, {2, 3, 0, 1});
    std::vector<double> expected(routers.layers());
    expected[0] = 0.125, expected[1] = 0.5;
    CHECK(choices.flips() == expected);
  });
}

TEST_CASE("measure_fidelity: route flips increase with fewer mantissa bits", "[fidelity][moe]") {
  const auto flips = [](const char* recipe, int ranks = 1) {
    Case c = case_of(recipe, ranks);
    c.model = "tiny-moe";
    const std::optional<RouteFlips> found = measured(validate(c)).at(0).route_flips;
    REQUIRE(found);
    CHECK(found->layers.size() == 4);
    return found->all;
  };
  CHECK(flips("bf16") == 0);
  const double mxfp8 = flips("mxfp8");
  CHECK(mxfp8 > 0);
  CHECK(flips("rowwise_e4m1") > 2 * mxfp8);
  CHECK(std::fabs(flips("mxfp8", 2) - mxfp8) < 1e-9);  // the same tokens, split over two ranks
  CHECK(!measured(validate(case_of("mxfp8"))).at(0).route_flips);
}
