// Steps whose wgrad transposes FP8 data (Recipe::flow): which results change, which stay equal bit for bit,
// and from what the gradients are computed.
#include "models/transformer/step_compare.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Recipe flowing() {
  Recipe recipe = find_recipe("blockwise_pow2");
  recipe.flow = true;
  return recipe;
}

StepSetup flow_setup(const char* model, const Recipe& recipe) {
  StepSetup setup{.model = find_model(model), .B = 4, .T = 64, .recipe = recipe};
  setup.model.layers = 2;
  return setup;
}

bool of_linear(const std::string& name) { return name.find("_proj") != std::string::npos; }

}  // namespace

TEST_CASE("flow: changes only gradients of linear layers and by at most 4%", "[flow]") {
  for (const auto& [model, at] :
       {std::pair("tiny", WeightAt::swiglu), std::pair("tiny-moe", WeightAt::swiglu),
        std::pair("tiny-moe-shared", WeightAt::swiglu), std::pair("tiny-moe-shared", WeightAt::input)}) {
    INFO(model << (at == WeightAt::input ? ", weights at the input" : ""));
    StepSetup setup = flow_setup(model, flowing());
    setup.model.moe.weight_at = at;
    const Result with = random_step(setup);
    setup.recipe = find_recipe("blockwise_pow2");
    const Result without = random_step(setup);
    // Forward and dgrad use the same FP8 data with and without flow.
    CHECK(with.loss == without.loss);
    std::int64_t changed = 0;
    for (const auto& [name, values] : without.gradients) {
      INFO(name);
      const double d = distance(with.gradients.at(name), values);
      // The RMS error of e4m3 is at most 2^-4 / sqrt 3. Two operands are cast twice.
      CHECK(d <= (of_linear(name) ? 0.04 : 0.0));
      changed += d > 0;
    }
    CHECK(changed > 0);
  }
}

TEST_CASE("flow: recomputation gives the same bits", "[flow]") {
  for (const char* model : {"tiny", "tiny-moe-shared"}) {
    INFO(model);
    StepSetup setup = flow_setup(model, flowing());
    setup.accumulation = 2;
    check_recomputed(setup, random_step(setup));
  }
}

TEST_CASE("flow: lm_head and separate q k v GEMMs stay within 4% of requantized gradients", "[flow]") {
  StepSetup setup = flow_setup("tiny", flowing());
  setup.head = flowing();
  setup.roles = {LinearRole::q, LinearRole::down};  // v is narrower than a block
  const Result with = random_step(setup);
  setup.recipe = setup.head = find_recipe("blockwise_pow2");
  const Result without = random_step(setup);
  CHECK(with.loss == without.loss);
  for (const auto& [name, values] : without.gradients) {
    INFO(name);
    CHECK(distance(with.gradients.at(name), values) <= 0.04);
  }
}

TEST_CASE("Linear::wgrad with flow: equals the GEMM of the transposed FP8 data bit for bit", "[flow]") {
  const std::int64_t M = 256, N = 128, K = 384;
  const auto device = make_cpu_device(1);
  const Recipe recipe = flowing();
  const NanBlock block(*device, std::int64_t{8} << 20);
  Arena arena(block.data(), std::int64_t{8} << 20);
  const Linear linear(*device, arena, recipe);
  const auto quantized = [&](std::uint64_t seed, std::int64_t cols) {
    QuantizedTensor x;
    x.value = arena.push(Segment::activations, DType::bf16, M, cols);
    for (std::int64_t i = 0; i < M * cols; ++i)  // rows scaled by 2^0 to 2^12
      x.value.as<std::uint16_t>()[i] = bf16_encode(std::ldexp(
          irwin_hall_normal(seed, static_cast<std::uint64_t>(i)), static_cast<int>(i / cols * 5 % 13)));
    x.rowwise = push_gemm_operand(arena, Segment::activations, recipe.fprop.a, M, cols);
    device->quantize({x});
    return x;
  };
  const QuantizedTensor x = quantized(1, K), dy = quantized(2, N);
  const Tensor dweight = arena.push(Segment::gradients, DType::f32, N, K);
  linear.wgrad(dweight, dy, x, {}, false);

  const auto turned = [&](const QuantizedTensor& operand) {
    const GemmOperand columns =
        push_gemm_operand(arena, Segment::activations, recipe.wgrad.a, operand.value.cols, M);
    device->transpose_codes({columns, operand.rowwise});
    return columns;
  };
  const GemmOperand x_columns = turned(x), dy_columns = turned(dy);
  const Tensor expected = arena.push(Segment::gradients, DType::f32, N, K);
  device->matmul({expected, dy_columns, x_columns, {GemmRole::wgrad}});
  CHECK(std::memcmp(dweight.data, expected.data, static_cast<std::size_t>(expected.bytes())) == 0);
  // The result is also close to that of columns quantized from the values.
  QuantizedTensor direct_x{.value = x.value}, direct_dy{.value = dy.value};
  direct_x.columnwise = push_gemm_operand(arena, Segment::activations, recipe.wgrad.b, K, M);
  direct_dy.columnwise = push_gemm_operand(arena, Segment::activations, recipe.wgrad.a, N, M);
  device->quantize({direct_x});
  device->quantize({direct_dy});
  const Tensor direct = arena.push(Segment::gradients, DType::f32, N, K);
  linear.wgrad(direct, direct_dy, direct_x, {}, false);
  const auto values = [](const Tensor& t) {
    return std::vector<float>(t.as<float>(), t.as<float>() + t.size());
  };
  const double d = distance(values(dweight), values(direct));
  CHECK(d > 0);
  CHECK(d <= 0.04);
}
