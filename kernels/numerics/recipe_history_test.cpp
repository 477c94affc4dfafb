// Delayed scaling's history in a recipe's JSON.
#include <tuple>

#include "kernels/numerics/recipe_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("recipe_from_json: history is read and an invalid one throws", "[recipe]") {
  json row = copy_of("tensorwise_delayed");
  for (const char* gemm : {"fprop", "dgrad", "wgrad"})
    for (const char* operand : {"a", "b"})
      row[gemm][operand]["history"] = {
          {"length", 16}, {"algorithm", "most_recent"}, {"first", "one"}, {"margin", 2}};
  const Recipe recipe = recipe_from_json(row);
  CHECK(recipe.wgrad.b.history == History{16, HistoryAlgorithm::most_recent, FirstScale::one, 2});
  CHECK(recipe_from_json(recipe_to_json(recipe)) == recipe);
  row = copy_of("tensorwise_delayed");
  row["fprop"]["a"]["history"] = {{"length", 1024}};
  CHECK(recipe_from_json(row).fprop == find_recipe("tensorwise_delayed").fprop);

  row = recipe_to_json(recipe);
  CHECK(!row["fprop"]["a"]["history"].contains("update"));  // as in records from before there was a choice
  CHECK(!row["fprop"]["a"]["history"].contains("reduce"));
  for (const auto& [key, value, unset, text] :
       {std::tuple<const char*, json, json, std::string>{"update", "micro", "step", " micro"},
        {"reduce", false, true, " by rank"}}) {
    row = recipe_to_json(recipe);
    for (const char* gemm : {"fprop", "dgrad", "wgrad"})
      for (const char* operand : {"a", "b"}) row[gemm][operand]["history"][key] = value;
    const Recipe other = recipe_from_json(row);
    CHECK(other.fprop != recipe.fprop);
    CHECK(recipe_to_json(other)["dgrad"]["a"]["history"][key] == value);
    CHECK(recipe_from_json(recipe_to_json(other)) == other);
    CHECK(describe(other.fprop.a) == "e4m3 tensor f32 most_recent of 16" + text);
    row["wgrad"]["b"]["history"][key] = unset;
    CHECK(error_of_row(row) ==
          "wgrad.b.history: differs from that of fprop.a; a recipe has one kind of history, or none");
    for (const char* gemm : {"fprop", "dgrad", "wgrad"})
      for (const char* operand : {"a", "b"}) row[gemm][operand]["history"][key] = unset;
    CHECK(recipe_from_json(row) == recipe);
  }

  const json some = {{"length", 4}};
  CHECK(error_with("rowwise", "/fprop/a/history", some) ==
        "fprop.a.history: delayed scaling needs granularity tensor and an f32 scale; remove it");
  CHECK(error_with("bf16", "/fprop/a/history", some) == "fprop.a.history: bf16 has no scale; remove it");
  CHECK(error_with("tensorwise", "/dgrad/b/history", some) ==
        "dgrad.b.history: differs from that of fprop.a; a recipe has one kind of history, or none");
  CHECK(error_with("tensorwise_delayed", "/wgrad/a/format", "e4m3") ==
        "wgrad.a: differs from dgrad.a, the same matrix with the same scale");
  const auto broken = [](const char* key, const json& value) {
    json history = {{"length", 4}};
    history[key] = value;
    return error_with("tensorwise_delayed", "/fprop/a/history", history);
  };
  CHECK(broken("lenght", 4) == "fprop.a.history.lenght: unknown key; did you mean length?");
  CHECK(broken("length", 0) == "fprop.a.history.length: expected a whole number from 1 to 8192, got 0");
  CHECK(broken("length", 1.5) == "fprop.a.history.length: expected a whole number from 1 to 8192, got 1.5");
  CHECK(broken("length", 9000) == "fprop.a.history.length: expected a whole number from 1 to 8192, got 9000");
  CHECK(broken("margin", 16) == "fprop.a.history.margin: expected a whole number from 0 to 15, got 16");
  CHECK(broken("algorithm", "mean") ==
        "fprop.a.history.algorithm: unknown value \"mean\"; did you mean max?");
  CHECK(broken("update", "micros") ==
        "fprop.a.history.update: unknown value \"micros\"; did you mean micro?");
  CHECK(broken("reduce", "off") == "fprop.a.history.reduce: expected true or false, got \"off\"");
  CHECK(broken("first", 1) == "fprop.a.history.first: expected a string, got 1");
  CHECK(error_with("tensorwise_delayed", "/fprop/a/history", json::object()) ==
        "fprop.a.history.length: missing; the steps that it looks back on");
}
