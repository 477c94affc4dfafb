// Parsing of --stress, and how a case's definition and id follow it.
#include "bench/case/stress.h"

#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

Case stressed(const std::string& stress, const std::string& perturb = "none") {
  Case c;
  c.stress = stress;
  c.perturb = perturb;
  return c;
}

std::string refused(const std::string& stress) {
  return refusal_of([&] { validate(stressed(stress)); });
}

}  // namespace

TEST_CASE("parse_stress: parses what to_text writes", "[stress]") {
  CHECK_FALSE(parse_stress("none"));
  CHECK(parse_stress("ffn:8") == Stress{StressKind::ffn, 8, 4});
  CHECK(parse_stress("norm:-3:16") == Stress{StressKind::norm, -3, 16});
  CHECK(parse_stress("vo:0:1") == Stress{StressKind::vo, 0, 1});
  for (const char* text : {"ffn:8:4", "norm:-30:16", "vo:30:1"}) CHECK(to_text(*parse_stress(text)) == text);
}

TEST_CASE("parse_stress: invalid stresses are refused with the flag", "[stress]") {
  for (const std::string bad : {"", "ffn", "ffn:", "fnn:8", "ffn:8:", "ffn:8:0", "ffn:8:-1", "ffn:8:4:2",
                                "ffn:8.5", "ffn:+8", "8", ":8", "ffn:99999999999999999999"}) {
    INFO(bad);
    CHECK(refused(bad) ==
          "--stress: \"" + bad + "\" is not none, ffn:S, norm:S or vo:S, perhaps with :CHANNELS behind");
  }
  CHECK(refused("ffn:31") == "--stress: ffn:31: S is from -30 to 30");
  CHECK(refused("vo:-31:2") == "--stress: vo:-31:2: S is from -30 to 30");
  const ModelConfig tiny = find_model("tiny");
  const auto most = [&](const char* kind, std::int64_t channels) {
    CHECK(refused(kind + std::string(":1:") + std::to_string(channels)) == "");
    const std::string more = std::to_string(channels + 1);
    CHECK(refused(kind + std::string(":1:") + more) == "--stress: " + more + " channels requested, " + kind +
                                                           " of a block has " + std::to_string(channels));
  };
  most("ffn", tiny.ffn);
  most("norm", tiny.width);
  most("vo", tiny.kv_width());
}

TEST_CASE("stress_unsupported_reason: outliers of norms need norms whose outputs layers read", "[stress]") {
  ModelConfig model = find_model("tiny");
  const auto refusal = [&](StressKind kind) {
    return stress_unsupported_reason(Stress{kind, 8, 4}, model).value_or("");
  };
  for (const StressKind kind : {StressKind::ffn, StressKind::norm, StressKind::vo})
    CHECK(refusal(kind).empty());
  for (const NormPlace place : {NormPlace::after, NormPlace::both}) {
    model.block.norms = place;
    CHECK(refusal(StressKind::norm) ==
          "norm: the model has norms on the outputs of a block's halves, whose channels no layer reads");
    CHECK((refusal(StressKind::ffn).empty() && refusal(StressKind::vo).empty()));
  }
  model.block.norms = NormPlace::before;
  model.block.gains_minus_one = true;
  CHECK(contains(refusal(StressKind::norm), "minus 1"));
  Case c;
  c.model = "olmo2-1b";
  c.stress = "norm:8";
  CHECK(contains(refusal_of([&] { validate(c); }), "--stress: norm: "));
}

TEST_CASE("parse_fidelity_stress: parses a list that enters the id in normalized form", "[stress]") {
  const auto probed = [](const std::string& stresses, std::int64_t batches = 2) {
    Case c;
    c.fidelity_batches = batches;
    c.fidelity_stress = stresses;
    return c;
  };
  const auto why = [&](const std::string& stresses, std::int64_t batches = 2) {
    return refusal_of([&] { validate(probed(stresses, batches)); });
  };
  CHECK(why("") == "");
  CHECK(why("", 0) == "");
  CHECK(validate(probed(" ffn:8  norm:-3:16 ")).fidelity_stresses ==
        std::vector<Stress>{{StressKind::ffn, 8, 4}, {StressKind::norm, -3, 16}});
  CHECK(why("ffn:8", 0) ==
        "--fidelity-stress needs batches to compare gradients of: add --fidelity-batches K");
  CHECK(why("ffn:8,vo:8") ==
        "--fidelity-stress: \"ffn:8,vo:8\" is not none, ffn:S, norm:S or vo:S, perhaps "
        "with :CHANNELS behind");
  CHECK(why("ffn:8 none") == "--fidelity-stress: none: leave it out, it is measured first");
  CHECK(why("vo:31") == "--fidelity-stress: vo:31: S is from -30 to 30");
  CHECK(why("vo:1 norm:1:129") == "--fidelity-stress: 129 channels requested, norm of a block has 128");
  CHECK(why("", -1) == "--fidelity-batches: must be at least 0, not -1");

  const auto id_of = [](const Case& c) { return validate(c).id; };
  CHECK(id_of(probed("ffn:8")) == id_of(probed(" ffn:8:4")));
  const std::string ids[] = {id_of(Case{}),          id_of(probed("", 1)),        id_of(probed("")),
                             id_of(probed("ffn:8")), id_of(probed("ffn:8 vo:8")), id_of(stressed("ffn:8"))};
  for (std::size_t i = 0; i < std::size(ids); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(ids[i] != ids[j]);
}

TEST_CASE("definition_record: changes of the first weights are in the definition and the id", "[stress]") {
  const auto init_of = [](const Case& c) { return *definition_record(validate(c)).init; };
  const auto id_of = [](const Case& c) { return validate(c).id; };
  CHECK_FALSE(init_of(Case{}).contains("stress"));
  CHECK_FALSE(init_of(Case{}).contains("perturb"));
  CHECK(init_of(stressed("ffn:8"))["stress"] == "ffn:8:4");
  CHECK(init_of(stressed("none", "ulp"))["perturb"] == "ulp");
  CHECK(id_of(stressed("none")) == id_of(Case{}));
  CHECK(id_of(stressed("ffn:8")) == id_of(stressed("ffn:8:4")));
  const std::string ids[] = {id_of(Case{}), id_of(stressed("ffn:8")), id_of(stressed("ffn:8", "ulp")),
                             id_of(stressed("ffn:9")), id_of(stressed("none", "ulp"))};
  for (std::size_t i = 0; i < std::size(ids); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(ids[i] != ids[j]);
}
