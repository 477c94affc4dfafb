// Common parts of records, found by their bytes. See record_pool.h.
#include "results/record_pool.h"

#include <utility>

#include "results/record_bytes.h"

namespace precbench {
namespace {

/// A pool is cleared at this size, so that values that never repeat do not fill memory.
constexpr std::size_t kMostValues = 4096;
/// From this many runs on, a case gets fields of its own, from which each run differs only in the seed.
constexpr std::size_t kManyRuns = 8;

std::string text_of(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

template <class T>
void ValuePool<T>::share(T& value) {
  if (known_.size() == kMostValues) known_.clear();
  value = known_.try_emplace(bytes_of(value), value).first->second;
}

void RecordPool::share(CaseFields& fields) {
  std::string key;
  for (const auto& item : fields.items())
    if (item.key() != "seed") key += item.key() + '=' + text_of(item.value()) + '\n';
  if (runs_.size() == kMostValues) runs_.clear();
  Runs& runs = runs_[key];
  if (++runs.count == kManyRuns) runs.fields = CaseFields(nlohmann::ordered_json(fields));
  if (runs.fields && fields.share_with(*runs.fields)) return;
  if (!fields.share_with(like_)) like_ = fields;
}

void RecordPool::share(Shared<DefinitionRecord>& definition) {
  if (!definition) return;
  DefinitionRecord& parts = *definition;
  for (DefinitionPart* part : {&parts.model, &parts.recipe, &parts.data, &parts.init})
    definitions_.share(*part);
  if (whole_definitions_.size() == kMostValues) whole_definitions_.clear();
  definition = whole_definitions_
                   .try_emplace({parts.model.get(), parts.recipe.get(), parts.data.get(), parts.init.get()},
                                definition)
                   .first->second;
}

void RecordPool::share(Record& record) {
  share(record.case_fields);
  share(record.definition);
  environments_.share(record.env);
  supports_.share(record.support);
  flops_.share(record.flops);
  if (record.metrics && record.metrics->peaks) {
    sources_.share(record.metrics->peaks->source);
    rates_.share(record.metrics->peaks);
  }
  if (record.memory) {
    segments_.share(record.memory->predicted);
    segments_.share(record.memory->measured);
  }
  texts_.share(record.warnings);
  if (record.training) texts_.share(record.training->converted_layers);
  if (record.telemetry) texts_.share(record.telemetry->throttle_reasons);
  if (record.breakdown)
    for (OpRecord& op : record.breakdown->ops) ops_.share(op.work);
}

}  // namespace precbench
