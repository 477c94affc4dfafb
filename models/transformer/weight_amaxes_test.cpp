// Weight amaxes recorded by a previous GEMM or by the optimizer: GEMMs give the same bits as when each
// computes its own.
#include "models/transformer/linear/weight_amaxes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/op_testing.h"
#include "models/transformer/linear/linear.h"
#include "models/transformer/step_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kM = 64, kN = 96, kK = 128;

/// A layer's weight and the operands of its GEMMs, on the CPU device.
struct Layer {
  std::unique_ptr<Device> device = make_cpu_device(1);
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  Arena arena{memory.data(), 1 << 20};
  Recipe recipe;
  std::vector<float> w = rounded(normal(2, kN* kK, 0.05f));
  Owned W{DType::bf16, kN, kK, w};
  Owned X{DType::bf16, kM, kK, rounded(normal(1, kM*kK))}, dY{DType::bf16, kM, kN, rounded(normal(3, kM*kN))};
  QuantizedTensor x = quantized(X, recipe.fprop.a), dy = quantized(dY, recipe.dgrad.a);

  QuantizedTensor quantized(const Tensor& value, const QuantFormat& format) {
    QuantizedTensor made{.value = value};
    made.rowwise = push_gemm_operand(arena, Segment::activations, format, value.rows, value.cols);
    if (format.granularity == Granularity::tensor)
      made.amax_out = arena.push(Segment::activations, DType::f32, 1, 1);
    device->quantize({made});
    return made;
  }
  Linear linear(WeightAmaxes::Slot* slot) {
    LinearSlots slots;
    slots.w_amax = slot;
    return {*device, arena, recipe, OpClass::gemm, slots};
  }
  std::vector<float> fprop(WeightAmaxes::Slot* slot) {
    const Owned y(DType::f32, kM, kN);
    linear(slot).fprop(y, x, {W, {}});
    return y.floats();
  }
  std::vector<float> dgrad(WeightAmaxes::Slot* slot) {
    const Owned dx(DType::f32, kM, kK);
    linear(slot).dgrad(dx, dy, {W, {}});
    return dx.floats();
  }
};

}  // namespace

TEST_CASE("WeightAmaxes: the first GEMM records a weight's amax and later ones reuse it", "[weight_amaxes]") {
  Layer layer{.recipe = find_recipe("tensorwise")};
  WeightAmaxes::Slot slot{layer.arena.push(Segment::other, DType::f32, 1, 1)};
  float want = 0;
  for (const float w : layer.w) want = std::max(want, std::fabs(w));
  const std::vector<float> y = layer.fprop(nullptr), dx = layer.dgrad(nullptr);

  CHECK(layer.fprop(&slot) == y);
  CHECK(slot.known);
  CHECK(*slot.amax.as<float>() == want);
  CHECK(layer.dgrad(&slot) == dx);

  // Half the amax saturates the data, which shows that dgrad's scale comes from the slot.
  *slot.amax.as<float>() = want / 2;
  CHECK(layer.dgrad(&slot) != dx);
  slot.known = false;  // as after an update
  CHECK(layer.fprop(&slot) == y);
  CHECK(layer.dgrad(&slot) == dx);
}

TEST_CASE("WeightAmaxes: steps with kept amaxes give the same bits as without", "[weight_amaxes]") {
  const char* model = GENERATE("tiny", "tiny-moe-shared");
  StepSetup setup;
  setup.model = find_model(model);
  setup.model.layers = 2;
  setup.accumulation = 2;
  const std::int64_t count = setup.accumulation * setup.B * setup.T;
  for (const bool recompute : {false, true}) {
    INFO(model << (recompute ? ", recomputing" : ", keeping activations"));
    setup.recipe = find_recipe("tensorwise");
    setup.recompute = recompute ? kRecomputeBlocks : Recompute{};
    const auto train = [&](bool kept) {
      setup.weight_amaxes = kept;
      TestStep step(setup);
      step.parameters().initialize(1, 0.05f);
      CHECK((step.parameters().weight_amaxes() != nullptr) == kept);
      for (std::uint64_t i = 0; i < 3; ++i) {  // other weights, and other amaxes, each time
        step.forward_backward(random_tokens(i, count, setup.model.vocab),
                              random_tokens(i + 10, count, setup.model.vocab));
        step.update({.lr = 1e-2f}, static_cast<std::int64_t>(i));
      }
      return step.weights();
    };
    CHECK(first_difference(train(true), train(false)).empty());
  }
}

TEST_CASE("WeightAmaxes: AdamW and other weight changes record the amaxes", "[weight_amaxes]") {
  const char* model = GENERATE("tiny", "tiny-moe-shared");
  StepSetup setup;
  setup.model = find_model(model);
  setup.model.layers = 2;
  setup.recipe = find_recipe("tensorwise");
  const std::int64_t count = setup.B * setup.T;
  constexpr LinearRole kRoles[] = {LinearRole::qkv, LinearRole::o, LinearRole::gate_up, LinearRole::down};
  TestStep step(setup);
  Parameters& parameters = step.parameters();
  std::vector<float> before;
  const auto check = [&](const char* when) {
    INFO(model << " " << when);
    std::vector<float> found;
    for (std::int64_t layer = 0; layer < setup.model.layers; ++layer)
      for (const LinearRole role : kRoles) {
        const WeightAmaxes::Slot* slot = parameters.weight_amaxes()->slot(layer, role);
        REQUIRE(slot->known);
        REQUIRE(!slot->kept.empty());
        const bool stacked = setup.model.moe && (role == LinearRole::gate_up || role == LinearRole::down);
        REQUIRE(slot->amax.size() == (stacked ? setup.model.moe.rule.experts : 1));
        const std::int64_t part = slot->kept.size() / slot->amax.size();
        for (std::int64_t e = 0; e < slot->amax.size(); ++e) {
          float want = 0;
          for (std::int64_t i = e * part; i < (e + 1) * part; ++i)
            want = std::max(want, std::fabs(bf16_decode(slot->kept.as<std::uint16_t>()[i])));
          CHECK(slot->amax.as<float>()[e] == want);
          found.push_back(want);
        }
      }
    CHECK(found != before);
    before = found;
  };
  parameters.initialize(1, 0.05f);
  check("at first");
  for (std::uint64_t i = 0; i < 2; ++i) {
    step.forward_backward(random_tokens(i, count, setup.model.vocab),
                          random_tokens(i + 10, count, setup.model.vocab));
    step.update({.lr = 1e-2f}, static_cast<std::int64_t>(i));
    check("after a step");
    parameters.begin_step();
    CHECK(parameters.weight_amaxes()->slot(0, LinearRole::qkv)->known);
  }
  Parameters::Replaced replaced;
  parameters.change([](const Parameter&) { return [](std::int64_t, float value) { return 3 * value; }; },
                    &replaced);
  check("changed");
  parameters.restore(replaced);
  check("restored");
}

TEST_CASE("WeightAmaxes: with other optimizers the first GEMM of each step records the amaxes",
          "[weight_amaxes]") {
  StepSetup setup;
  setup.model = find_model("tiny");
  setup.model.layers = 1;
  setup.recipe = find_recipe("tensorwise");
  setup.optimizer = &optimizer_named("lion");
  TestStep step(setup);
  step.parameters().initialize(1, 0.05f);
  WeightAmaxes::Slot* slot = step.parameters().weight_amaxes()->slot(0, LinearRole::qkv);
  CHECK(slot->kept.empty());
  const std::int64_t count = setup.B * setup.T;
  step.forward_backward(random_tokens(1, count, setup.model.vocab),
                        random_tokens(2, count, setup.model.vocab));
  CHECK(slot->known);
  step.parameters().begin_step();
  CHECK(!slot->known);
}
