// Positive controls of the checks on the CPU device: a device without a fault agrees, and one wrong element, code,
// scale or sum is found in each native path.
#include <algorithm>

#include "kernels/checks/check_attention.h"
#include "kernels/checks/check_collectives.h"
#include "kernels/checks/check_gemm.h"
#include "kernels/checks/check_quantize.h"
#include "kernels/checks/faulty_device_testing.h"
#include "kernels/device/native_path.h"
#include "kernels/numerics/format_testing.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

using checks::Finding, checks::Findings;
using namespace testing;

bool all_agree(const Findings& findings) {
  return std::all_of(findings.begin(), findings.end(), [](const Finding& finding) { return finding.agrees; });
}

std::vector<QuantFormat> formats_of_recipes() {
  std::vector<QuantFormat> formats;
  for (const auto* table : {&builtin_recipes(), &fp4_recipes()})
    for (const Recipe& recipe : *table)
      for (const GemmRole role : kGemmRoles)
        for (const QuantFormat* operand : {&recipe.gemm(role).a, &recipe.gemm(role).b}) {
          const QuantFormat format = quantizer_format(*operand);
          if (format.quantized() && std::find(formats.begin(), formats.end(), format) == formats.end())
            formats.push_back(format);
        }
  return formats;
}

/// A format of each kernel family.
std::vector<QuantFormat> families() {
  return {kTensorE4m3, kRow, kBlock, kSquare, kMx, nvfp4_format(Granularity::block_1x16), mxfp4_format()};
}

}  // namespace

TEST_CASE("check_quantizer and check_producers: the CPU device agrees with itself in every recipe's format",
          "[checks]") {
  FaultyDevice device({}, 2);
  checks::TwoDevices devices(device, 1);
  for (const QuantFormat& format : formats_of_recipes())
    for (const Finding& finding : {check_quantizer(devices, format), check_producers(devices, format)}) {
      INFO(finding.path << ", " << finding.what << ": " << finding.measured);
      CHECK(finding.agrees);
      CHECK(finding.path == quantizer_path(format));
    }
}

TEST_CASE("check_quantizer: one wrong code or scale is found in each direction", "[checks]") {
  for (const QuantFormat& format : families())
    for (const Place place : {Place::row_code, Place::row_scale, Place::column_code, Place::column_scale}) {
      FaultyDevice device(Fault{OpKind::quantize, place});
      checks::TwoDevices devices(device);
      const Finding finding = check_quantizer(devices, format);
      INFO(describe(format) << " " << static_cast<int>(place) << ": " << finding.measured);
      CHECK_FALSE(finding.agrees);
      CHECK(device.spoiled() > 0);
      CHECK(finding.measured.find(": 1 of ") != std::string::npos);
    }
}

TEST_CASE("check_quantizer: a wrong largest magnitude is found", "[checks]") {
  for (const QuantFormat& format : {kTensorE4m3, nvfp4_format(Granularity::block_1x16)}) {
    FaultyDevice device(Fault{OpKind::quantize, Place::amax});
    checks::TwoDevices devices(device);
    CHECK_FALSE(check_quantizer(devices, format).agrees);
  }
}

TEST_CASE("check_producers: one wrong code or scale is found in each op that quantizes its output",
          "[checks]") {
  for (const OpKind op :
       {OpKind::add_rmsnorm, OpKind::rmsnorm_backward, OpKind::add_layernorm, OpKind::layernorm_backward,
        OpKind::activate, OpKind::activate_backward, OpKind::swiglu, OpKind::swiglu_backward})
    for (const Place place : {Place::row_code, Place::row_scale, Place::column_code, Place::column_scale}) {
      FaultyDevice device(Fault{op, place});
      checks::TwoDevices devices(device);
      const Finding finding = check_producers(devices, kRow);
      INFO(name_of(op) << " " << static_cast<int>(place));
      CHECK_FALSE(finding.agrees);
      CHECK(finding.measured.starts_with(name_of(op)));
    }
}

TEST_CASE("check_gemm: one wrong element is found in every mode, role and output", "[checks]") {
  const checks::GemmShape shape{96, 160, 256};
  for (const char* name : {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4"})
    for (const GemmRole role : kGemmRoles)
      for (const checks::Output& output : checks::outputs_of(role)) {
        const GemmRecipe gemm = find_recipe(name).gemm(role);
        INFO(name << " " << name_of(role) << " into " << name_of(output.dtype) << " " << output.accumulate);
        FaultyDevice right;
        const Finding good = check_gemm(right, gemm, role, output, shape);
        INFO(good.measured);
        CHECK(good.agrees);
        FaultyDevice wrong(Fault{OpKind::matmul});
        const Finding bad = check_gemm(wrong, gemm, role, output, shape);
        INFO(bad.measured);
        CHECK_FALSE(bad.agrees);
        CHECK(bad.path == gemm_path(gemm, role));
      }
}

TEST_CASE("check_gemm: a wrong operand scale is found", "[checks]") {
  // The device gets another scale for one row.
  FaultyDevice device;
  checks::HostOperand a = checks::make_quantized_tensor(kRow, 96, 256, false, 1);
  const checks::HostOperand b = checks::make_quantized_tensor(kRow, 160, 256, false, 2);
  const checks::Output output{DType::bf16, false};
  CHECK(agrees(errors_of_matmul(device, a, b, output, {}, false)));
  a.view.scale.as<float>()[3] *= 2;
  CHECK_FALSE(agrees(errors_of_matmul(device, a, b, output, {}, false)));
}

TEST_CASE("LargeGemm: agrees with itself and one wrong tile is found", "[checks]") {
  const checks::GemmShape shape{256, 384, 512};
  for (const char* name : {"bf16", "rowwise", "blockwise"}) {
    INFO(name);
    const GemmRecipe gemm = find_recipe(name).fprop;
    FaultyDevice right;
    checks::LargeGemm large(right, shape);
    for (const checks::Output& output :
         {checks::Output{DType::bf16, false}, checks::Output{DType::f32, true}}) {
      const Finding good = large.check(gemm, GemmRole::fprop, output);
      INFO(good.measured);
      CHECK(good.agrees);
    }
    FaultyDevice wrong(Fault{OpKind::matmul, Place::value, Extent::tile});
    checks::LargeGemm spoiled(wrong, shape);
    CHECK_FALSE(spoiled.check(gemm, GemmRole::fprop, {DType::bf16, false}).agrees);
  }
}

TEST_CASE("check_attention: one wrong element of out, lse or a gradient is found", "[checks]") {
  const AttentionShape shape{2, 70, 4, 2, 32};
  FaultyDevice right;
  const Findings good = checks::check_attention(right, shape);
  for (const Finding& finding : good) {
    INFO(finding.what << ": " << finding.measured);
    CHECK(finding.agrees);
    CHECK(finding.path == "attention own");
  }
  CHECK(good.size() == 5);
  const AttentionShape unequal{.B = 1, .T = 70, .heads = 2, .kv_heads = 2, .head_dim = 24, .value_dim = 16};
  CHECK(all_agree(checks::check_attention(right, unequal)));
  const AttentionShape capped{
      .B = 1, .T = 70, .heads = 2, .kv_heads = 1, .head_dim = 32, .window = 30, .softcap = 2};
  CHECK(all_agree(checks::check_attention(right, capped)));
  for (const Fault& fault : {Fault{OpKind::attention}, Fault{OpKind::attention, Place::second},
                             Fault{OpKind::attention_backward}}) {
    INFO(name_of(fault.op) << " " << static_cast<int>(fault.place));
    FaultyDevice wrong(fault);
    CHECK_FALSE(all_agree(checks::check_attention(wrong, shape)));
  }
}

namespace {

/// A Comm that spoils one element of one kind of collective on rank 0.
class FaultyComm final : public Comm {
 public:
  FaultyComm(std::unique_ptr<Comm> inner, std::string spoiled)
      : Comm(inner->rank(), inner->size()), inner_(std::move(inner)), spoiled_(std::move(spoiled)) {}
  std::string name() const override { return "faulty"; }

 protected:
  std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int, Lane lane) override {
    return inner_->subset(members, lane);
  }
  void do_all_reduce(const Tensor& x) override { inner_->all_reduce(x), spoil("all-reduce", x); }
  void do_all_reduce_max(const Tensor& x) override { inner_->all_reduce_max(x); }
  void do_all_gather(const Tensor& full, const Tensor& shard) override {
    inner_->all_gather(full, shard), spoil("all-gather", full);
  }
  void do_reduce_scatter(const Tensor& shard, const Tensor& full) override {
    inner_->reduce_scatter(shard, full), spoil("reduce-scatter", shard);
  }
  void do_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts, const Tensor& send,
                     const std::vector<std::int64_t>& send_counts) override {
    inner_->all_to_all(recv, recv_counts, send, send_counts), spoil("all-to-all", recv);
  }
  void do_send_recv(const Tensor& recv, int from, const Tensor& send, int to) override {
    inner_->send_recv(recv, from, send, to);
    if (!recv.empty() && from == 1) spoil("copy 1 to 0", recv);
  }

 private:
  void spoil(const std::string& what, const Tensor& x) {
    if (what == spoiled_ && rank() == 0) checks::HostMemory::set(x, x.size() / 2, 100);
  }
  std::unique_ptr<Comm> inner_;
  std::string spoiled_;
};

class FaultyGroup final : public CommGroup {
 public:
  FaultyGroup(int size, std::string spoiled) : inner_(make_local_group(size)), spoiled_(std::move(spoiled)) {}
  void abort() override { inner_->abort(); }
  std::unique_ptr<Comm> join(int rank, Device& device) override {
    return std::make_unique<FaultyComm>(inner_->join(rank, device), spoiled_);
  }

 private:
  std::unique_ptr<CommGroup> inner_;
  std::string spoiled_;
};

}  // namespace

TEST_CASE("check_collectives: one wrong sum or copied element is found and named", "[checks]") {
  const auto findings_with = [](const std::string& spoiled) {
    FaultyGroup group(3, spoiled);
    return checks::check_collectives(
        3, group, [](int) { return make_cpu_device(1); }, 300);
  };
  const Findings good = findings_with("");
  CHECK(all_agree(good));
  CHECK(good.size() == 4 + 6);
  for (const char* spoiled : {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "copy 1 to 0"}) {
    INFO(spoiled);
    for (const Finding& finding : findings_with(spoiled)) CHECK(finding.agrees == (finding.path != spoiled));
  }
}

TEST_CASE("gemm_path: names formats, accumulation and role but not how codes were drawn", "[checks]") {
  const Recipe& rowwise = find_recipe("rowwise");
  CHECK(gemm_path(rowwise.fprop, GemmRole::fprop) != gemm_path(rowwise.fprop, GemmRole::dgrad));
  GemmRecipe drawn{nvfp4_format(Granularity::block_1x16), nvfp4_format(Granularity::block_1x16)};
  const std::string plain = gemm_path(drawn, GemmRole::wgrad);
  drawn.a.element_rounding = ElementRounding::stochastic;
  drawn.a.transform = {16, Signs::te};
  CHECK(gemm_path(drawn, GemmRole::wgrad) == plain);
  CHECK(gemm_path(find_recipe("mxfp8").fprop, GemmRole::fprop) ==
        gemm_path(find_recipe("mxfp8_floor").fprop, GemmRole::fprop));
  CHECK(gemm_path(find_recipe("tensorwise").fprop, GemmRole::fprop) ==
        gemm_path(find_recipe("tensorwise_delayed").fprop, GemmRole::fprop));
  CHECK(attention_paths("own 128x128 forward, cudnn 9.14.0 backward") ==
        std::vector<std::string>{"attention own", "attention cudnn"});
}

TEST_CASE("demoted_reason: a GEMM is demoted by itself, by a quantizer or with all", "[checks]") {
  const GemmRecipe gemm = find_recipe("rowwise").fprop;
  const auto reason = [&](const std::string& path) {
    return demoted_reason({{path, "why"}}, gemm, GemmRole::fprop);
  };
  CHECK(reason(gemm_path(gemm, GemmRole::fprop)) == "why");
  CHECK(reason(quantizer_path(gemm.a)) == "why");
  CHECK(reason(kEveryGemm) == "why");
  CHECK(reason(gemm_path(gemm, GemmRole::wgrad)).empty());
  CHECK(reason(quantizer_path(kMx)).empty());
  CHECK(demoted_reason({}, gemm, GemmRole::fprop).empty());
}

}  // namespace precbench
