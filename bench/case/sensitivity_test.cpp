// The cells of --sensitivity: the variants of a recipe, what each leaves in it, and the keep_bf16 words that
// choose them.
#include "bench/case/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/transformer/flops.h"

using namespace precbench;

namespace {

Plan plan_of(const std::string& recipe, const std::string& groups, const std::string& keep = "") {
  Case c;  // tiny has four blocks
  c.recipe = recipe;
  c.keep_bf16 = keep;
  c.fidelity_batches = 2;
  c.sensitivity = groups;
  return validate(c);
}

/// Returns a name such as "roles kept down".
std::string name_of(const SensitivityCell& cell) {
  return fmt::format("{} {} {}", cell.name.group, name_of(cell.name.kind), cell.name.part);
}

std::map<std::string, SensitivityCell> by_name(const Plan& plan) {
  std::map<std::string, SensitivityCell> cells;
  for (const SensitivityCell& cell : sensitivity_cells(plan).cells) cells.emplace(name_of(cell), cell);
  return cells;
}

std::vector<std::string> names_of(const Plan& plan, const std::string& group) {
  std::vector<std::string> names;
  for (const SensitivityCell& cell : sensitivity_cells(plan).cells)
    if (cell.name.group == group)
      names.push_back(name_of(cell.name.kind) + std::string(" ") + cell.name.part);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("sensitivity: groups are parsed in any order and unknown words refused in one line",
          "[sensitivity]") {
  using enum SensitivityGroup;
  CHECK(parse_sensitivity("").empty());
  CHECK(parse_sensitivity("none").empty());
  CHECK(parse_sensitivity("blocks,gemms,blocks") == std::vector{gemms, blocks});
  CHECK(parse_sensitivity("standard") == std::vector{gemms, operands, roles, blocks, elements, scales, best});
  CHECK(parse_sensitivity("all").size() == 8);
  CHECK(parse_sensitivity("standard,linears") == parse_sensitivity("all"));
  for (const char* bad : {"block", "gemms,", ",", "gemms blocks", "Gemms"}) {
    INFO(bad);
    CHECK(
        contains(refusal_of([&] { plan_of("rowwise", bad); }), "is none of standard, all, gemms, operands"));
  }
  Case c;
  c.sensitivity = "gemms";
  CHECK(refusal_of([&] { validate(c); }) ==
        "--sensitivity needs batches to measure on: add --fidelity-batches K");
}

TEST_CASE("sensitivity: a case without it keeps its id", "[sensitivity]") {
  Case c;
  c.fidelity_batches = 2;
  CHECK(!case_to_json(c).contains("sensitivity"));
  const std::string id = validate(c).id;
  c.sensitivity = "gemms";
  CHECK(case_to_json(c).at("sensitivity") == "gemms");
  CHECK(validate(c).id != id);
  CHECK(case_from_json(case_to_json(c)) == c);
}

TEST_CASE("sensitivity: every group has its cells after the whole recipe and a control", "[sensitivity]") {
  const Plan plan = plan_of("rowwise", "all");
  CHECK(names_of(plan, "recipe") == Names{"whole rowwise", "control nothing"});
  CHECK(names_of(plan, "gemms") ==
        Names{"alone fprop", "kept fprop", "alone dgrad", "kept dgrad", "alone wgrad", "kept wgrad"});
  CHECK(names_of(plan, "operands") == Names{"alone weights", "alone activations", "alone gradients"});
  CHECK(names_of(plan, "roles") == Names{"alone qkv", "kept qkv", "alone q", "kept q", "alone k", "kept k",
                                         "alone v", "kept v", "alone o", "kept o", "alone gate_up",
                                         "kept gate_up", "alone down", "kept down"});
  CHECK(names_of(plan, "blocks") ==
        Names{"alone 0", "kept 0", "alone 1", "kept 1", "alone 2", "kept 2", "alone 3", "kept 3"});
  CHECK(names_of(plan, "linears").size() == 16);
  CHECK(names_of(plan, "elements") == Names{"variant e4m4", "variant e3m4", "variant e5m3", "variant e3m3",
                                            "variant e4m2", "variant e5m2"});
  CHECK(names_of(plan, "scales") == Names{"variant tensor", "variant 1x128", "variant 1x32"});
  CHECK(sensitivity_cells(plan).skipped.empty());
  CHECK(names_of(plan_of("bf16", "all"), "recipe") == Names{"whole bf16", "control nothing"});
  CHECK(sensitivity_cells(plan_of("bf16", "all")).cells.size() == 2);
  CHECK(most_cells(plan) == sensitivity_cells(plan).cells.size() + 2 * 5);  // sets of 1, 2, 4, 8, 16 cells
  CHECK(most_cells(plan_of("rowwise", "")) == 0);
}

TEST_CASE("sensitivity: a converted head and layers in BF16 are respected", "[sensitivity]") {
  Case c;
  c.recipe = "rowwise", c.head = "recipe", c.keep_bf16 = "block:1,o";
  c.fidelity_batches = 1, c.sensitivity = "roles,blocks";
  const Plan plan = validate(c);
  CHECK(names_of(plan, "blocks") == Names{"alone 0", "kept 0", "alone 2", "kept 2", "alone 3", "kept 3"});
  const auto cells = by_name(plan);
  CHECK(!cells.contains("roles kept o"));
  CHECK(cells.at("roles kept head").keep_bf16 == Names{"block:1", "o", "head"});
  CHECK(cells.at("blocks kept 2").keep_bf16 == Names{"block:1", "block:2", "o"});
  CHECK(!cells.at("roles kept head").layers.head_converted);
  CHECK(cells.at("roles alone head").layers.head_converted);
  CHECK(std::fabs(*cells.at("roles alone head").kept_flops + *cells.at("roles kept head").kept_flops - 1) <
        1e-12);
}

TEST_CASE("sensitivity: a cell's keep_bf16 words choose the layers that it measures", "[sensitivity]") {
  for (const char* keep : {"", "first:1,o", "k"}) {
    const Plan plan = plan_of("tensorwise", "roles,blocks,linears", keep);
    int kept = 0;
    for (const SensitivityCell& cell : sensitivity_cells(plan).cells) {
      if (cell.name.kind != CellKind::kept) continue;
      ++kept;
      INFO(name_of(cell) << " of --keep-bf16 \"" << keep << "\"");
      Case c = plan.fields;
      c.keep_bf16 = fmt::format("{}", fmt::join(cell.keep_bf16, ","));
      const Plan again = validate(c);
      CHECK(again.converted == cell.layers.converted);
      CHECK(again.head_converted == cell.layers.head_converted);
    }
    CHECK(kept >= 15);
  }
}

TEST_CASE("sensitivity: FLOP shares of the parts add up to one", "[sensitivity]") {
  for (const char* model : {"tiny", "tiny-moe", "tiny-moe-shared"}) {
    INFO(model);
    Case c;
    c.model = model, c.recipe = "rowwise", c.fidelity_batches = 1,
    c.sensitivity = "gemms,roles,blocks,linears";
    std::map<std::string, double> alone, kept;
    for (const SensitivityCell& cell : sensitivity_cells(validate(c)).cells) {
      if (cell.name.part == "q" || cell.name.part == "k" || cell.name.part == "v") continue;
      if (cell.name.kind == CellKind::alone) alone[cell.name.group] += 1 - *cell.kept_flops;
      if (cell.name.kind == CellKind::kept) kept[cell.name.group] += *cell.kept_flops;
    }
    for (const char* group : {"gemms", "roles", "blocks"}) CHECK(std::fabs(alone.at(group) - 1) < 1e-12);
    for (const char* group : {"gemms", "roles", "blocks", "linears"})
      CHECK(std::fabs(kept.at(group) - 1) < 1e-12);
  }
  const auto cells = by_name(plan_of("rowwise", "roles"));
  const auto part = [&](const char* name) { return *cells.at(std::string("roles kept ") + name).kept_flops; };
  CHECK(std::fabs(part("q") + part("k") + part("v") - part("qkv")) < 1e-12);
  CHECK(part("k") == part("v"));
  const Plan plan = plan_of("rowwise", "roles");
  const FlopCount flops = flops_per_token(plan.model, plan.T);
  CHECK(std::fabs(quantized_flops(plan) -
                  static_cast<double>(flops.gemm) / static_cast<double>(flops.total())) < 1e-12);
  CHECK(quantized_flops(plan_of("bf16", "roles")) == 0);
}

TEST_CASE("sensitivity: operands are quantized by their contents", "[sensitivity]") {
  const auto cells = by_name(plan_of("tensorwise", "operands"));
  const auto quantized = [&](const char* name) {
    const Recipe& r = cells.at(std::string("operands alone ") + name).layers.recipe;
    std::string text;
    for (const GemmRole role : kGemmRoles)
      text +=
          std::string(r.gemm(role).a.quantized() ? "a" : "-") + (r.gemm(role).b.quantized() ? "b " : "- ");
    return text;
  };
  CHECK(quantized("weights") == "-b -b -- ");
  CHECK(quantized("activations") == "a- -- -b ");
  CHECK(quantized("gradients") == "-- a- a- ");
  for (const auto& [name, cell] : cells)
    if (cell.name.group == "operands") CHECK(!cell.kept_flops);
}

TEST_CASE("sensitivity: variants change only the elements or only the scales", "[sensitivity]") {
  const auto cells = by_name(plan_of("tensorwise", "elements,scales"));
  const Recipe& whole = cells.at("recipe whole tensorwise").layers.recipe;
  const Recipe& finer = cells.at("elements variant e4m4").layers.recipe;
  const Recipe& rows = cells.at("scales variant row").layers.recipe;
  for (const GemmRole role : kGemmRoles) {
    QuantFormat format = whole.gemm(role).a;
    format.dtype = DType::e4m4;
    CHECK(finer.gemm(role).a == format);
    CHECK(finer.gemm(role).fast_accum == whole.gemm(role).fast_accum);
    CHECK(rows.gemm(role).a.dtype == whole.gemm(role).a.dtype);
    CHECK(rows.gemm(role).a.granularity == Granularity::row);
    CHECK(!cells.at("scales variant 1x32").layers.recipe.gemm(role).fast_accum);
  }
}

TEST_CASE("sensitivity: impossible cells are skipped or have a note", "[sensitivity]") {
  CHECK(names_of(plan_of("tensorwise_delayed", "roles"), "roles").size() == 8);  // no separate q, k, v
  const SensitivityCells nvfp4 = sensitivity_cells(plan_of("nvfp4_all", "operands,elements,scales"));
  CHECK(nvfp4.skipped.size() == 2);
  const auto gradients =
      std::find_if(nvfp4.cells.begin(), nvfp4.cells.end(),
                   [](const SensitivityCell& cell) { return cell.name.part == "gradients"; });
  REQUIRE(gradients != nvfp4.cells.end());
  CHECK(gradients->note == "GEMMs with a transform are in BF16");
  CHECK(!by_name(plan_of("rowwise", "operands")).at("operands alone weights").note);
  CHECK(!gradients->layers.recipe.wgrad.a.quantized());
  const auto quartet = by_name(plan_of("quartet", "gemms"));
  const Recipe& wgrad = quartet.at("gemms alone wgrad").layers.recipe;
  CHECK((!wgrad.wgrad.b.from_fprop && !wgrad.mask_clipped && wgrad.wgrad.b.quantized()));
  CHECK(quartet.at("gemms alone wgrad").note == "backward quantizes values, not fprop's codes");
  CHECK(quartet.at("gemms kept dgrad").layers.recipe.wgrad.b.from_fprop);
  Case flow;
  flow.recipe = "blockwise_pow2", flow.flow = "on", flow.fidelity_batches = 1, flow.sensitivity = "gemms";
  const auto transposed = by_name(validate(flow));
  CHECK(transposed.at("recipe whole blockwise_pow2").layers.recipe.flow);
  CHECK(!transposed.at("gemms alone wgrad").layers.recipe.flow);
  CHECK(transposed.at("gemms alone wgrad").note == "wgrad quantizes values, not transposed codes");
  // No grouped GEMM supports element formats that no processor multiplies.
  Case experts;
  experts.model = "tiny-moe", experts.recipe = "rowwise", experts.fidelity_batches = 1;
  experts.sensitivity = "elements";
  CHECK(sensitivity_cells(validate(experts)).skipped.size() == 4);
}

TEST_CASE("sensitivity: sets grow and skip layers that they already have", "[sensitivity]") {
  const Plan plan = plan_of("rowwise", "roles,blocks,best");
  const std::vector<SensitivityCell> cells = sensitivity_cells(plan).cells;
  const auto cell = [&](const char* group, const char* part) {
    return &*std::find_if(cells.begin(), cells.end(), [&](const SensitivityCell& one) {
      return one.name.group == group && one.name.kind == CellKind::kept && one.name.part == part;
    });
  };
  const auto sets =
      sets_together(plan,
                    {cell("blocks", "2"), cell("roles", "qkv"), cell("roles", "v"), cell("roles", "down"),
                     cell("blocks", "0"), cell("blocks", "1"), cell("blocks", "3")},
                    "price");
  REQUIRE(sets.size() == 3);
  CHECK(name_of(sets[0]) == "best set 1 by price");
  CHECK(sets[0].keep_bf16 == Names{"block:2"});
  CHECK(sets[1].keep_bf16 == Names{"block:2", "qkv"});
  CHECK(sets[2].keep_bf16 == Names{"block:2", "block:0", "qkv", "down"});
  CHECK(*sets[0].kept_flops == *cell("blocks", "2")->kept_flops);
  CHECK(*sets[2].kept_flops > *sets[1].kept_flops);
  CHECK(*sets[2].kept_flops < 1);
}
