// A case is one point of a sweep: everything that determines one training run. One table of fields yields the
// command line's flags, the keys of sweep files, the `case` object of a record and the columns of a report,
// so that adding a field takes two lines: a member of Case and a row in case.cpp. Rules about it are rows, too (rules.h).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "results/record/record.h"

namespace precbench {

/// Largest number of tokens of one optimizer step, and of its forward and backward passes.
inline constexpr std::int64_t kMaxTokensPerStep = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxAccumulation = 16384;
/// Largest number of ranks: a dry run lists those of each communicator, for a case of a record, too.
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
/// Larger ranks train more elements than the layers of small models have, which is a typing error.
inline constexpr std::int64_t kMaxLoraRank = 4096;
/// Largest number of steps of a run and of held-out losses. A row lists each, and longer rows are not read
/// (kRecordLimits of results/record/record_line.h). With --steps auto the stop rules end a run long before.
inline constexpr std::int64_t kMaxSteps = 1'000'000;
inline constexpr std::int64_t kMaxEvaluations = 100'000;

/// The member initializers are the defaults that the help shows.
struct Case {
  std::string model = "tiny";
  std::int64_t layers = 0;  ///< number of the model's first blocks to keep; 0: all; written "all"
  std::string recipe = "bf16";
  std::int64_t seq = 128;
  std::int64_t batch = 8;
  std::int64_t accumulation = 1;
  std::int64_t gpus = 1;
  std::string parallel = "ddp";
  std::int64_t shard_group = 1;
  std::int64_t context = 1;
  std::int64_t tensor = 1, pipeline = 1, virtual_stages = 1;
  std::int64_t micro_batches = 0;  ///< 0: those of --accumulation; written "auto"
  std::string shard_optimizer = "off", overlap = "none";
  std::string gather = "bf16";
  std::string reshard = "on";
  std::string grad_sync = "every";
  std::string reduce_amax = "off";
  std::string device = "auto";
  std::int64_t steps = 0;  ///< 0: until the stop rule is satisfied; written "auto"
  std::int64_t seed = 42;

  std::string master = "fp32";
  std::string moments = "fp32", second_moment = "same";
  std::string weights = "bf16";
  std::string grads = "fp32";
  std::string head = "bf16";
  std::string keep_bf16;
  std::string switch_recipe;
  std::string recompute = "none";
  std::string flow = "off", kept = "recipe", tensor_gather = "auto", context_exchange = "auto";

  std::string routing = "learned";
  std::optional<double> capacity;  ///< none: no slot is dropped; written "auto"
  double aux = 1e-3, z_loss = 0;
  std::int64_t ep = 1;
  std::string exchange = "gather", dispatch = "bf16";
  std::int64_t slots = 0;  ///< 0: as many as a rank has tokens; written "all"

  std::int64_t lora_rank = 0;        ///< 0: the model's weights are trained; written "off"
  std::optional<double> lora_alpha;  ///< none: twice the rank; written "auto"
  std::string optimizer = "adamw";
  double lr = 3e-4;
  std::optional<double> beta1, beta2, eps, momentum;  ///< none: the optimizer's default; written "auto"
  std::int64_t warmup = 0;
  std::string schedule = "constant";
  double weight_decay = 0.1;
  double clip = 1.0;  ///< 0: gradients are not clipped

  std::string data = "synthetic";
  std::string glob = "*";
  std::string packing = "off";
  std::string eval_data;
  std::int64_t eval_every = 0;  ///< 0: after the last step only
  std::int64_t eval_tokens = 65536;
  std::string eval_recipes;  ///< recipes in which the final weights are evaluated too, "rowwise,mxfp8"
  std::string init_from, fork_from;
  std::string perturb = "none", stress = "none";
  std::string save_init, save_final, save_grads;
  std::int64_t checkpoint_every = 0;
  std::string checkpoint_at;  ///< additional steps after which to write the state, "160,480"
  std::string checkpoint_dir, checkpoint_keep = "last";

  double time_limit = 60;
  std::string graph = "on";
  std::string deterministic = "off";
  std::string attention = "auto";
  std::string gemm = "auto";
  std::int64_t fidelity_batches = 0;
  std::string fidelity_stress;
  std::string sensitivity;

  /// Returns the micro-batches of an optimizer step, which a pipeline may give as --micro-batches.
  std::int64_t micro_steps() const { return micro_batches > 0 ? micro_batches : accumulation; }
  const char* micro_steps_flag() const { return micro_batches > 0 ? "--micro-batches" : "--accumulation"; }
  bool operator==(const Case&) const = default;
};

/// Decides when a field that changes the work (changes_work) is part of case_id. `when_set`: only if it
/// differs from its default, so that a new field leaves the ids of old records unchanged. `when_used`: in
/// addition, a record's `case` contains it only then, so that rows of models without the feature stay
/// unchanged. `defined`: never, because the definition, which is part of the id, contains what it changes;
/// `defined_when_used`: likewise, and a record's `case` contains it only if it is used.
/// `predicted`: like `when_used`, of a layout that the program predicts and does not run.
enum class Identity : std::uint8_t { always, when_set, when_used, predicted, defined_when_used, defined };

/// Pointer to the member of a field.
using CaseMember =
    std::variant<std::string Case::*, std::int64_t Case::*, double Case::*, std::optional<double> Case::*>;

struct Field {
  const char* name;   ///< snake_case: the key of JSON and TOML; the flag is the same in kebab-case
  const char* group;  ///< heading in --help
  const char* unit;   ///< "" if none
  const char* help;   ///< one line
  CaseMember member;
  std::vector<std::string> choices;  ///< of a text field; empty: any text
  bool axis;                         ///< true if a sweep may list several values
  Identity identity;
  double minimum;          ///< of a number, inclusive unless `above`
  const char* zero_word;   ///< word for 0; "" for "0"
  std::int64_t maximum = 0;  ///< of an integer; 0: none
  bool above = false;      ///< true if a number must exceed its minimum
  const char* alias = "";  ///< second snake_case name of the flag and TOML key; records use `name` only
  /// Returns a text that may combine choices as records have it, or throws InvalidInput; null: one choice.
  std::string (*stored)(const std::string& text) = nullptr;
  /// Throws InvalidInput for a text that is invalid whatever the other fields are; null: any text of `choices`.
  void (*check)(const std::string& text) = nullptr;

  bool is_integer() const { return std::holds_alternative<std::int64_t Case::*>(member); }
  bool only_where_used() const { return identity >= Identity::when_used && identity != Identity::defined; }
  bool is_defined() const { return identity >= Identity::defined_when_used; }
};

const std::vector<Field>& case_fields();
/// Heading of the fields that only models with experts have.
inline constexpr const char* kExperts = "Mixture of experts";

/// Maps a field name (snake_case) to the words given for it, each an unparsed list or range.
using Axes = std::map<std::string, std::vector<std::string>>;

/// Parses --checkpoint-at: positive integers separated by commas, in any order. Throws InvalidInput, naming
/// the flag.
std::vector<std::int64_t> parse_checkpoint_at(const std::string& text);

/// Returns true if the case writes its whole state at least once.
bool writes_checkpoints(const Case& c);

/// Returns the steps after which the case writes its whole state, ascending, none of them beyond --steps.
std::vector<std::int64_t> checkpoint_steps(const Case& c);

/// Finds a field by its name or alias, in snake_case or kebab-case; null if there is none.
const Field* find_field(const std::string& name);

/// Returns the flag, such as "--keep-bf16".
std::string flag_of(const Field& field);

/// Returns the flag's second name, such as "--master-dtype"; empty if it has none.
std::string alias_flag_of(const Field& field);

/// Returns what to use in place of a field that only older versions have; null if they have none of this name.
const char* removed_field(const std::string& name);

/// Returns true if a case has another value of a field than the default.
bool is_set(const Case& c, const CaseMember& field);

/// Returns the value as a user would type it. Numbers convert back to the same bits.
std::string get_text(const Case& c, const Field& field);

/// Parses and sets a value. Throws InvalidInput that names the flag and the nearest choice, if there is one.
void set_text(Case& c, const Field& field, const std::string& text);

/// Throws InvalidInput for a value that is invalid whatever the other fields are, naming the flag.
void check_word(const Field& field, const std::string& text);

/// Returns the value of one field as a scalar, also where case_to_json() leaves it out.
nlohmann::ordered_json field_to_json(const Case& c, const Field& field);

/// Returns the fields as scalars in the table's order: the object `case` of a record.
nlohmann::ordered_json case_to_json(const Case& c);

/// Parses a case; a missing key keeps its default, and a field of older versions is ignored. Throws InvalidInput on an
/// unknown key or a wrong type.
Case case_from_json(const nlohmann::ordered_json& json);

}  // namespace precbench
