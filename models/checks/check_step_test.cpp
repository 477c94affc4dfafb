// Positive controls of the step checks on the CPU device: equal devices agree, and a fault in any op of a step, or in
// one repetition, is found.
#include "models/checks/check_step.h"

#include <algorithm>

#include "kernels/checks/faulty_device_testing.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

using checks::Finding, checks::Findings;
using namespace testing;

checks::StepSetup small(const char* model = "tiny") {
  checks::StepSetup setup{.model = find_model(model), .B = 1, .T = 64};
  setup.model.layers = 2;
  return setup;
}

bool found_in(const Findings& findings, const char* part) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
    return !finding.agrees && finding.what.find(part) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("StepChecks: the CPU device agrees with itself in native and quantized recipes", "[checks]") {
  const std::vector<Recipe> recipes = {find_recipe("bf16"), find_recipe("rowwise"), find_recipe("nvfp4")};
  checks::StepChecks steps(small(), recipes, 1);
  for (const Recipe& recipe : recipes) {
    const Findings findings = steps.check(
        recipe, [] { return std::make_unique<FaultyDevice>(std::nullopt, 2); }, "tiny");
    CHECK(findings.size() == 4);  // no graphs on the CPU
    for (const Finding& finding : findings) {
      INFO(finding.path << " " << finding.what << ": " << finding.measured);
      CHECK(finding.agrees);
      CHECK(finding.path == "step " + recipe.name);
    }
  }
}

TEST_CASE("StepChecks: a wrong row in the output of any op is found", "[checks]") {
  const Recipe bf16 = find_recipe("bf16");
  checks::StepChecks steps(small(), {bf16}, 1);
  for (const OpKind op : {OpKind::embedding, OpKind::add_rmsnorm, OpKind::rope, OpKind::attention,
                          OpKind::matmul, OpKind::swiglu, OpKind::cross_entropy, OpKind::swiglu_backward,
                          OpKind::attention_backward, OpKind::rope_backward, OpKind::rmsnorm_backward}) {
    INFO(name_of(op));
    const Findings findings = steps.check(
        bf16,
        [&] {
          return std::make_unique<FaultyDevice>(Fault{op, Place::value, Extent::row});
        },
        "tiny");
    CHECK(found_in(findings, "gradients"));
    CHECK_FALSE(found_in(findings, "update"));
  }
}

TEST_CASE("StepChecks: a wrong loss and a wrong update are found", "[checks]") {
  const Recipe bf16 = find_recipe("bf16");
  checks::StepChecks steps(small(), {bf16}, 1);
  const auto with = [&](const Fault& fault) {
    return steps.check(
        bf16, [&] { return std::make_unique<FaultyDevice>(fault); }, "tiny");
  };
  CHECK(found_in(with({OpKind::sum}), "loss"));
  CHECK(found_in(with({OpKind::adamw}), "update"));
}

TEST_CASE("StepChecks: a wrong scale in a quantized recipe is found", "[checks]") {
  const Recipe recipe = find_recipe("rowwise");
  checks::StepChecks steps(small(), {recipe}, 1);
  for (const GemmRole role : kGemmRoles) {
    INFO(name_of(role));
    Fault fault{OpKind::matmul, Place::value, Extent::row};
    fault.role = role;
    CHECK(found_in(steps.check(
                       recipe, [&] { return std::make_unique<FaultyDevice>(fault); }, "tiny"),
                   "gradients"));
  }
}

TEST_CASE("check_repetition: one bit that differs is found", "[checks]") {
  const checks::Named first = {{"a", {1, 2, 3}}, {"b", {4}}};
  CHECK(checks::check_repetition("step bf16", "replayed graph", first, first).agrees);
  checks::Named again = first;
  again["b"][0] = std::nextafter(4.0f, 5.0f);
  const Finding finding = checks::check_repetition("step bf16", "replayed graph", first, again);
  CHECK_FALSE(finding.agrees);
  CHECK(finding.measured == "b differs");
}

}  // namespace precbench
