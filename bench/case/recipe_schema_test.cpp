// kernels/numerics/recipe.schema.json agrees with the program: every recipe is valid, allowed values of an
// operand's keys are read, and others are refused.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kernels/numerics/recipe.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/schema.h"

using namespace precbench;
using nlohmann::json;

namespace {

std::string text_of_schema() {
  std::ifstream file(PRECBENCH_SOURCE_DIR "/kernels/numerics/recipe.schema.json");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> violations(const json& row) {
  static const Schema schema(text_of_schema());
  return schema.violations(nlohmann::ordered_json(row));
}

/// Returns a recipe whose first operand has another value, based on a recipe whose other keys fit.
json row_with(const char* key, const std::string& value) {
  const bool mx = value == "1x32" || value == "32x32" || value == "ue8m0" || value == "ue5m3" ||
                  std::string(key) == "scale_rounding";
  const bool nv = value == "e2m1" || value == "1x16" || value == "16x16" ||
                  std::string(key) == "element_rounding" || (value == "e4m3" && std::string(key) == "scale");
  if (value == "1x64") {
    json row = recipe_to_json(find_recipe("nf4_weights"));
    row["name"] = "mine";
    row["weight_only"][key] = value;
    return row;
  }
  const char* base = value == "bf16"                          ? "bf16"
                     : value == "quest"                       ? "quartet"
                     : nv                                     ? "nvfp4"
                     : mx                                     ? "mxfp8"
                     : value == "1x128" || value == "128x128" ? "blockwise"
                     : value == "tensor"                      ? "tensorwise"
                                                              : "rowwise";
  json row = recipe_to_json(find_recipe(base));
  row["name"] = "mine";
  row["fprop"]["a"][key] = value;
  if (value == "ue5m3") row["fprop"]["a"].erase("scale_rounding");
  if (value == "128x128") row["fprop"]["b"]["granularity"] = "1x128";
  return row;
}

}  // namespace

TEST_CASE("recipe schema: every built-in recipe is valid", "[recipe]") {
  for (const Recipe& recipe : named_recipes())
    CHECK(violations(recipe_to_json(recipe)) == std::vector<std::string>{});
  json row = recipe_to_json(find_recipe("rowwise"));
  row["layers"] = {{"keep_bf16", {"first:1"}}};
  row["schedule"] = {"bf16@0.82"};
  CHECK(violations(row) == std::vector<std::string>{});
  row["name"] = "mine";
  row["operands"] = {{"x", row["fprop"]["a"]}};
  row["fprop"]["a"] = "x";
  row["wgrad"]["a"] = {{"like", "x"}, {"format", "e5m2"}};
  CHECK(violations(row) == std::vector<std::string>{});
  CHECK(refusal_of([&] { recipe_from_json(json(row)); }) == "");
  row["layers"]["keep"] = 1;
  CHECK(violations(row).size() == 1);
}

TEST_CASE("recipe schema: lists exactly the values of history and gradients that are read", "[recipe]") {
  const json schema = json::parse(text_of_schema());
  const json history = schema.at("$defs").at("operand").at("properties").at("history").at("properties");
  const auto row_with_history = [](const std::string& key, const json& value) {
    json row = recipe_to_json(find_recipe("tensorwise_delayed"));
    row["name"] = "mine";
    for (const char* gemm : {"fprop", "dgrad", "wgrad"})
      for (const char* operand : {"a", "b"}) row[gemm][operand]["history"][key] = value;
    return row;
  };
  const auto row_with_gradients = [](const std::string& key, const json& value) {
    json row = recipe_to_json(find_recipe("msamp_o1"));
    row["name"] = "mine";
    row["gradients"][key] = value;
    return row;
  };
  const auto check = [](const json& keys, const auto& row_of) {
    for (const auto& item : keys.items()) {
      const json allowed = item.value().value("enum", json::array({true, false}));
      if (item.value().value("type", "") == "integer") continue;
      for (const json& value : allowed) {
        INFO(item.key() << " " << value);
        CHECK(refusal_of([&] { recipe_from_json(row_of(item.key(), value)); }) == "");
        CHECK(violations(row_of(item.key(), value)) == std::vector<std::string>{});
      }
      CHECK(refusal_of([&] { recipe_from_json(row_of(item.key(), "zzzz")); }) != "");
      CHECK(!violations(row_of(item.key(), "zzzz")).empty());
    }
  };
  check(history, row_with_history);
  check(schema.at("properties").at("gradients").at("properties"), row_with_gradients);
}

TEST_CASE("recipe schema: names the element formats that are read and allows grids", "[recipe]") {
  const json operand = json::parse(text_of_schema()).at("$defs").at("operand").at("properties");
  const auto row_of = [](const json& format) {
    json row = row_with("format", format.is_string() ? format.get<std::string>() : "e4m3");
    row["fprop"]["a"]["format"] = format;
    return row;
  };
  const std::string why = refusal_of([&] { recipe_from_json(row_of("zzzzzzzzzzzzzzzz")); });
  const std::string names = why.substr(why.find("one of ") + 7);
  CHECK(contains(operand.at("format").at("description").get<std::string>(), names));
  for (const json& format : {json("e3m3"), json{{"grid", {0, 0.5, 1}}}, json{{"grid", {-8, 0, 7}}}}) {
    INFO(format);
    CHECK(refusal_of([&] { recipe_from_json(row_of(format)); }) == "");
    CHECK(violations(row_of(format)).empty());
  }
  for (const json& format : {json(8), json{{"gird", {0, 1}}}, json{{"grid", {0, "1"}}}, json::object()}) {
    INFO(format);
    CHECK(refusal_of([&] { recipe_from_json(row_of(format)); }) != "");
    CHECK_FALSE(violations(row_of(format)).empty());
  }
}

TEST_CASE("recipe schema: lists exactly the operand values that are read", "[recipe]") {
  const json operand = json::parse(text_of_schema()).at("$defs").at("operand").at("properties");
  for (const auto& item : operand.items()) {
    const std::string& key = item.key();
    const json& allowed = item.value();
    if (!allowed.contains("enum")) continue;
    std::string listed;
    for (const json& value : allowed.at("enum")) {
      INFO(key << " " << value);
      CHECK(refusal_of([&] { recipe_from_json(row_with(key.c_str(), value)); }) == "");
      listed += (listed.empty() ? "" : ", ") + value.get<std::string>();
    }
    // The message for an unknown word lists all allowed ones.
    const std::string why = refusal_of([&] {
      json row = recipe_to_json(find_recipe("mxfp8"));
      row["name"] = "mine";
      row["fprop"]["a"][key] = "zzzzzzzzzzzzzzzz";
      recipe_from_json(row);
    });
    CHECK(why == "fprop.a." + key + ": unknown value \"zzzzzzzzzzzzzzzz\"; one of " + listed);
    CHECK(violations(row_with(key.c_str(), "zzzz")).size() == 1);
  }
}
