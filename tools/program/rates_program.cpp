// Reads records and writes rates. See rates_program.h.
#include "tools/program/rates_program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/machine/machine.h"
#include "bench/predict/fit_rates.h"
#include "kernels/base/errors.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

/// Returns "nvidia-h200.json" for "NVIDIA H200".
std::string file_of(const Machine& machine) {
  std::string name;
  for (const char c : machine.driver_name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u))
      name += static_cast<char>(std::tolower(u));
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  return name + ".json";
}

/// Returns the text with a line for each source and each point, so that versions can be compared.
std::string text_of(const Rates& rates) {
  nlohmann::ordered_json json = rates_to_json(rates);
  std::string text = "{\n";
  for (const auto& [key, value] : json.items()) {
    if (text.size() > 2) text += ",\n";
    text += fmt::format("\"{}\": ", key);
    if (key != "sources" && key != "points") {
      text += value.dump();
      continue;
    }
    text += "[";
    for (std::size_t i = 0; i < value.size(); ++i) text += (i ? ",\n" : "\n") + value[i].dump();
    text += "\n]";
  }
  return text + "\n}\n";
}

}  // namespace

CLI::App* add_rates_command(CLI::App& app, RatesCommand& command) {
  CLI::App* sub = app.add_subcommand("rates", "rates of ops by shape from records, for --dry-run --on");
  sub->footer(
      "Uses native steps on one GPU; of several records of one case the latest. Ops of older records are divided\n"
      "among their shapes by a dry run of the case.\n"
      "\n"
      "Examples:\n"
      "  precbench sweep --config bench/sweeps/rates.toml\n"
      "  precbench rates out/rates results/h200/single.jsonl");
  sub->add_option("PATH", command.paths, "record files, folders of *.jsonl, or - for standard input")
      ->required()
      ->type_name("");
  sub->add_option("-o,--output", command.output, "folder for a file of each GPU model")
      ->type_name("DIR")
      ->capture_default_str();
  return sub;
}

int rates(const RatesCommand& command) {
  const RecordSet set = read_records(command.paths);
  std::map<std::string, std::vector<const Record*>> by_gpu;
  for (const LocatedRecord& located : set.records)
    if (located.record.env.gpu) by_gpu[located.record.env.gpu->name].push_back(&located.record);
  bool written = false;
  for (const auto& [gpu, records] : by_gpu) {
    const Machine* machine = find_machine_of_gpu(gpu);
    if (!machine) {
      fmt::print("{}: no machine file, so no peaks\n", gpu);
      continue;
    }
    const FittedRates fitted = fit_rates(*machine, records);
    std::map<std::string, int> reasons;
    for (const std::string& line : fitted.skipped) ++reasons[line.substr(line.find(": ") + 2)];
    for (const auto& [reason, count] : reasons)
      fmt::print("{}: {} records skipped: {}\n", gpu, count, reason);
    if (fitted.rates.points.empty()) continue;
    std::filesystem::create_directories(command.output);
    const std::filesystem::path path = std::filesystem::path(command.output) / file_of(*machine);
    std::ofstream file(path);
    file << text_of(fitted.rates);
    if (!file.flush()) throw InvalidInput(fmt::format("-o: cannot write {}", path.string()));
    const RateErrors& errors = fitted.rates.errors;
    fmt::print("{}: {} points of {} steps; errors without the own model and recipe: ", path.string(),
               fitted.rates.points.size(), fitted.rates.sources.size());
    for (int i = 0; i < kRateClasses; ++i)
      fmt::print("{}{} {:.1f}%", i ? ", " : "", name_of(static_cast<RateClass>(i)),
                 100 * errors.by_class[static_cast<std::size_t>(i)]);
    fmt::print("; equal cases {:.1f}% apart\n", 100 * errors.step);
    written = true;
  }
  return written ? 0 : 1;
}

}  // namespace precbench
