// Reads records and writes rates. See rates_program.h.
#include "tools/program/rates_program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/machine/machine.h"
#include "bench/predict/fit_rates.h"
#include "bench/process/standard_error.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/compressed.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"
#include "results/record/short_text.h"
#include "results/record/step_time.h"
#include "tools/text/write_file.h"

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
      "Uses native steps on one GPU; of several records of one case the latest.\n"
      "Ops of older records are divided among their shapes by a dry run of the case.\n"
      "\n"
      "Examples:\n"
      "  precbench sweep --config bench/sweeps/rates.toml\n"
      "  precbench rates out/rates results/h200/single.jsonl.xz");
  sub->add_option("PATH", command.paths,
                  "record files (.jsonl, .jsonl.xz), folders of them, or - for standard input")
      ->required()
      ->type_name("");
  sub->add_option("-o,--output", command.output, "folder for a file of each GPU model")
      ->type_name("DIR")
      ->capture_default_str();
  return sub;
}

int rates(const RatesCommand& command) {
  refuse_compressed(command.paths, "precbench rates -");
  const RecordSet set = read_records(command.paths);
  for (const std::string& problem : set.problems) log_line(problem);
  std::map<std::string, std::vector<const Record*>> by_gpu;
  for (const LocatedRecord& located : set.records)
    if (located.record.env.gpu) by_gpu[located.record.env.gpu->name].push_back(&located.record);
  std::size_t of_gpus = 0;
  for (const auto& [gpu, records] : by_gpu) of_gpus += records.size();
  if (of_gpus < set.records.size())
    fmt::print("{} skipped: not of a GPU\n", plural(set.records.size() - of_gpus, "record"));
  bool written = false;
  for (const auto& [gpu, records] : by_gpu) {
    const Machine* machine = find_machine_of_gpu(gpu);
    if (!machine) {
      fmt::print("{}: no machine file, so no peaks\n", short_printable(gpu, kLongestCell));
      continue;
    }
    const FittedRates fitted = fit_rates(*machine, records);
    std::map<std::string, int> reasons;
    for (const std::string& line : fitted.skipped) ++reasons[line.substr(line.find(": ") + 2)];
    for (const auto& [reason, count] : reasons)
      fmt::print("{}: {} skipped: {}\n", short_printable(gpu, kLongestCell), plural(count, "record"),
                 short_printable(reason, kLongestLine));
    if (fitted.rates.points.empty()) continue;
    make_folder(command.output);
    const std::filesystem::path path = std::filesystem::path(command.output) / file_of(*machine);
    write_file(path.string(), text_of(fitted.rates));
    const RateErrors& errors = fitted.rates.errors;
    fmt::print("{}: {} points of {} steps; errors without the own model and recipe: ",
               printable(path.string()), fitted.rates.points.size(), fitted.rates.sources.size());
    for (int i = 0; i < kRateClasses; ++i)
      fmt::print("{}{} {:.1f}%", i ? ", " : "", name_of(static_cast<RateClass>(i)),
                 100 * errors.by_class[static_cast<std::size_t>(i)]);
    fmt::print("; equal cases {:.1f}% apart\n", 100 * errors.step);
    for (const std::string& doubt : doubts_of_all(fitted.used)) fmt::print("  {}\n", printable(doubt));
    written = true;
  }
  if (!written) log_line("precbench: rates: nothing was written: no record gives a rate");
  return written ? 0 : 1;
}

}  // namespace precbench
