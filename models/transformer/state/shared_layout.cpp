// Keeps the last layouts. See shared_layout.h.
#include "models/transformer/state/shared_layout.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <tuple>

namespace precbench {
namespace {

/// Arguments of a layout: model, shards, whole blocks, expert ranks and rank, tensor ranks and rank, rank of adapters.
using LayoutKey = std::tuple<ModelConfig, int, bool, int, int, int, int, std::int64_t>;

/// The last layouts, the latest first.
class KeptLayouts {
 public:
  template <typename Make>
  std::shared_ptr<const Layout> get(LayoutKey key, const Make& make) {
    const std::lock_guard lock(mutex_);  // while one is made, too: others may wait for the same
    const auto known =
        std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.first == key; });
    if (known != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, known);
      return kept_.front().second;
    }
    kept_.emplace_front(std::move(key), std::make_shared<const Layout>(make()));
    ++made_;
    parameters_ += parameters_of(*kept_.front().second);
    while (parameters_ > kMostParameters && kept_.size() > 1) {
      parameters_ -= parameters_of(*kept_.back().second);
      kept_.pop_back();
    }
    return kept_.front().second;
  }

  std::int64_t made() {
    const std::lock_guard lock(mutex_);
    return made_;
  }

 private:
  static std::size_t parameters_of(const Layout& layout) {
    std::size_t count = 0;
    for (const Unit& unit : layout.units()) count += unit.parameters.size();
    return count;
  }

  static constexpr std::size_t kMostParameters = 500'000;  // about 100 MB, or seven of Kimi K2
  std::mutex mutex_;
  std::list<std::pair<LayoutKey, std::shared_ptr<const Layout>>> kept_;
  std::size_t parameters_ = 0;  // of all kept
  std::int64_t made_ = 0;
};

KeptLayouts& kept_layouts() {
  static KeptLayouts kept;
  return kept;
}

}  // namespace

std::shared_ptr<const Layout> shared_layout(const ModelConfig& model, int shards, bool whole_blocks,
                                            const ExpertShare& experts, const TensorShare& tensor) {
  return kept_layouts().get(
      {model, shards, whole_blocks, experts.ranks, experts.rank, tensor.ranks, tensor.rank, 0},
      [&] { return Layout(model, shards, whole_blocks, experts, tensor); });
}

std::shared_ptr<const Layout> shared_layout(const ModelConfig& model, const LoraOptions& lora) {
  return kept_layouts().get({model, 1, false, 1, 0, 1, 0, lora.rank}, [&] { return Layout(model, lora); });
}

std::int64_t layouts_made() { return kept_layouts().made(); }

}  // namespace precbench
