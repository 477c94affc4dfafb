// Records by field values. See field_index.h.
#include "results/record/field_index.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace precbench {
namespace {

using Names = std::vector<std::string>;

Names names_of_work(const Record& record) {
  Names names;
  for (const auto& item : record.case_fields.items())
    if (changes_work(item.key())) names.push_back(item.key());
  return names;
}

/// Returns the values of these fields as one text; nullopt if the record lacks one.
std::optional<std::string> values_of(const Record& record, const Names& names) {
  std::string text;
  for (const std::string& name : names) {
    const CaseFields::Json* value = record.case_fields.find(name);
    if (!value) return std::nullopt;
    text += value->dump(-1, ' ', false, CaseFields::Json::error_handler_t::replace) + '\n';
  }
  return text;
}

/// Returns true if the record has no other fields that are only written if used, i.e. differ from their
/// default.
bool has_no_others(const Record& record, const Names& names) {
  for (const auto& item : record.case_fields.items())
    if (only_where_used(item.key()) && std::find(names.begin(), names.end(), item.key()) == names.end())
      return false;
  return true;
}

}  // namespace

const std::vector<const LocatedRecord*>& FieldIndex::like(const Record& record) {
  static const std::vector<const LocatedRecord*> kNone;
  const Names names = names_of_work(record);
  const auto [known, is_new] = by_names_.try_emplace(names);
  ByValues& by_values = known->second;
  if (is_new)
    for (const LocatedRecord* located : records_)
      if (const auto values = values_of(located->record, names);
          values && has_no_others(located->record, names))
        by_values[*values].push_back(located);
  const auto found = by_values.find(*values_of(record, names));
  return found == by_values.end() ? kNone : found->second;
}

}  // namespace precbench
