// Groups imported records. See run_arms.h.
#include "tools/import/run_arms.h"

#include <fmt/format.h>

#include <algorithm>

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

std::string word(const CaseFields& fields, const char* name) {
  const Json value = fields.value(name, Json());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string group_name(const CaseFields& fields) {
  return fmt::format("{}, {}, seq {}, global batch {}, {} GPUs, a line every {} steps",
                     word(fields, "source"), word(fields, "model"), word(fields, "seq"),
                     word(fields, "global_batch"), word(fields, "gpus"), word(fields, "window_steps"));
}

}  // namespace

std::vector<ArmGroup> arm_groups(const RecordSet& records, const std::string& reference) {
  std::vector<ArmGroup> groups;
  for (const LocatedRecord& located : records.records) {
    const Record& record = located.record;
    if (!record.source || !record.training || record.training->loss.empty()) continue;
    const std::string name = group_name(record.case_fields), recipe = word(record.case_fields, "recipe");
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const ArmGroup& one) { return one.name == name; });
    if (group == groups.end()) {
      groups.push_back({name, 0, {}, false});
      group = groups.end() - 1;
      if (const Json batch = record.case_fields.value("global_batch", Json()); batch.is_number_integer())
        group->global_batch = batch.get<std::int64_t>();
    }
    auto arm = std::find_if(group->arms.begin(), group->arms.end(),
                            [&](const RunArm& one) { return one.recipe == recipe; });
    if (arm == group->arms.end()) {
      const bool first = recipe == reference;
      group->has_reference = group->has_reference || first;
      arm = group->arms.insert(first ? group->arms.begin() : group->arms.end(), {recipe, {}});
    }
    const Json seed = record.case_fields.value("seed", Json());
    arm->runs.push_back({seed.is_number_integer() ? std::optional(seed.get<std::int64_t>()) : std::nullopt,
                         record.source->steps, record.training->loss, record.status == Status::diverged});
  }
  return groups;
}

}  // namespace precbench
