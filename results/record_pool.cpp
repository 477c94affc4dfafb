// The parts of a record by their bytes. See record_pool.h.
#include "results/record_pool.h"

#include <utility>

#include "results/record_bytes.h"

namespace precbench {
namespace {

/// Beyond, a pool begins anew: values of which each is another take no place in it.
constexpr std::size_t kMostValues = 4096;

}  // namespace

template <class T>
void ValuePool<T>::share(T& value) {
  if (known_.size() == kMostValues) known_.clear();
  value = known_.try_emplace(bytes_of(value), value).first->second;
}

void RecordPool::share(Record& record) {
  if (!record.case_fields.share_with(like_)) like_ = record.case_fields;
  environments_.share(record.env);
  supports_.share(record.support);
  flops_.share(record.flops);
  if (record.definition)
    for (const auto part : {&DefinitionRecord::model, &DefinitionRecord::recipe, &DefinitionRecord::data,
                            &DefinitionRecord::init})
      definitions_.share((*record.definition).*part);
  if (record.metrics && record.metrics->peaks) {
    sources_.share(record.metrics->peaks->source);
    rates_.share(record.metrics->peaks);
  }
  if (record.memory) {
    segments_.share(record.memory->predicted);
    segments_.share(record.memory->measured);
  }
  if (record.breakdown)
    for (OpRecord& op : record.breakdown->ops) ops_.share(op.work);
}

}  // namespace precbench
