// What others have published, beside the nearest case of these records.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <tuple>

#include "tools/analysis/columns.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"
#include "tools/text/embedded_text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Tokens/s of models whose sizes differ by more than this say nothing of each other.
constexpr double kSameSize = 1.3;

struct Case {
  const MachineRecords* machine = nullptr;
  const Row* row = nullptr;
  std::optional<double> billions{};  ///< of parameters, as the model's name says
};

std::string string_at(const Json& json, const char* key) { return field_text(json.value(key, Json())); }

std::optional<double> number_at(const Json& json, const char* key) {
  const Json value = json.value(key, Json());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

/// Billions of parameters as the model's name says, "llama3.1-8b" 8 and "mini-125m" 0.125; null if it says
/// none.
std::optional<double> billions(const std::string& model) {
  static const std::regex size("([0-9]{1,6}(\\.[0-9]{1,6})?)([bm])($|[^a-z0-9])");
  std::smatch match;
  if (!std::regex_search(model, match, size)) return std::nullopt;
  return std::stod(match[1]) * (match[3] == "m" ? 1e-3 : 1);
}

/// How many times ours is theirs, as the distance of logarithms. 0 where nothing is claimed; where ours is
/// unknown farther than any that is known.
double distance(const std::optional<double>& theirs, const std::optional<double>& ours) {
  constexpr double kUnknown = 1e3;
  if (!theirs || *theirs <= 0) return 0;
  return ours && *ours > 0 ? std::abs(std::log2(*ours / *theirs)) : kUnknown;
}

double distance(const Json& claim, const Case& ours) {
  const Row& row = *ours.row;
  // Model size matters most, sequence length next, GPU count least: all act on the share of GEMMs in the
  // step.
  return 4 * distance(billions(string_at(claim, "model")), ours.billions) +
         2 * distance(number_at(claim, "seq"), number_of(row, "seq")) +
         distance(number_at(claim, "gpus"), number_of(row, "gpus"));
}

/// How near a row is to a claim; the lower, the nearer. Of equally distant rows one whose recipe is applied as
/// it stands, then that with the most tokens.
using Rank = std::tuple<double, std::size_t, double>;
Rank rank(const Json& claim, const Case& ours) {
  const Row& row = *ours.row;
  return {distance(claim, ours), modifiers_of(row.fields).size(),
          -number_of(row, "seq").value_or(0) * number_of(row, "batch").value_or(1)};
}

using CasesByRecipe = std::map<std::string, std::vector<Case>>;

CasesByRecipe cases_by_recipe(const ReportInput& input) {
  CasesByRecipe cases;
  std::map<std::string, std::optional<double>> sizes;
  for (const MachineRecords& machine : input.machines)
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status != Status::ok) continue;
        const auto [size, is_new] = sizes.try_emplace(text_of(row, "model"));
        if (is_new) size->second = billions(size->first);
        cases[recipe_of(row)].push_back({&machine, &row, size->second});
      }
  return cases;
}

/// The nearest row of the claim's recipe that `usable` accepts.
template <class Usable>
Case nearest(const CasesByRecipe& cases, const Json& claim, Usable&& usable) {
  Case best;
  Rank best_rank;
  const auto some = cases.find(string_at(claim, "recipe"));
  if (some == cases.end()) return best;
  for (const Case& ours : some->second) {
    if (!usable(ours)) continue;
    const Rank its_rank = rank(claim, ours);
    if (best.row && its_rank >= best_rank) continue;
    best = ours;
    best_rank = its_rank;
  }
  return best;
}

/// "1.28 to 1.37x" or "1.25x"; empty if the claim has neither.
std::string claimed(const Json& claim, const std::string& key, const std::string& unit, int digits) {
  const auto text = [&](double value) {
    return digits > 0 ? fmt::format("{:.{}f}", value, digits) : rate_text(value);
  };
  if (const auto value = number_at(claim, key.c_str())) return text(*value) + unit;
  const auto low = number_at(claim, (key + "_min").c_str()), high = number_at(claim, (key + "_max").c_str());
  return low && high ? fmt::format("{} to {}{}", text(*low), text(*high), unit) : "";
}

/// What stands between the two numbers.
std::string differences(const Json& source, const Json& claim, const Case& ours) {
  Distinct texts;
  const Row& row = *ours.row;
  const auto add = [&](const char* what, const std::string& theirs, const std::string& mine) {
    if (!theirs.empty() && !mine.empty() && theirs != mine)
      texts.add(fmt::format("{} {}, here {}", what, theirs, mine));
  };
  add("hardware", claim.contains("hardware") ? string_at(claim, "hardware") : string_at(source, "hardware"),
      ours.machine->name);
  add("model", string_at(claim, "model"), text_of(row, "model"));
  add("GPUs", string_at(claim, "gpus"), text_of(row, "gpus"));
  add("seq", string_at(claim, "seq"), text_of(row, "seq"));
  add("parallel", string_at(claim, "parallel"),
      number_of(row, "gpus") == 1.0 ? "one GPU" : text_of(row, "parallel"));
  if (!string_at(claim, "metric").empty()) texts.add("measured there: " + string_at(claim, "metric"));
  texts.add(string_at(claim, "caveat"));
  return fmt::format("{}", fmt::join(texts.texts, "; "));
}

class PublishedTable {
 public:
  explicit PublishedTable(const ReportInput& input)
      : input_(input), cases_(cases_by_recipe(input)), json_(Json::parse(kPublishedText)) {
    for (const char* title : {"published by", "figure", "recipe"}) table.columns.push_back({title, true});
    for (const char* title : {"published", "measured here"}) table.columns.push_back({title, true, true});
    table.columns.push_back({"our nearest case", true, true});
    table.columns.push_back({"what differs", true, true});
  }

  void add_speedups() {
    for (const Json& claim : json_.at("speedups")) {
      const std::string text = claimed(claim, "speedup", "x", 2);
      const Case ours = nearest(cases_, claim, [](const Case& one) { return one.row->speedup.has_value(); });
      if (text.empty() || !ours.row)
        leave_out(claim);
      else
        add(claim, "speed-up over BF16", text, fmt::format("{:.2f}x", *ours.row->speedup), ours);
    }
  }

  void add_throughput() {
    for (const Json& claim : json_.at("throughput")) {
      const std::optional<double> size = billions(string_at(claim, "model"));
      const auto near_enough = [&](const Case& one) {
        return one.row->comparable() && one.row->tokens_per_s && size &&
               distance(size, one.billions) <= std::log2(kSameSize);
      };
      const Case ours = nearest(cases_, claim, near_enough);
      if (!ours.row) {
        leave_out(claim);
        continue;
      }
      const Row& row = *ours.row;
      const double gpus = number_of(row, "gpus").value_or(1);
      const std::string tflops = claimed(claim, "tflops_per_gpu", "", 0),
                        all = claimed(claim, "tokens_per_s", "", 0),
                        each = claimed(claim, "tokens_per_s_per_gpu", "", 0);
      if (!tflops.empty() && row.tflops_per_gpu)
        add(claim, "TFLOP/s per GPU", tflops, rate_text(*row.tflops_per_gpu), ours);
      if (!all.empty()) add(claim, "tokens/s, all GPUs", all, rate_text(*row.tokens_per_s), ours);
      if (!each.empty()) add(claim, "tokens/s per GPU", each, rate_text(*row.tokens_per_s / gpus), ours);
    }
  }

  void add_convergence() {
    for (const Json& claim : json_.at("convergence")) {
      Case ours;
      const RecipeConvergence* judged = nullptr;
      Row nearest_row;
      Rank best;
      for (const MachineRecords& machine : input_.machines)
        for (const Study& study : machine.studies)
          for (const RecipeConvergence& recipe : study.recipes) {
            const Row row = row_of(recipe);
            if (recipe_of(row) != string_at(claim, "recipe") || !recipe.verdict) continue;
            const Rank its_rank = rank(claim, {&machine, &row, billions(text_of(row, "model"))});
            if (judged && its_rank >= best) continue;
            best = its_rank;
            judged = &recipe;
            nearest_row = row;
            ours = {&machine, &nearest_row, {}};
          }
      if (!judged) {
        leave_out(claim);
        continue;
      }
      std::string text = string_at(claim, "claim");
      const auto theirs = number_at(claim, "final_loss"), bf16 = number_at(claim, "bf16_final_loss");
      if (theirs && bf16) text += fmt::format("{}{:+.1f} nats", text.empty() ? "" : ": ", *theirs - *bf16);
      add(claim, "final loss - bf16's", text,
          judged->delta
              ? fmt::format("{}: {:+.4f} nats ({}, {} steps)", name_of(*judged->verdict), *judged->delta,
                            plural(static_cast<std::size_t>(judged->seeds), "seed"), judged->steps)
              : fmt::format("{}: {}", name_of(*judged->verdict), judged->reason),
          ours);
    }
  }

  Table table;
  Distinct missing, sources;
  std::size_t left_out = 0;

 private:
  void add(const Json& claim, const char* figure, const std::string& theirs, const std::string& mine,
           const Case& ours) {
    const Json& source = json_.at("sources").at(string_at(claim, "source"));
    const std::string caveat = string_at(source, "caveat");
    sources.add(fmt::format("{}: {}{}", string_at(source, "name"), string_at(source, "title"),
                            caveat.empty() ? "" : ". " + caveat));
    Distinct setting;
    setting.add(setting_of(*ours.machine, *ours.row));
    for (const std::string& modifier : modifiers_of(ours.row->fields)) setting.add(modifier);
    table.rows.push_back({string_at(source, "name"), figure, string_at(claim, "recipe"), theirs, mine,
                          setting.joined(), differences(source, claim, ours)});
  }

  void leave_out(const Json& claim) {
    ++left_out;
    missing.add(string_at(claim, "recipe"));
  }

  const ReportInput& input_;
  CasesByRecipe cases_;
  Json json_;
};

}  // namespace

Section published_section(const ReportInput& input) {
  Section section{"Published beside measured", {}, {}, {}};
  PublishedTable published(input);
  published.add_speedups();
  published.add_throughput();
  published.add_convergence();
  if (published.table.rows.empty()) return section;
  section.table = std::move(published.table);
  section.notes = {
      "The nearest case is that of the same recipe whose model size, then sequence length, then GPU count "
      "is nearest. Throughput is shown only for models of about the same size. A number here neither "
      "confirms nor refutes one from other hardware."};
  section.notes.insert(section.notes.end(), published.sources.texts.begin(), published.sources.texts.end());
  if (published.left_out > 0)
    section.notes.push_back(fmt::format("{} without such a case in these records (recipes: {}).",
                                        plural(published.left_out, "published figure"),
                                        published.missing.joined()));
  return section;
}

}  // namespace precbench
