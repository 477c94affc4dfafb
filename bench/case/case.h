// A case is one point of a sweep: everything that decides what one training run does. One table of fields
// makes the command line's flags, the keys of sweep files, the `case` object of a record and the columns of a
// report, so a field is added in one place: a member of Case and a row in case.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "models/config/config.h"
#include "models/data/data.h"
#include "results/record.h"

namespace precbench {

/// The member initialisers are the defaults that the help shows.
struct Case {
  std::string model = "tiny";
  std::string recipe = "bf16";
  std::int64_t seq = 128;
  std::int64_t batch = 8;
  std::int64_t accumulation = 1;
  std::int64_t gpus = 1;
  std::string parallel = "ddp";
  std::int64_t shard_group = 1;
  std::string gather = "bf16";
  std::string reduce_amax = "off";
  std::string device = "auto";
  std::int64_t steps = 0;  ///< 0: until the stop rule is satisfied; written "auto"
  std::int64_t seed = 42;

  std::string master = "fp32";
  std::string moments = "fp32";
  std::string grads = "fp32";
  std::string head = "bf16";
  std::string keep_bf16;
  std::string recompute = "none";

  double lr = 3e-4;
  std::int64_t warmup = 0;
  std::string schedule = "constant";
  double weight_decay = 0.1;
  double clip = 1.0;  ///< 0: gradients are not clipped

  std::string data = "synthetic";
  std::string glob = "*";
  std::string init_from;
  std::string save_init, save_final, save_grads;

  double time_limit = 60;
  std::string graph = "on";
  std::string deterministic = "off";
  std::string attention = "auto";

  bool operator==(const Case&) const = default;
};

/// When a field that changes the work (changes_work) is part of case_id. when_set: only where it differs from its
/// default, so that a new field of this kind leaves the ids of old records as they are.
enum class Identity : std::uint8_t { always, when_set };

struct Field {
  const char* name;   ///< snake_case: the key of JSON and TOML; the flag is the same in kebab-case
  const char* group;  ///< heading in --help
  const char* unit;   ///< "" where it has none
  const char* help;   ///< one line
  std::variant<std::string Case::*, std::int64_t Case::*, double Case::*> member;
  std::vector<std::string> choices;  ///< of a text field; empty: any text
  bool axis;                         ///< a sweep takes several values of it
  Identity identity;
  double minimum;         ///< of a number, inclusive
  const char* zero_word;  ///< what 0 is called, "" for "0"

  bool is_integer() const { return std::holds_alternative<std::int64_t Case::*>(member); }
};

const std::vector<Field>& case_fields();

/// By snake_case or kebab-case name; null if there is none.
const Field* find_field(const std::string& name);

/// "--keep-bf16"
std::string flag_of(const Field& field);

/// The value as a user would type it. Numbers read back to the same bits.
std::string get_text(const Case& c, const Field& field);

/// Throws InvalidInput that names the flag, and the nearest choice where there is one.
void set_text(Case& c, const Field& field, const std::string& text);

/// Scalars in the table's order: what stands under `case` in a record.
nlohmann::ordered_json case_to_json(const Case& c);

/// Throws InvalidInput on an unknown key or a wrong type. A missing key keeps its default.
Case case_from_json(const nlohmann::ordered_json& json);

/// 16 hex digits: FNV-1a over the method version, the fields that define the work, and what is in the files
/// behind them: a model or recipe of the user's, data, first weights (fingerprint.h says how those are
/// sampled). Two cases of one id do the same work on the same kind of device.
std::string case_id(const Case& c);

/// Throws InvalidInput for a value that is wrong whatever the other fields say: a number below its minimum, an
/// unknown choice, model or recipe.
void check_value(const Field& field, const std::string& text);

/// Throws InvalidInput for what can never run: such a value, a step of absurd size, a
/// cosine schedule without a number of steps. Shapes that a recipe cannot take pass: they become rows
/// "unsupported". Reads models and recipes; the other files are check_files' (case_files.h).
void validate(const Case& c);

/// What open_data needs to know.
DataOptions data_options(const Case& c, const ModelConfig& model);

/// The record of a case that has not run yet: id, case and the time of this call.
Record start_record(const Case& c);

/// The most tokens of one optimizer step, and the most passes that it may have.
inline constexpr std::int64_t kMaxTokensPerStep = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxAccumulation = 16384;

/// "first:N,last:N" in either order, each at most once; throws InvalidInput.
struct KeepBf16 {
  std::int64_t first = 0, last = 0;  ///< blocks that stay in BF16
};
KeepBf16 parse_keep_bf16(const std::string& text);

}  // namespace precbench
