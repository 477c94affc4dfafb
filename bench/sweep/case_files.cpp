// Opens the inputs of cases, and tests whether their outputs can be written. See case_files.h.
#include "bench/sweep/case_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "bench/case/plan.h"
#include "bench/case/trained_text.h"
#include "bench/step/checkpoint.h"
#include "bench/step/checkpoint_files.h"
#include "bench/step/held_out.h"
#include "bench/step/weights.h"
#include "bench/sweep/try_make.h"
#include "bench/sweep/warnings.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/normal_path.h"
#include "kernels/base/untrusted_input.h"
#include "models/data/data_doubts.h"
#include "models/data/documents.h"
#include "results/record/record_line.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

[[noreturn]] void cannot_make(const std::string& flag, const fs::path& folder, const std::string& why) {
  throw InvalidInput(fmt::format("{}: cannot make the folder {}: {}", flag, folder.string(), why));
}

/// Longest suffix of a file while it is being written, which contains a process id (safetensors_write.cpp).
constexpr const char* kLongestSuffix = ".4194304.tmp";

[[noreturn]] void cannot_write(const std::string& flag, const fs::path& path, const std::string& why) {
  throw InvalidInput(fmt::format("{}: cannot write {}: {}", flag, path.string(), why));
}

/// Throws InvalidInput if the file's temporary name is too long or otherwise impossible.
void check_name(const std::string& flag, const fs::path& path) {
  if (const std::error_code error = try_make(path.string() + kLongestSuffix))
    cannot_write(flag, path, error_text(error));
}

/// Leaves an existing file unchanged, and no new one behind.
void check_writable(const std::string& flag, const fs::path& path) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) cannot_make(flag, path.parent_path(), error_text(error));
  const bool existed = fs::exists(path, error);
  // Saving replaces the file: a device would be lost, and opening a pipe waits for its reader.
  if (fs::is_other(path, error))
    throw InvalidInput(fmt::format("{}: {}: not a regular file", flag, path.string()));
  errno = 0;
  const bool writable = std::ofstream(path, std::ios::app).is_open();
  if (!writable) cannot_write(flag, path, error_text(errno));
  if (!existed) fs::remove(path, error);
  check_name(flag, path);
}

/// Throws what check_writable would, without creating a file or folder that stays.
void try_writable(const std::string& flag, const fs::path& path) {
  std::error_code ignored;
  const fs::path folder = path.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored))
    if (const std::error_code error = try_make(folder)) cannot_make(flag, folder, error_text(error));
  if (fs::is_other(path, ignored))
    throw InvalidInput(fmt::format("{}: {}: not a regular file", flag, path.string()));
  if (fs::is_directory(path, ignored)) cannot_write(flag, path, error_text(EISDIR));
  if (fs::exists(path, ignored) && access(path.c_str(), W_OK) != 0)
    cannot_write(flag, path, error_text(errno));
  check_name(flag, path);
}

/// Throws if a case's outputs would overwrite each other or its own first weights.
void check_distinct(const Case& c) {
  std::map<fs::path, std::string> flags;
  for (const char* name : {"init_from", "save_init", "save_grads", "save_final"}) {
    const Field& field = *find_field(name);
    const std::string path = get_text(c, field);
    if (path.empty()) continue;
    const auto [other, fresh] = flags.emplace(normal_path(path), flag_of(field));
    if (!fresh)
      throw InvalidInput(
          fmt::format("{}: {} is also the file of {}; choose another", flag_of(field), path, other->second));
  }
}

/// Numbers of steps of the cases with checkpoints in a folder, by id.
using StepsOfCases = std::map<std::string, std::int64_t>;

StepsOfCases steps_of_cases(const std::string& folder) {
  StepsOfCases found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto checkpoints = checkpoints_in(entry->path().string());
    if (checkpoints.empty()) continue;
    try {
      const std::string state = (fs::path(checkpoints.rbegin()->second) / kStateFile).string();
      const auto json = parse_untrusted<Json>(read_regular_file(state, kRecordLimits.bytes), kRecordLimits);
      const Json id = json.value("id", Json());
      if (id != entry->path().filename().string()) continue;  // renamed by the user
      const Json steps = json.value(Json::json_pointer("/case/steps"), Json());
      if (!steps.is_number_integer()) continue;
      const auto number = steps.get<std::int64_t>();
      if (number >= 1 && number <= kMaxSteps) found[id.get<std::string>()] = number;
    } catch (const InvalidInput&) {  // a damaged one is nobody's
    }
  }
  return found;
}

/// Warns of cases that start anew beside the checkpoints of the same work with another number of steps: a user who has
/// raised --steps may expect them to go on.
void warn_of_other_steps(const std::vector<Plan>& cases) {
  std::set<std::string> ids;
  for (const Plan& plan : cases) ids.insert(plan.id);
  std::map<std::string, StepsOfCases> folders;  // by --checkpoint-dir
  for (const Plan& plan : cases) {
    const std::string& folder = plan.fields.checkpoint_dir;
    if (!writes_checkpoints(plan.fields) || folder.empty() ||
        !checkpoints_in(checkpoint_folder(plan)).empty())
      continue;
    const auto [there, added] = folders.try_emplace(folder);
    if (added) there->second = steps_of_cases(folder);
    std::set<std::int64_t> others;
    for (const auto& [id, steps] : there->second)
      if (steps != plan.fields.steps) others.insert(steps);
    for (const std::int64_t steps : others) {
      Case same = plan.fields;
      same.steps = steps;
      const std::string id = validate(same, Refusals::kept).id;
      if (ids.contains(id) || !there->second.contains(id)) continue;
      const std::string last = checkpoints_in((fs::path(folder) / id).string()).rbegin()->second;
      warn_once(fmt::format(
          "--steps {}: starts anew, though {} has the same case with --steps {}: the number of steps is part of a "
          "case; --fork-from continues from a checkpoint as a case of its own",
          plan.fields.steps, last, steps));
    }
  }
}

/// Opens the checkpoints that cases fork from or would resume from. Each trunk is opened once for all its
/// forks.
void check_checkpoints(const std::vector<Plan>& cases) {
  warn_of_other_steps(cases);
  std::map<std::string, Checkpoint> trunks;
  for (const Plan& plan : cases) {
    if (const std::string& path = plan.fields.fork_from; !path.empty())
      trunks.try_emplace(path, path).first->second.check_forks(plan);
    std::vector<std::string> passed_over;
    last_checkpoint(plan, passed_over);
  }
}

void warn_each(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) warn_once(warning);
}

using NamedFile = std::pair<std::string, fs::path>;  ///< flag, path

/// Returns the files that the cases save, each once: many cases share one folder of checkpoints.
std::set<NamedFile> saved_by(const std::vector<Plan>& cases) {
  std::set<NamedFile> saved;
  for (const Plan& plan : cases) {
    for (const char* name : {"save_init", "save_final", "save_grads"}) {
      const Field& field = *find_field(name);
      if (const std::string path = get_text(plan.fields, field); !path.empty())
        saved.emplace(flag_of(field), path);
    }
    if (writes_checkpoints(plan.fields))
      saved.emplace("--checkpoint-dir", fs::path(plan.fields.checkpoint_dir) / ".try");
  }
  return saved;
}

}  // namespace

void check_outputs(const Plan& plan) {
  check_distinct(plan.fields);
  for (const auto& [flag, path] : saved_by({plan})) check_writable(flag, path);
}

void check_inputs(const std::vector<Plan>& cases) {
  std::map<std::tuple<std::string, std::string, std::string, std::int64_t, std::int64_t>, const Plan*>
      corpora;  // by path, glob, refusal of text, vocabulary size, and of documents the sequence length; the longest
  std::set<std::tuple<std::string, std::string, std::string, std::int64_t, std::int64_t, std::int64_t>>
      held_out;  // by the same, sequence length, and tokens
  std::set<std::pair<std::string, std::string>> checkpoints;
  for (const Plan& plan : cases) {
    const Case& c = plan.fields;
    check_distinct(c);
    const DataOptions options = data_options(c, plan.model);
    // The longest document must fit into the shortest sequence, the longest sequence of text into the text.
    const std::int64_t T = is_documents(options.path) ? options.T : 0;
    const std::string refusal = text_refusal(c, plan.model, "--data", options.path);
    const Plan*& longest =
        corpora.try_emplace({options.path, options.glob, refusal, options.vocab, T}, &plan).first->second;
    if (plan.T > longest->T) longest = &plan;
    if (!c.eval_data.empty() &&
        held_out
            .emplace(c.eval_data, c.glob, text_refusal(c, plan.model, "--eval-data", c.eval_data),
                     options.vocab, c.seq, c.eval_tokens)
            .second)
      warn_each(HeldOut(plan).warnings());
    if (c.init_from.empty() || !checkpoints.emplace(c.init_from, c.model).second) continue;
    if (access(c.init_from.c_str(), R_OK) != 0)
      throw InvalidInput(fmt::format("--init-from: {}: {}", c.init_from, error_text(errno)));
    warn_each(InitialWeights(c.init_from, plan.model).warnings());
  }
  for (const auto& [key, plan] : corpora)
    warn_each(token_warnings(*open_training_data(plan->fields, plan->model), plan->fields.data));
  check_checkpoints(cases);
}

void print_input_warnings(const Plan& plan) {
  const Case& c = plan.fields;
  if (!c.init_from.empty()) warn_each(InitialWeights(c.init_from, plan.model).warnings());
  // Opening other data reads all of it, and has no warnings of its own.
  constexpr std::int64_t kUint16Values = 1 << 16;
  if (plan.data.kind == "u16" && plan.model.vocab > kUint16Values)
    warn_each(token_warnings(*open_training_data(c, plan.model), c.data));
  warn_of_other_steps({plan});
}

void check_files(const std::vector<Plan>& cases) {
  check_inputs(cases);
  for (const auto& [flag, path] : saved_by(cases)) check_writable(flag, path);
}

void try_files(const std::vector<Plan>& cases) {
  check_inputs(cases);
  for (const auto& [flag, path] : saved_by(cases)) try_writable(flag, path);
}

}  // namespace precbench
