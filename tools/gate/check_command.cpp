// Reads records, judges them, and writes the requested outputs. See check.h.
#include "tools/gate/check_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/compressed.h"
#include "results/record/contradiction.h"
#include "results/record/line_reader.h"
#include "results/record/same_run.h"
#include "results/record/shell.h"
#include "tools/gate/gate_match.h"
#include "tools/text/table.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Disables GitHub workflow commands in printed text during its lifetime. Records may contain any text, and
/// their authors cannot guess the random token that ends this mode.
class WithoutWorkflowCommands {
 public:
  WithoutWorkflowCommands() { say("::stop-commands::" + word_); }
  ~WithoutWorkflowCommands() { say("::" + word_ + "::"); }
  WithoutWorkflowCommands(const WithoutWorkflowCommands&) = delete;
  WithoutWorkflowCommands& operator=(const WithoutWorkflowCommands&) = delete;

 private:
  static void say(const std::string& line) {  // flush, since the following output may go to stderr
    std::puts(line.c_str());
    std::fflush(stdout);
  }
  static std::string random_word() {
    std::random_device random;
    return fmt::format("precbench-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  }

  const std::string word_ = random_word();
};

/// Parses "3%" as 0.03; null for "off".
std::optional<double> tolerance(const char* flag, const std::string& word, const char* others) {
  if (word == "off") return std::nullopt;
  double percent = 0;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, percent);
  const bool fits =
      error == std::errc() && end - stop == 1 && *stop == '%' && std::isfinite(percent) && percent >= 0;
  if (!fits)
    throw InvalidInput(fmt::format("{}: \"{}\" is not a percentage such as 3%, nor {}", flag, word, others));
  return percent / 100;
}

/// Reads the run. Every path must hold a record, so that a mistyped path is not reported as a missing case.
RecordSet read_run(const std::vector<std::string>& paths) {
  refuse_compressed(paths, "precbench check --baseline FILE -");
  RecordSet run = read_records(paths);
  if (!run.without_record.empty()) throw InvalidInput(run.without_record.front());
  return run;
}

/// Reads a baseline file. It is written by this program and kept under version control, so any problem is an
/// error: a skipped line would be a case that nobody checks.
RecordSet read_whole(const std::string& path) {
  if (fs::is_directory(path))
    throw InvalidInput(fmt::format("--baseline {}: a folder; it takes one file", path));
  refuse_compressed({path}, "precbench check --baseline - RUN");
  RecordSet set = read_records({path}, nullptr, Repeats::all);
  if (!set.first_problem.empty())
    throw InvalidInput(
        fmt::format("--baseline: invalid; repair it or give another file: {}", set.first_problem));
  return set;
}

/// Reads a baseline to compare with.
RecordSet read_baseline(const std::string& path) {
  if (!named_descriptor(path) && !fs::exists(path))
    throw InvalidInput(fmt::format("--baseline {}: no such file; --accept makes it from this run", path));
  RecordSet set = read_whole(path);
  const bool measured = std::any_of(set.records.begin(), set.records.end(), [](const LocatedRecord& located) {
    return located.record.status == Status::ok;
  });
  if (!measured)
    throw InvalidInput(
        fmt::format("--baseline {}: no measured case in it; --accept makes it from this run", path));
  return set;
}

/// Returns why a record cannot be part of a baseline; null if it can.
std::optional<std::string> refusal_reason(const std::set<std::string>& undecided,
                                          const LocatedRecord& located) {
  const Record& record = located.record;
  if (record.status != Status::ok) return name_of(record.status);
  if (const auto why = contradiction(record)) return "contradicts itself: " + *why;
  if (undecided.contains(record.id))
    return "one of several records of this case, whose times do not tell which is the newest";
  return std::nullopt;
}

/// Returns true if two records were measured by one build, as far as is known.
bool same_build(const Record& a, const Record& b) {
  return a.env.git == b.env.git && a.env.dirty == b.env.dirty;
}

/// A baseline with accepted records.
struct Merged {
  std::vector<Record> records{};
  RecordSet compared{};                 ///< old records of the cases that the run has measured
  std::size_t cases = 0, replaced = 0;  ///< number of cases; of old records that are left out
  std::size_t fewest = 0, most = 0;     ///< records of a case
};

/// Adds accepted records to the old baseline: as repeats of records of the same build and work, or in place of
/// others. New cases follow.
Merged merged(const RecordSet& old, const RecordSet& run, bool replace) {
  const BaselineRepeats repeats(old);
  const Answers found = answers(repeats.newest(), run);  // throws if records are ambiguous
  std::map<std::string, const LocatedRecord*> accepted;  // by the id in the old baseline
  std::set<const LocatedRecord*> placed;
  for (const auto& [asked, answer] : found) {
    accepted[asked->record.id] = answer;
    placed.insert(answer);
  }
  std::map<std::string, const Record*> newest;  // by id
  for (const LocatedRecord& one : repeats.newest().records) newest[one.record.id] = &one.record;
  Merged result;
  std::map<std::string, std::size_t> counts;  // of records, by id
  const auto add = [&](const Record& record) {
    result.records.push_back(record);
    ++counts[record.id];
  };
  for (const LocatedRecord& located : old.records) {
    const Record& record = located.record;
    const auto answer = accepted.find(record.id);
    if (answer == accepted.end()) {
      add(record);
      continue;
    }
    result.compared.records.push_back(located);
    const Record& fresh = answer->second->record;
    const bool stays = !replace && fresh.id == record.id && same_build(record, fresh) &&
                       !same_run(fresh, record) && !difference_in_work(located, *answer->second);
    if (stays) add(record);
    if (!stays && Json(record) != Json(fresh)) ++result.replaced;
    if (same_run(*newest.at(record.id), record)) add(fresh);
  }
  for (const LocatedRecord& located : run.records)
    if (!placed.contains(&located)) add(located.record);
  result.cases = counts.size();
  for (const auto& [id, count] : counts) {
    result.fewest = result.fewest == 0 ? count : std::min(result.fewest, count);
    result.most = std::max(result.most, count);
  }
  return result;
}

/// Returns " (6 records: 3 of each)"; empty if there is one of each.
std::string records_text(const Merged& merged) {
  if (merged.most < 2) return "";
  const std::string each = merged.fewest == merged.most ? std::to_string(merged.most)
                                                        : fmt::format("{} to {}", merged.fewest, merged.most);
  return fmt::format(" ({} records: {} of each)", merged.records.size(), each);
}

/// Prints how the run compares with the records of the baseline that it changes.
void print_against_old(const RecordSet& old, const RecordSet& run, const GateRules& rules) {
  try {
    const GateResult result = judge(old, run, rules);
    if (result.cases.empty()) return;
    fmt::print("against the old baseline: {}\n", gate_summary(result));
    for (const CaseResult& one : result.cases)
      for (const std::string& complaint : gate_complaints(one))
        fmt::print("  {}: {}\n", printable(one.label), printable(complaint));
  } catch (const InvalidInput& error) {
    fmt::print("not compared with the old baseline: {}\n", printable(error.what()));
  }
}

/// Writes a baseline beside the old one and renames it; with `keep` the old one stays as the first unused
/// FILE.N, whose name is returned. Throws InvalidInput, with the old one unchanged and no other file left.
std::string write_baseline(const std::string& path, const std::vector<Record>& records, bool keep) {
  const std::string beside = path + ".new";
  const std::string kept = keep ? spare_name(path) : "";
  std::error_code error, ignored;
  const auto give_up = [&](const std::string& why) {
    fs::remove(beside, ignored);
    if (keep) fs::remove(kept, ignored);
    throw InvalidInput(why);
  };
  fs::remove(beside, ignored);
  try {
    for (const Record& record : records) append_record(beside, record);
  } catch (const InvalidInput& problem) {
    give_up(problem.what());
  }
  if (keep && !fs::copy_file(path, kept, error))
    give_up(fmt::format("cannot write {}: {}", kept, error_text(error)));
  fs::rename(beside, path, error);
  if (error) give_up(fmt::format("cannot write {}: {}", path, error_text(error)));
  return kept;
}

/// Returns what the check would do with noise.
Inconclusive inconclusive_of(const CheckOptions& options) {
  return options.inconclusive == "pass"   ? Inconclusive::pass
         : options.inconclusive == "fail" ? Inconclusive::fail
                                          : Inconclusive::separate;
}

/// Names the cases of a run that do not pass against themselves, with the reason.
void print_unjudgeable(const GateResult& against_itself) {
  std::size_t count = 0;
  for (const CaseResult& one : against_itself.cases) {
    if (exit_status(one.verdict()) == kCheckPassed) continue;
    ++count;
    for (const MetricResult& metric : one.metrics)
      if (exit_status(metric.verdict) != kCheckPassed)
        fmt::print("{}: {} cannot be judged against itself: {}\n", printable(one.label), metric.metric,
                   printable(metric.reason));
  }
  if (count > 0)
    fmt::print(
        "{} of {} cannot be judged; a check against them will be inconclusive. Measure them again with more "
        "steps on a quieter machine, or leave the metric out (--tokens-per-s off)\n",
        count, plural(against_itself.cases.size(), "accepted case"));
}

int accept(const CheckOptions& options, const GateRules& rules, RecordSet run) {
  const std::set<std::string> undecided(run.undecided.begin(), run.undecided.end());
  std::erase_if(run.records, [&](const LocatedRecord& located) {
    const auto why = refusal_reason(undecided, located);
    if (why) fmt::print("{}: {}, not accepted\n", printable(located.origin.text()), printable(*why));
    return why.has_value();
  });
  const std::size_t measured = run.records.size();
  if (measured == 0) throw InvalidInput("nothing to accept: no case of this run was measured");
  // Throws if the cases of this run do not fit into one baseline.
  const GateResult against_itself = judge(run, run, rules);
  RecordSet old;
  if (fs::exists(options.baseline) && !fs::is_empty(options.baseline)) old = read_whole(options.baseline);
  bool other_kind = false;
  if (!old.records.empty()) {
    if (const auto difference = difference_in_kind(old, run)) {  // nothing of the old baseline can stay
      if (!options.replace)
        throw InvalidInput(*difference +
                           "; with --replace, --accept replaces the whole baseline and keeps the old one");
      fmt::print("{}; the old one is replaced whole\n", printable(*difference));
      other_kind = true;
      old = {};
    }
  }
  const Merged now = merged(old, run, options.replace);
  if (!now.compared.records.empty()) print_against_old(now.compared, run, rules);
  const std::string kept = write_baseline(options.baseline, now.records, other_kind || now.replaced > 0);
  if (!kept.empty()) fmt::print("the old baseline is kept as {}\n", printable(kept));
  fmt::print("accepted {} into {}, which has {} now{}\n", plural(measured, "case"),
             printable(options.baseline), now.cases, records_text(now));
  print_unjudgeable(against_itself);
  return kCheckPassed;
}

/// Throws InvalidInput if the baseline is a stream but must be written or is read as PATH as well.
void check_stream(const CheckOptions& options) {
  const auto stream = named_descriptor(options.baseline);
  if (!stream) return;
  const std::string name = input_name(options.baseline);
  if (options.accept)
    throw InvalidInput(fmt::format("--baseline {}: --accept writes it, so it must be a file", name));
  for (const std::string& path : options.paths)
    if (named_descriptor(path) == stream)
      throw InvalidInput(fmt::format("--baseline and PATH are both {}, which is read once", name));
}

/// Writes all requested files, even if some fail; `baseline` is its displayed name. Throws InvalidInput
/// with all failures.
void write_results(const CheckOptions& options, const std::string& baseline, const GateResult& result,
                   const RerunCommand& rerun) {
  std::vector<std::string> problems;
  const auto write = [&](const std::string& path, bool append, const auto& text) {
    try {
      if (!path.empty()) write_file(path, text(), append);
    } catch (const InvalidInput& error) {
      problems.push_back(error.what());
    }
  };
  const auto markdown = [&] { return gate_markdown(result, baseline, rerun); };
  write(environment_variable("GITHUB_STEP_SUMMARY"), true, markdown);
  write(options.markdown, false, markdown);
  write(options.junit, false, [&] { return gate_junit(result, rerun); });
  write(options.json, false, [&] {
    return gate_json(result, baseline, rerun)
               .dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace) +
           "\n";
  });
  if (!problems.empty()) throw InvalidInput(fmt::format("{}", fmt::join(problems, "; ")));
}

/// Returns the folder for reruns, so that their newer records replace the checked ones.
std::string folder_to_run_again(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (fs::is_directory(path)) return path;
    const fs::path file = path;
    if (file.filename() == "records.jsonl") return file.has_parent_path() ? file.parent_path().string() : ".";
  }
  return "out/again";
}

}  // namespace

GateRules rules_of(const CheckOptions& options) {
  GateRules rules;
  rules.tokens_per_s = tolerance("--tokens-per-s", options.tokens_per_s, "off");
  rules.memory = tolerance("--memory", options.memory, "off");
  rules.loss = options.loss != "off";
  if (rules.loss && options.loss != "auto")
    rules.loss_tolerance = tolerance("--loss", options.loss, "off or auto");
  rules.numerics = options.numerics;
  if (!rules.tokens_per_s && !rules.memory && !rules.loss && !rules.numerics)
    throw InvalidInput("--tokens-per-s, --memory and --loss are all off: nothing is left to check");
  return rules;
}

int check(const CheckOptions& options, const RerunCommand& command) {
  const GateRules rules = rules_of(options);
  const RerunCommand rerun = [&](const nlohmann::ordered_json& fields) {
    if (fields.contains("source"))  // of another program, which we cannot run
      return fmt::format("precbench import LOG --recipe {} --out {}",
                         shell_quoted(fields.value("recipe", "")),
                         shell_path(folder_to_run_again(options.paths)));
    return command(fields) + " --out " + shell_path(folder_to_run_again(options.paths));
  };
  check_stream(options);
  if (options.accept && options.baseline.ends_with(".xz"))
    throw InvalidInput(fmt::format("--baseline {}: --accept writes plain records; unpack it first: xz -d {}",
                                   options.baseline, shell_path(options.baseline)));
  if (options.replace && !options.accept) throw InvalidInput("--replace: only with --accept");
  if (!named_descriptor(options.baseline) && is_among(options.paths, options.baseline))
    throw InvalidInput(
        fmt::format("--baseline {}: a file of this run, too; move it out of PATH", options.baseline));
  std::vector<std::string> inputs = options.paths;
  inputs.push_back(options.baseline);
  check_outputs({{"--markdown", options.markdown}, {"--junit", options.junit}, {"--json", options.json}},
                inputs);
  const bool on_github = environment_variable("GITHUB_ACTIONS") == "true";
  std::optional<WithoutWorkflowCommands> quiet;
  if (on_github) quiet.emplace();
  RecordSet run = read_run(options.paths);
  if (options.accept) {
    for (const std::string& problem : run.problems) fmt::print(stderr, "{}\n", printable(problem));
    return accept(options, rules, std::move(run));
  }
  for (const std::string& path : {options.markdown, options.junit, options.json})
    if (!path.empty()) check_writable(path);
  const RecordSet baseline = read_baseline(options.baseline);
  const std::string baseline_name = input_name(options.baseline);
  GateResult result = judge(baseline, run, rules);
  result.inconclusive = inconclusive_of(options);
  if (!options.inconclusive.empty())
    result.notes.push_back(result.inconclusive == Inconclusive::pass
                               ? "NOISY counts as passed (--inconclusive pass)"
                               : "NOISY and MISSING count as failed (--inconclusive fail)");
  result.notes.insert(result.notes.begin(), run.problems.begin(), run.problems.end());
  const int status = result.exit_status();

  // Print the verdict first, so that a write failure does not lose it.
  fmt::print("{}", gate_term(result, baseline_name, rerun, plain_screen(STDOUT_FILENO)));
  quiet.reset();
  if (on_github) fmt::print("{}", gate_annotations(result, rerun));
  std::fflush(stdout);
  write_results(options, baseline_name, result, rerun);
  return status;
}

CLI::App* add_check_command(CLI::App& app, CheckOptions& options) {
  CLI::App* command = app.add_subcommand("check", "regression check of a run against a baseline");
  command->footer(
      "Tolerances are percentages; \"off\" skips a metric.\n"
      "\n"
      "Exit status: 0 no regression\n"
      "             1 a regression\n"
      "             2 bad input, or an output file that cannot be written\n"
      "             3 missing or inconclusive (see --inconclusive)\n"
      "\n"
      "Examples:\n"
      "  # baseline from a run\n"
      "  precbench check --baseline baseline.jsonl out/first --accept\n"
      "  # later run against the baseline\n"
      "  precbench check --baseline baseline.jsonl out/first --tokens-per-s 5% --memory 1%\n"
      "  # CPU run: any change of the arithmetic, whatever the speed\n"
      "  precbench check --baseline baseline.jsonl out/first --tokens-per-s off --numerics --junit check.xml");
  command
      ->add_option("PATH", options.paths,
                   "records of the run: files (.jsonl, .jsonl.xz), folders of them, or - for standard input")
      ->required()
      ->type_name("");
  command->add_option("--baseline", options.baseline, "baseline record file")->required()->type_name("FILE");
  const auto text = [&](const char* flag, std::string& value, const char* help, const char* type) {
    command->add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  text("--tokens-per-s", options.tokens_per_s,
       "tolerated loss of speed; more is SLOWER, or NOISY within run-to-run noise", "X%");
  text("--memory", options.memory, "tolerated growth of peak memory; more is BIGGER", "X%");
  text(
      "--loss", options.loss,
      "tolerated growth of the loss; more is WORSE, or NOISY within run-to-run noise; auto: 0.25%, on the mean of "
      "three or more seeds",
      "X%|auto");
  command->add_flag("--numerics", options.numerics,
                    "comparison of first loss and quantization noise too (CPU device)");
  text("--markdown", options.markdown, "output file for the result as Markdown", "FILE");
  text("--junit", options.junit, "output file for the result as JUnit XML", "FILE");
  text("--json", options.json, "output file for the result as JSON", "FILE");
  command
      ->add_option("--inconclusive", options.inconclusive,
                   "NOISY cases as passed or failed; MISSING never passes (default exit status 3)")
      ->check(CLI::IsMember({"pass", "fail"}).description(""))
      ->type_name("pass|fail");
  command->add_flag(
      "--accept", options.accept,
      "update of the baseline with this run's measured cases: repeats of one commit are added, others replaced");
  command->add_flag("--replace", options.replace,
                    "--accept replaces repeats of the same commit too, and a baseline of another GPU model");
  return command;
}

}  // namespace precbench
