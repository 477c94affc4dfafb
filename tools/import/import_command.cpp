// Reads logs, prints what they say and appends records. See import_command.h.
#include "tools/import/import_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/plural.h"
#include "results/record/line_reader.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"
#include "results/text/lines.h"
#include "results/text/screen.h"
#include "tools/analysis/equivalence.h"
#include "tools/gate/gate_noise.h"
#include "tools/import/line_scan.h"
#include "tools/import/loss_verdict.h"
#include "tools/import/read_log.h"
#include "tools/import/samples_to_target.h"
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

/// Returns true if a series begins with another one, which is not empty.
template <class T>
bool begins_with(const std::vector<T>& longer, const std::vector<T>& shorter) {
  return !shorter.empty() && shorter.size() <= longer.size() &&
         std::equal(shorter.begin(), shorter.end(), longer.begin());
}

/// Returns true if `whole` is the run of `part`, whose log was imported while it was being written: its losses, or without any
/// its times, begin with those of the part.
bool continues(const Record& whole, const Record& part) {
  if (whole.id != part.id || !whole.source || !part.source) return false;
  if (whole.training && part.training && !(whole.training->loss.empty() && part.training->loss.empty()))
    return begins_with(whole.source->steps, part.source->steps) &&
           begins_with(whole.training->loss, part.training->loss);
  return whole.timing && part.timing && begins_with(whole.timing->samples_ms, part.timing->samples_ms);
}

/// Records of this and of earlier commands. All runs count, also those that diverged or are of one time, so read_records(), which
/// keeps one record of a case, does not serve.
struct Output {
  std::string file;  ///< empty: none
  RecordSet known;

  explicit Output(const std::string& folder) {
    if (folder.empty()) return;
    make_folder(folder);
    file = (fs::path(folder) / "records.jsonl").string();
    std::error_code error;
    if (fs::exists(file, error)) read_known();
    for (const LocatedRecord& located : known.records)
      if (!located.record.source)
        throw InvalidInput(fmt::format(
            "--out {}: has records that precbench measured ({}); imports need a folder of their own", folder,
            located.origin.text()));
  }
  /// Returns what was done with the record.
  std::string add(const Record& record) {
    for (LocatedRecord& one : known.records) {
      if (continues(one.record, record))
        return file.empty() ? "a run that was read before" : "already in " + file;
      if (!continues(record, one.record)) continue;
      one.record = record;
      if (!file.empty()) rewrite();
      return fmt::format("record {} replaces that of the shorter log{}", record.id,
                         file.empty() ? "" : " in " + file);
    }
    known.records.push_back({record, {file, known.records.size() + 1}});
    if (file.empty()) return "";
    append_record(file, record);
    return fmt::format("record {} in {}", record.id, file);
  }

 private:
  /// Throws InvalidInput for a line that is not a record, which rewrite() would lose.
  void read_known() {
    LineReader lines(file, kRecordLimits.bytes);
    while (lines.next()) {
      if (lines.line().empty()) continue;
      const Origin origin{file, lines.number()};
      RecordLine parsed = parse_record_line(lines.line(), nullptr);
      if (parsed.failure) std::rethrow_exception(parsed.failure);
      if (!parsed.record)
        throw InvalidInput(fmt::format("--out: {}: {}; remove that line, or name another folder",
                                       origin.text(), parsed.problem));
      known.records.push_back({std::move(*parsed.record), origin});
    }
  }

  void rewrite() const {
    PendingFile pending(file);
    for (const LocatedRecord& one : known.records)
      pending.add(nlohmann::ordered_json(one.record).dump() + "\n");
    pending.commit();
  }
};

/// Parses "5%" as 0.05.
double tolerated_share(const std::string& text) {
  const std::string number = text.ends_with('%') ? text.substr(0, text.size() - 1) : "";
  const auto percent = parse_number<double>(number);
  if (!percent || !(*percent > 0 && *percent <= 100))
    throw InvalidInput(fmt::format("--tolerance: \"{}\" is not a percentage above 0% and up to 100%", text));
  return *percent / 100;
}

/// Prints the verdicts on the losses of all arms beside the reference.
void print_losses(const RecordSet& records, const ImportOptions& options, double tolerance,
                  const Screen& screen) {
  for (const ArmGroup& group : arm_groups(records, options.reference)) {
    if (!group.has_reference || group.arms.size() < 2) continue;
    fmt::print("{}", paragraph(group.name + ":", screen));
    for (std::size_t i = 1; i < group.arms.size(); ++i) {
      const RunArm& arm = group.arms[i];
      std::vector<std::string> lines = loss_sentences(
          judge_losses(group.arms.front(), arm, kMatchedLoss, prior_of(NoiseKind::gpu_loss).sd));
      if (options.target_loss)
        for (std::string& line : target_sentences(group, arm, *options.target_loss, tolerance))
          lines.push_back(std::move(line));
      for (const std::string& line : lines) fmt::print("{}", indented_line(line, screen));
    }
  }
}

/// Prints how a log was read, and returns kNothingRecognised or kImported.
int print_log(const std::string& name, const LogFile& log, const Screen& screen) {
  if (!log.format) {
    const std::string what =
        log.looks_like.empty() ? "no line of a step is recognised" : "these are " + log.looks_like;
    const std::string first = log.lines.first_skipped.empty()
                                  ? ""
                                  : fmt::format("; the first line that is not: {}", log.lines.first_skipped);
    fmt::print("{}", paragraph(fmt::format("{}: {}{}", name, what, first), screen));
    return kNothingRecognised;
  }
  const auto lines = [](std::int64_t count, const char* kind) {
    return fmt::format("{} {} {}", count, kind, count == 1 ? "line" : "lines");
  };
  const std::string first =
      log.lines.first_skipped.empty() ? "" : fmt::format(" (first: {})", log.lines.first_skipped);
  const char* const cut = log.cut ? "; the last line has no end and is left out if it may be incomplete" : "";
  fmt::print("{}", paragraph(fmt::format("{}: {} log: {}, {}, {} not understood{}{}", name, log.format->name,
                                         lines(log.lines.used, "step"), lines(log.lines.header, "header"),
                                         log.lines.skipped, first, cut),
                             screen));
  return kImported;
}

/// Logs with their runs.
struct ReadLogs {
  std::vector<LogFile> logs;
  std::vector<ImportedRun> runs;  ///< of all logs, in order
};

ReadLogs read_logs(const ImportOptions& options, const LogFormat* format, const ImportHost& host) {
  ReadLogs read;
  std::vector<std::string> written;
  std::size_t runs = 0;
  for (const std::string& path : options.paths) {
    written.push_back(written_at(path));
    read.logs.push_back(read_log(path, format));
    runs += read.logs.back().runs.size();
  }
  ImportValues given;
  if (!options.model.empty()) given.model = options.model;
  if (!options.gpu.empty()) given.gpu = options.gpu;
  given.seq = options.seq, given.global_batch = options.global_batch, given.gpus = options.gpus;
  for (std::size_t i = 0; i < read.logs.size(); ++i)
    for (std::size_t number = 1; number <= read.logs[i].runs.size(); ++number) {
      given.recipe = value_of_run("--recipe", options.recipes, read.runs.size(), runs);
      given.seed = value_of_run("--seed", options.seeds, read.runs.size(), runs);
      read.runs.push_back(import_run(read.logs[i], number, given, host, written[i]));
    }
  return read;
}

}  // namespace

int import_logs(const ImportOptions& options, const ImportHost& host) {
  check_counts(options);
  const double tolerance = tolerated_share(options.tolerance);
  if (options.paths.empty() && options.out.empty())
    throw InvalidInput("needs logs, or --out with records of earlier imports");
  if (!options.map.empty() && !options.format.empty())
    throw InvalidInput("--map describes a format of its own; leave --as out");
  std::optional<LogFormat> mapped;
  if (!options.map.empty()) mapped = mapped_format(host.read_map(options.map), options.map);
  const LogFormat* const format = mapped                   ? &*mapped
                                  : options.format.empty() ? nullptr
                                                           : &find_log_format(options.format);
  // Every flag is checked before anything is written.
  const ReadLogs read = read_logs(options, format, host);
  Output output(options.out);
  if (options.paths.empty() && output.known.records.empty())
    throw InvalidInput(fmt::format("--out {}: no records of earlier imports in it; name logs", options.out));
  const Screen screen = plain_screen(STDOUT_FILENO);
  int status = kImported;
  std::size_t run = 0;
  for (std::size_t i = 0; i < read.logs.size(); ++i) {
    status = std::max(status, print_log(input_name(options.paths[i]), read.logs[i], screen));
    const std::size_t runs = read.logs[i].runs.size();
    for (std::size_t number = 1; number <= runs; ++number, ++run) {
      const ImportedRun& one = read.runs[run];
      if (runs > 1) fmt::print("run {} of {}:\n", number, runs);
      for (const std::string& line : one.lines) fmt::print("{}", indented_line(line, screen));
      if (!one.record) {
        status = std::max(status, kImportLacksValues);
        continue;
      }
      if (const std::string done = output.add(*one.record); !done.empty())
        fmt::print("{}", indented_line(done, screen));
    }
  }
  print_losses(output.known, options, tolerance, screen);
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
      "A flag is needed where the log does not say the value. How the log counts FLOPs\n"
      "is inferred from its numbers.\n"
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
      "  precbench import train.log --recipe mxfp8 --out out/torchtitan\n"
      "  # three seeds each: is the loss as good, and how many samples to 3.2 nats?\n"
      "  precbench import a1.log a2.log a3.log --recipe bf16 --seed 1,2,3 --out out/runs\n"
      "  precbench import b1.log b2.log b3.log --recipe mxfp8 --seed 1,2,3 --out out/runs --target-loss 3.2");
  command->add_option("PATH", options.paths, "logs, plain or packed with xz, or - for standard input")
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
  text("--map", options.map, "TOML file that says which column of a CSV or JSON-lines log is what", "FILE");
  command->add_option("--reference", options.reference, "recipe that the losses of others are compared with")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--target-loss", options.target_loss, "loss to which samples are counted [nats]")
      ->type_name("X");
  command->add_option("--tolerance", options.tolerance, "additional samples to the target that are tolerated")
      ->type_name("X%")
      ->capture_default_str();
  return command;
}

}  // namespace precbench
