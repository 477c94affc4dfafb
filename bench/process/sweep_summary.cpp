// Collects and compares the values of fields. See sweep_summary.h.
#include "bench/process/sweep_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "bench/process/link.h"
#include "kernels/base/sha256.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Limits of a summary, which must fit one message, and of a line for people.
constexpr std::size_t kMostValues = 32, kLongestValue = 200, kMostNamed = 3;
constexpr const char* kStartAlike = "; start all processes with the same arguments";

std::string shown(const std::string& value) { return value.empty() ? "not given" : value; }

/// Returns the values of a field in a summary, or its default if the summary has none.
std::vector<std::string> values_in(const Json& summary, const Field& field) {
  static const Case kDefaults;
  std::vector<std::string> values;
  const auto fields = summary.find("values");
  if (fields != summary.end() && fields->is_object())
    if (const auto found = fields->find(field.name); found != fields->end() && found->is_array())
      for (const Json& value : *found)
        if (value.is_string()) values.push_back(value.get<std::string>().substr(0, kLongestValue));
  if (values.empty()) values.push_back(get_text(kDefaults, field));
  return values;
}

std::string words_of(const std::vector<std::string>& values) {
  std::vector<std::string> words;
  for (const std::string& value : values) words.push_back(shown(value));
  return fmt::format("{}", fmt::join(words, ","));
}

/// Joins the first few differences.
std::string joined(const std::vector<std::string>& differences) {
  const std::size_t named = std::min(differences.size(), kMostNamed);
  std::string text = fmt::format(
      "{}", fmt::join(differences.begin(), differences.begin() + static_cast<std::ptrdiff_t>(named), "; "));
  if (differences.size() > named) text += fmt::format("; and {} more", differences.size() - named);
  return text;
}

std::string two_values(const Field& field, int process, const std::string& there, const std::string& first) {
  return fmt::format("{} is {} in process {} and {} in process 0", flag_of(field), there, process, first);
}

}  // namespace

Json summarize_sweep(const std::vector<Case>& grid) {
  static const Case kDefaults;
  std::set<std::string> cases;
  for (const Case& c : grid)
    cases.insert(case_to_json(c).dump(-1, ' ', false, Json::error_handler_t::replace));
  std::string all;
  for (const std::string& text : cases) all += text + "\n";
  Json values = Json::object();
  for (const Field& field : case_fields()) {
    std::vector<std::string> texts;  // in the order of the cases, each once
    for (const Case& c : grid) {
      const std::string text = get_text(c, field).substr(0, kLongestValue);
      if (texts.size() < kMostValues && std::find(texts.begin(), texts.end(), text) == texts.end())
        texts.push_back(text);
    }
    if (texts != std::vector<std::string>{get_text(kDefaults, field)}) values[field.name] = texts;
  }
  return {
      {"sweep", hex(sha256(all))}, {"cases", static_cast<std::int64_t>(cases.size())}, {"values", values}};
}

std::optional<std::string> sweep_difference(const Json& own, const Json& theirs, int process) {
  const std::string digest = text_in(theirs, "sweep", "");
  if (digest == text_in(own, "sweep", "")) return std::nullopt;
  std::vector<std::string> differences;
  for (const Field& field : case_fields()) {
    const std::vector<std::string> there = values_in(theirs, field), first = values_in(own, field);
    if (there != first) differences.push_back(two_values(field, process, words_of(there), words_of(first)));
  }
  if (differences.empty())
    differences.push_back(
        fmt::format("process {} has {} cases and process 0 has {}, not all of them the same", process,
                    integer_in(theirs, "cases", 0), integer_in(own, "cases", 0)));
  return joined(differences) + kStartAlike;
}

std::string case_difference(const Case& ordered, const std::vector<Case>& grid, int here) {
  std::vector<std::string> fewest;
  for (const Case& own : grid) {
    std::vector<std::string> differences;
    for (const Field& field : case_fields())
      if (const std::string mine = get_text(own, field), first = get_text(ordered, field); mine != first)
        differences.push_back(two_values(field, here, shown(mine), shown(first)));
    if (fewest.empty() || differences.size() < fewest.size()) fewest = std::move(differences);
  }
  return fewest.empty() ? fmt::format("process {} has no cases", here) + kStartAlike
                        : joined(fewest) + kStartAlike;
}

}  // namespace precbench
