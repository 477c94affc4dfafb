// Tests that a layout is made once for all who ask for the same.
#include "models/transformer/state/shared_layout.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("shared_layout: equal questions have one layout, others have their own", "[layout]") {
  ModelConfig model = model_presets().front();
  model.layers = 7;  // which no other test asks for
  const auto first = shared_layout(model, 2, true);
  const std::int64_t made = layouts_made();
  CHECK(shared_layout(model, 2, true) == first);
  CHECK(layouts_made() == made);
  ModelConfig deeper = model;
  ++deeper.layers;
  for (const auto& other :
       {shared_layout(deeper, 2, true), shared_layout(model, 4, true), shared_layout(model, 2),
        shared_layout(model, 1, false, {}, {2, 1}), shared_layout(model, 1, false, {}, {2, 0}),
        shared_layout(model, LoraOptions{4, 8}), shared_layout(model, LoraOptions{8, 8})})
    CHECK(other != first);
  CHECK(layouts_made() == made + 7);
  const Layout own(model, 2, true);
  for (int unit = 0; unit < own.unit_count(); ++unit) CHECK(first->shard_size(unit) == own.shard_size(unit));
  CHECK(first->units().back().parameters.back().name == own.units().back().parameters.back().name);
}
