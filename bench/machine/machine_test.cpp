// Machine files: every preset number has a source, and a user's file with a mistake is refused by name.
#include "bench/machine/machine.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "bench/machine/datasheet.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using Json = nlohmann::json;

/// Returns why the smallest accepted file is refused with `change` applied; empty if it is not.
std::string refusal_of_file(const std::string& change) {
  Json json =
      Json::parse(R"({"compute_capability": "8.0", "bf16_tflops": 1, "memory_gb_per_s": 1, "memory_gb": 1,
      "levels": [{"name": "link", "gpus": 8, "gb_per_s": 1, "alpha_us": 1}]})");
  json.merge_patch(Json::parse(change));
  return refusal_of([&] { machine_from_json(json, "mine", "--on: mine.json"); });
}

/// Lists the objects that hold a number and no source. Fractions by ranks belong to their level.
void collect_unsourced(const Json& json, const std::string& place, std::vector<std::string>& found) {
  bool numbers = false;
  for (const auto& [key, value] : json.items()) {
    numbers = numbers || value.is_number() || key == "achieved";
    if (key != "achieved" && value.is_structured()) collect_unsourced(value, place + "." + key, found);
  }
  if (json.is_object() && numbers && json.value("source", "").empty()) found.push_back(place);
}

TEST_CASE("machine files: every number of a preset has a source", "[machine]") {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PRECBENCH_SOURCE_DIR "/results/machines")) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    std::ifstream in(entry.path());
    std::vector<std::string> unsourced;
    collect_unsourced(Json::parse(in), entry.path().filename(), unsourced);
    CHECK(unsourced == std::vector<std::string>{});
  }
  CHECK(files == machine_presets().size());
  // The check itself finds a number without a source, at the root and in a level.
  std::vector<std::string> found;
  collect_unsourced(Json::parse(R"({"bf16_tflops": 1, "levels": [{"achieved": {"2": 0.5}}]})"), "x", found);
  CHECK(found == std::vector<std::string>{"x.levels.0", "x"});
}

TEST_CASE("machine_presets: have unique names and ascending levels and peaks of what is native",
          "[machine]") {
  std::set<std::string> names;
  for (const Machine& machine : machine_presets()) {
    INFO(machine.name);
    CHECK(names.insert(machine.name).second);
    for (const std::string& other : machine.also) CHECK(names.insert(other).second);
    CHECK_FALSE(machine.levels.empty());
    CHECK(machine.native.any());
    if (!machine.rates_from.empty()) CHECK_NOTHROW(find_machine(machine.rates_from));
  }
}

TEST_CASE("find_machine: finds presets by their names and by words of the driver's name", "[machine]") {
  CHECK(find_machine("h200").driver_name == "NVIDIA H200");
  CHECK(find_machine("gb200").name == "gb200-nvl72");
  CHECK(find_machine("gb200").levels.at(0).gpus == 72);
  CHECK(find_machine("H100").name == "h100-sxm");
  CHECK(find_machine("rtx4090").name == "rtx-4090");
  CHECK(find_machine("h200").capability == 90);
  const std::string refusal = refusal_of([] { find_machine("h2000"); });
  CHECK(contains(refusal, "--on: no machine \"h2000\"; known: a100-sxm-80gb, "));
  CHECK(contains(refusal_of([] { find_machine("absent.json"); }), "--on: absent.json: no such file"));
}

TEST_CASE("find_machine: says where a user's file is no JSON", "[machine]") {
  const TempDirectory folder;
  const std::string path = folder.write("mine.json", "{\"bf16_tflops\": 989,}");
  CHECK(refusal_of([&] { find_machine(path); }) == "--on: " + path + ": not valid JSON in line 1, column 21");
  const std::string twice = folder.write("twice.json", R"({"levels": [{"gpus": 8, "gpus": 4}]})");
  CHECK(refusal_of([&] { find_machine(twice); }) ==
        "--on: " + twice + ": levels[0].gpus: given twice; remove one of the two");
  const std::string nested = folder.write("nested.json", std::string(150'000, '['));
  CHECK(contains(refusal_of([&] { find_machine(nested); }), "nested deeper than"));
  std::filesystem::create_directory(folder.path() / "folder.json");
  CHECK(contains(refusal_of([&] { find_machine((folder.path() / "folder.json").string()); }),
                 "folder.json: a folder, not a file"));
}

TEST_CASE("find_machine_of_gpu: an unknown name has no preset, and neither has an empty one", "[machine]") {
  CHECK(find_machine_of_gpu("NVIDIA H200")->name == "h200");
  CHECK_FALSE(find_machine_of_gpu("NVIDIA H200 MIG 1g.18gb"));
  CHECK_FALSE(find_machine_of_gpu(""));
}

TEST_CASE("find_machine: reads a user's file", "[machine]") {
  const auto path = std::filesystem::temp_directory_path() / "precbench-machine-test.json";
  std::ofstream(path) << R"({"compute_capability": "9.0", "bf16_tflops": 800, "fp8_tflops": 1600,
    "memory_gb_per_s": 3000, "memory_gb": 96, "sustained": {"bf16": 600}, "rates": {"from": "h200"},
    "levels": [{"name": "NVLink", "gpus": 4, "gb_per_s": 400, "achieved": {"all_gather": {"2": 0.5}, "other": 0.8},
                "alpha_us": 2},
               {"name": "NIC", "gpus": "all", "gb_per_s": 25, "alpha_us": 5}]})";
  const Machine machine = find_machine(path.string());
  std::filesystem::remove(path);
  CHECK(machine.name == "precbench-machine-test");
  CHECK(machine.sustained.bf16 == 600.0);
  CHECK_FALSE(machine.sustained.fp8);
  CHECK(machine.rates_from == "h200");
  REQUIRE(machine.levels.size() == 2);
  CHECK(machine.levels[0].achieved.at("all_gather").at(2) == 0.5);
  CHECK(machine.levels[0].achieved.at("").at(1) == 0.8);
  CHECK(machine.levels[1].gpus == 0);
  CHECK(machine.levels[1].achieved.at("").at(1) == 1.0);
  CHECK(machine.native == native_formats(90));
}

TEST_CASE("machine_from_json: refuses unknown keys and missing peaks by name", "[machine]") {
  for (const auto& [change, message] : {
           std::pair(R"({"nics": 8})", "--on: mine.json: unknown key \"nics\"; known: "),
           std::pair(R"({"bf16_tflops": null})", "--on: mine.json: \"bf16_tflops\" is missing"),
           std::pair(R"({"memory_gb": null})", "--on: mine.json: \"memory_gb\" is missing"),
           std::pair(R"({"memory_gb_per_s": 0})",
                     "--on: mine.json: memory_gb_per_s: 0 is not a number from 0.01 to 10000000"),
           std::pair(R"({"bf16_tflops": "989"})",
                     "bf16_tflops: \"989\" is not a number from 0.001 to 1000000"),
           std::pair(R"({"fp8_tflops": 1e308})", "fp8_tflops: 1e+308 is not a number from 0.001 to 1000000"),
           std::pair(R"({"memory_gb": 1e300})", "memory_gb: 1e+300 is not a number from 0.01 to 1000000"),
           std::pair(R"({"sustained": {"bf16": 1e-300}})",
                     "sustained: bf16: 1e-300 is not a number from 0.001 to 1000000"),
           std::pair(R"({"compute_capability": "nan"})", "is not of the form \"9.0\""),
           std::pair(R"({"compute_capability": "9.0"})", "\"fp8_tflops\" is missing, and FP8 is native"),
           std::pair(R"({"compute_capability": "10.0", "fp8_tflops": 1})", "\"fp4_tflops\" is missing"),
           std::pair(R"({"compute_capability": "ninety"})", "is not of the form \"9.0\""),
           std::pair(R"({"compute_capability": 9.0})", "compute_capability: 9.0 is not a string"),
           std::pair(R"({"compute_capability": null})",
                     "--on: mine.json: \"native\" is missing, and there is no \"compute_capability\""),
           std::pair(R"({"compute_capability": "90"})", "\"native\" is missing, and this compute_capability"),
           std::pair(R"({"rates": {}})", "--on: mine.json: rates: \"from\" is missing"),
           std::pair(R"({"native": ["int8"]})", "native: unknown format \"int8\"; known: bf16, "),
           std::pair(R"({"sustained": {"fp16": 1}})", "sustained: unknown key \"fp16\""),
           std::pair(R"({"rates": {"of": "h200"}})", "rates: unknown key \"of\""),
           std::pair(R"({"levels": {}})", "levels: not a list"),
           std::pair(R"({"levels": [{"gpus": 8}]})", "levels[0]: \"name\" is missing"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 8, "alpha_us": 1}]})",
                     "levels[0]: \"gb_per_s\" is missing"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 0, "gb_per_s": 1, "alpha_us": 1}]})",
                     "levels[0]: gpus: 0 is not a whole number from 1 to 1048576"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 1e300, "gb_per_s": 1, "alpha_us": 1}]})",
                     "levels[0]: gpus: 1e+300 is not a whole number from 1 to 1048576"),
           std::pair(R"({"levels": [{"name": "a", "gpus": "most", "gb_per_s": 1, "alpha_us": 1}]})",
                     "levels[0]: gpus: a text, and neither a number of GPUs nor \"all\""),
           std::pair(R"({"levels": [{"name": "a", "gpus": 8, "gb_per_s": 1e-300, "alpha_us": 1}]})",
                     "levels[0]: gb_per_s: 1e-300 is not a number from 0.001 to 1000000"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 8, "gb_per_s": 1, "alpha_us": 1e300}]})",
                     "levels[0]: alpha_us: 1e+300 is not a number from 0.001 to 1000000"),
           std::pair(R"({"levels": [1, 2, 3, 4, 5, 6, 7, 8, 9]})",
                     "levels: 9 levels, and at most 8 are read"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 8, "gb_per_s": 1, "alpha_us": 1,
                         "achieved": {"1": 0.9, "2000000000": 0.5}}]})",
                     "\"2000000000\" is no number of ranks from 1 to 1048576"),
           std::pair(
               R"({"levels": [{"name": "a", "gpus": 8, "gb_per_s": 1, "alpha_us": 1, "achieved": 1.5}]})",
               "achieved: 1.5 is not a number from 0.0001 to 1"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 8, "gb_per_s": 1, "alpha_us": 1,
                         "achieved": {"all_gather": 0.5}}]})",
                     "achieved: \"other\" is missing"),
           std::pair(R"({"levels": [{"name": "a", "gpus": 8, "gb_per_s": 1, "alpha_us": 1},
                                    {"name": "b", "gpus": 12, "gb_per_s": 1, "alpha_us": 1}]})",
                     "levels[1]: \"gpus\" is no multiple of the inner level's 8"),
       }) {
    INFO(change);
    CHECK(contains(refusal_of_file(change), message));
  }
  CHECK(refusal_of_file("{}").empty());
}

TEST_CASE("datasheet_rates: are those of the machine files", "[machine]") {
  for (const Machine& machine : machine_presets()) {
    if (machine.driver_name.empty()) continue;
    const auto rates = datasheet_rates(machine.driver_name);
    REQUIRE(rates);
    CHECK(rates->memory_gb == machine.memory_gb);
    CHECK(rates->source == machine.source);
  }
}

}  // namespace
}  // namespace precbench
