// Reads logs, prints what they say and appends records. See import_command.h.
#include "tools/import/import_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/line_reader.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"
#include "tools/import/line_scan.h"
#include "tools/import/read_log.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns the time of a log's last change; of a descriptor the present time.
std::string written_at(const std::string& path) {
  using namespace std::chrono;
  std::error_code error;
  if (!named_descriptor(path)) {
    const fs::file_time_type time = fs::last_write_time(path, error);
    if (!error)
      return iso_time(
          static_cast<double>(duration_cast<seconds>(file_clock::to_sys(time).time_since_epoch()).count()));
  }
  return iso_time(
      static_cast<double>(duration_cast<seconds>(system_clock::now().time_since_epoch()).count()));
}

/// Returns the value for a run: one for all runs, or one for each.
template <class T>
std::optional<T> value_of_run(const char* flag, const std::vector<T>& values, std::size_t run,
                              std::size_t runs) {
  if (values.empty()) return std::nullopt;
  if (values.size() == 1) return values.front();
  if (values.size() != runs)
    throw InvalidInput(fmt::format("{}: {} for {}; give one, or one for each run in order", flag,
                                   plural(values.size(), "value"), plural(runs, "run")));
  return values[run];
}

void check_counts(const ImportOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const auto& [flag, value] :
       {std::pair{"--seq", options.seq}, std::pair{"--global-batch", options.global_batch},
        std::pair{"--gpus", options.gpus}})
    if (value && (*value < 1 || *value > kMost))
      throw InvalidInput(fmt::format("{} {}: needs a whole number from 1 to {}", flag, *value, kMost));
}

/// Returns true if the records of a folder have an import of the same run of the same log.
bool is_known(const RecordSet& known, const Record& record) {
  for (const LocatedRecord& located : known.records)
    if (located.record.id == record.id && located.record.source &&
        located.record.source->file_sha256 == record.source->file_sha256 &&
        located.record.source->run == record.source->run)
      return true;
  return false;
}

struct Output {
  std::string file;  ///< empty: none
  RecordSet known;

  explicit Output(const std::string& folder) {
    if (folder.empty()) return;
    make_folder(folder);
    file = (fs::path(folder) / "records.jsonl").string();
    std::error_code error;
    if (fs::exists(file, error) && fs::file_size(file, error) > 0)
      known = read_records({file}, nullptr, Repeats::all);
    for (const LocatedRecord& located : known.records)
      if (!located.record.source)
        throw InvalidInput(fmt::format(
            "--out {}: has records that precbench measured ({}); imports need a folder of their own", folder,
            located.origin.text()));
  }
  /// Returns what was done with the record.
  std::string add(const Record& record) {
    if (file.empty()) return "";
    if (is_known(known, record)) return fmt::format("already in {}", printable(file));
    append_record(file, record);
    known.records.push_back({record, {file, known.records.size() + 1}});
    return fmt::format("record {} in {}", record.id, printable(file));
  }
};

/// Prints how a log was read, and returns kNothingRecognised or kImported.
int print_log(const std::string& name, const LogFile& log) {
  if (!log.format) {
    const std::string what =
        log.looks_like.empty() ? "no line of a step is recognised" : "these are " + log.looks_like;
    fmt::print("{}: {}{}\n", printable(name), what,
               log.lines.first_skipped.empty()
                   ? ""
                   : fmt::format("; the first line that is not: {}", log.lines.first_skipped));
    return kNothingRecognised;
  }
  fmt::print("{}: {} log: {} step {}, {} header {}, {} not understood{}{}\n", printable(name),
             log.format->name, log.lines.used, log.lines.used == 1 ? "line" : "lines", log.lines.header,
             log.lines.header == 1 ? "line" : "lines", log.lines.skipped,
             log.lines.first_skipped.empty() ? "" : fmt::format(" (first: {})", log.lines.first_skipped),
             log.cut ? "; the last line has no end and is left out if it may be incomplete" : "");
  return kImported;
}

}  // namespace

int import_logs(const ImportOptions& options, const ImportHost& host) {
  check_counts(options);
  const LogFormat* const format = options.format.empty() ? nullptr : &find_log_format(options.format);
  std::vector<LogFile> logs;
  std::vector<std::string> written;
  std::size_t runs = 0;
  for (const std::string& path : options.paths) {
    written.push_back(written_at(path));
    logs.push_back(read_log(path, format));
    runs += logs.back().runs.size();
  }
  ImportValues given;
  if (!options.model.empty()) given.model = options.model;
  if (!options.gpu.empty()) given.gpu = options.gpu;
  given.seq = options.seq, given.global_batch = options.global_batch, given.gpus = options.gpus;
  // Every flag is checked before anything is written.
  std::vector<ImportedRun> imported;
  std::size_t run = 0;
  for (std::size_t i = 0; i < logs.size(); ++i)
    for (std::size_t number = 1; number <= logs[i].runs.size(); ++number, ++run) {
      given.recipe = value_of_run("--recipe", options.recipes, run, runs);
      given.seed = value_of_run("--seed", options.seeds, run, runs);
      imported.push_back(import_run(logs[i], number, given, host, written[i]));
    }
  Output output(options.out);
  int status = kImported;
  run = 0;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    status = std::max(status, print_log(input_name(options.paths[i]), logs[i]));
    for (std::size_t number = 1; number <= logs[i].runs.size(); ++number, ++run) {
      const ImportedRun& one = imported[run];
      if (logs[i].runs.size() > 1) fmt::print("run {} of {}:\n", number, logs[i].runs.size());
      for (const std::string& line : one.lines) fmt::print("  {}\n", printable(line));
      if (!one.record) {
        status = std::max(status, kImportLacksValues);
        continue;
      }
      if (const std::string done = output.add(*one.record); !done.empty()) fmt::print("  {}\n", done);
    }
  }
  return status;
}

CLI::App* add_import_command(CLI::App& app, ImportOptions& options) {
  CLI::App* command = app.add_subcommand("import", "records from logs of other training programs");
  std::string formats;
  for (const LogFormat& format : log_formats())
    formats += fmt::format("  {:<17} {}\n", format.name, format.steps);
  command->footer(
      "Formats, which the content tells apart:\n" + formats +
      "\n"
      "A flag is needed where the log does not say the value. How the log counts FLOPs is inferred from its numbers.\n"
      "\n"
      "Exit status: 0 every run has a record\n"
      "             1 a run lacks a value, which is named with its flag\n"
      "             2 bad input\n"
      "             3 no line of a step is recognised\n"
      "\n"
      "Examples:\n"
      "  # what does the log say?\n"
      "  precbench import train.log\n"
      "  # a record of it, for report and check\n"
      "  precbench import train.log --recipe mxfp8 --out out/torchtitan");
  command->add_option("PATH", options.paths, "logs, plain or packed with xz, or - for standard input")
      ->required()
      ->type_name("");
  const auto text = [&](const char* flag, std::string& value, const char* help, const char* type) {
    command->add_option(flag, value, help)->type_name(type);
  };
  text("--as", options.format, "format of the logs (default by content)", "FORMAT");
  text("--model", options.model, "preset, hub name or JSON file of the model", "NAME");
  command->add_option("--recipe", options.recipes, "recipe: one, or one for each run in order")
      ->delimiter(',')
      ->type_name("NAME");
  command->add_option("--seed", options.seeds, "seed: one, or one for each run in order")
      ->delimiter(',')
      ->type_name("N");
  command->add_option("--seq", options.seq, "tokens of a sequence")->type_name("N");
  command->add_option("--global-batch", options.global_batch, "sequences of a step, all GPUs together")
      ->type_name("N");
  command->add_option("--gpus", options.gpus, "number of GPUs")->type_name("N");
  text("--gpu", options.gpu, "GPU model, as in h200", "NAME");
  text("--out", options.out, "folder whose records.jsonl gets the records", "DIR");
  return command;
}

}  // namespace precbench
