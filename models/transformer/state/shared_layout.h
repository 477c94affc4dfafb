// Layouts that are asked for again. Searches of settings make hundreds of dry runs, and the layout of a model with
// thousands of experts takes longer than the rest of one.
#pragma once

#include <cstdint>
#include <memory>

#include "models/transformer/state/layout.h"

namespace precbench {

/// Return Layout(arguments). The last ones are kept, for all threads.
std::shared_ptr<const Layout> shared_layout(const ModelConfig& model, int shards, bool whole_blocks = false,
                                            const ExpertShare& experts = {}, const TensorShare& tensor = {});
std::shared_ptr<const Layout> shared_layout(const ModelConfig& model, const LoraOptions& lora);

/// Returns the number of layouts that these have made so far, for tests.
std::int64_t layouts_made();

}  // namespace precbench
