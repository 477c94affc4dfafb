// Traces for tests: writes the events of a training step as torch.profiler does, with planted faults.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/explain/expectation.h"
#include "tools/explain/kineto_reader.h"

namespace precbench::testing {

using TraceDims = std::vector<std::vector<std::int64_t>>;

/// Writes Kineto's JSON. The host launches kernels ahead of the GPU; times are microseconds.
class KinetoWriter {
 public:
  std::string gpu = "NVIDIA H200";
  int rank = -1, ranks = 0;  ///< -1: not distributed
  double launch_us = 5;      ///< of the host, for one kernel
  double call_us = 4;        ///< of which the call of the CUDA runtime takes

  void begin(const std::string& name) { open_.push_back({name, host_ += 1}); }
  void end() {
    host_ += 1;
    event("cpu_op", open_.back().name, open_.back().start, host_ - open_.back().start, 1, "");
    open_.pop_back();
  }
  void begin_step(int number) { open_.push_back({fmt::format("ProfilerStep#{}", number), host_ += 1}); }
  /// Ends the step when the GPU has finished it.
  void end_step(bool waits = true) {
    if (waits) wait();
    host_ += 1;
    event("user_annotation", open_.back().name, open_.back().start, host_ - open_.back().start, 1, "");
    open_.pop_back();
  }
  /// One operation that launches one kernel.
  void kernel(const std::string& op, const std::string& name, double us, const TraceDims& dims = {},
              const std::vector<std::string>& types = {}, int stream = 7,
              const std::string& category = "kernel") {
    ++id_;
    event("cpu_op", op, host_, launch_us, 1, fmt::format("\"External id\": {}{}", id_, inputs(dims, types)));
    event("cuda_runtime", "cudaLaunchKernel", host_ + launch_us - call_us - 0.5, call_us, 1,
          fmt::format("\"External id\": {}, \"correlation\": {}", id_, id_));
    double& gpu_time = stream == 7 ? gpu_ : other_;
    gpu_time = std::max(gpu_time + 1, host_ + launch_us);
    event(category, name, gpu_time, us, stream,
          fmt::format("\"External id\": {}, \"correlation\": {}, \"device\": 0, \"stream\": {}", id_, id_,
                      stream));
    gpu_time += us;
    host_ += launch_us;
  }
  void wait(const std::string& call = "cudaDeviceSynchronize") {
    const double until = std::max({gpu_, other_, host_ + 1}) + 2;
    event("cuda_runtime", call, host_, until - host_, 1, fmt::format("\"correlation\": {}", ++id_));
    host_ = until;
  }
  /// The compute stream waits for the other one, as after a gather that is not prefetched.
  void join_streams() { gpu_ = std::max(gpu_, other_); }
  void fork_streams() { other_ = std::max(gpu_, other_); }
  void sleep(double us) { host_ += us; }
  void compile(double us) {
    event("cpu_op", "_compile.compile_inner (dynamo_timed)", host_, us, 1, "");
    host_ += us;
  }
  void raw(const std::string& json) { events_ += (events_.empty() ? "" : ",\n") + json; }

  std::string json() const {
    return "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"" + gpu + "\"}]" +
           (rank < 0
                ? ""
                : fmt::format(
                      ", \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}, \"pg_config\": "
                      "[{{\"ranks\": [0, 1], \"rank\": 7}}]}}",
                      rank, ranks)) +
           ", \"traceEvents\": [\n" + events_ + "\n]}\n";
  }

 private:
  struct Open {
    std::string name;
    double start;
  };
  static std::string inputs(const TraceDims& dims, const std::vector<std::string>& types) {
    if (dims.empty()) return "";
    std::string text = ", \"Input Dims\": [", kinds = ", \"Input type\": [";
    for (std::size_t i = 0; i < dims.size(); ++i)
      text += fmt::format("{}[{}]", i ? ", " : "", [&] {
        std::string sizes;
        for (const std::int64_t size : dims[i]) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
        return sizes;
      }());
    for (std::size_t i = 0; i < types.size(); ++i) kinds += fmt::format("{}\"{}\"", i ? ", " : "", types[i]);
    return text + "]" + kinds + "]";
  }
  void event(const std::string& category, const std::string& name, double start, double duration, int thread,
             const std::string& arguments) {
    raw(fmt::format(
        "{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": \"{}\", \"pid\": 1, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, "
        "\"args\": {{{}}}}}",
        category, name, thread, start, duration, arguments));
  }

  std::string events_;
  std::vector<Open> open_;
  double host_ = 1e12, gpu_ = 0, other_ = 0;
  std::uint64_t id_ = 0;
};

/// Rates of an imagined GPU: constant shares of an H200's peaks.
class PlainRates final : public Expectation {
 public:
  std::string gpu() const override { return "NVIDIA H200"; }
  bool borrowed() const override { return false; }
  double gemm(const GemmShape& shape, GemmFormat format, bool) const override {
    const double rate = format == GemmFormat::fp8                                  ? 1.1e6
                        : format == GemmFormat::bf16 || format == GemmFormat::fp16 ? 0.65e6
                                                                                   : 0;
    return shape.m > 0 && rate > 0 ? 2000 + shape.flops() / rate : 0;  // FLOPs per ns
  }
  double attention(std::int64_t heads, std::int64_t T, std::int64_t head_dim) const override {
    return 5000 + 7.0 * static_cast<double>(heads * T) * static_cast<double>(T * head_dim) / 0.4e6;
  }
  double stream(double bytes) const override { return bytes / 3600; }
  double update(double bytes) const override { return bytes / 3800; }
};

/// A fault of a step.
enum class Planted : std::uint8_t {
  nothing,
  synchronize,
  sleep,
  eager,
  casts,
  unconverted,
  math_attention,
  optimizer,
  foreach,
  clipping,  ///< of gradients: no fault
  fp32_head,
  alignment,
  small_batch,
  small_gemms,
  recompilation,
  collectives,
  copy,
  launch_bound,
  graph_breaks,
  unknown_kernels
};

/// Writes steps of a Llama-like model whose kernels take what PlainRates says, with a planted fault.
class StepWriter {
 public:
  explicit StepWriter(bool fp8, Planted planted) : fp8_(fp8), planted_(planted) {
    if (planted == Planted::small_batch) tokens_ = 512;
    if (planted == Planted::small_gemms) tokens_ = 2048, width_ = 512, ffn_ = 1024;
    if (planted == Planted::alignment) vocabulary_ = 50257;
    if (planted == Planted::launch_bound || planted == Planted::graph_breaks) writer.launch_us = 400;
  }

  KinetoWriter writer;

  std::string steps(int count = 2) {
    for (int i = 1; i <= count; ++i) {
      writer.begin_step(i);
      step();
      writer.end_step();
    }
    return writer.json();
  }

 private:
  static constexpr int kLayers = 3;
  static constexpr const char* kBf16 = "c10::BFloat16";

  bool is(Planted planted) const { return planted_ == planted; }

  /// A GEMM of m x n x k as aten::mm or aten::_scaled_mm.
  void gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool wgrad, bool converted, double slower = 1,
            bool fp32 = false) {
    GemmShape shape{1, m, n, k, converted ? GemmFormat::fp8 : GemmFormat::bf16};
    const double us = slower * expected_.gemm(shape, shape.format, wgrad) / 1e3;
    if (converted)
      writer.kernel("aten::_scaled_mm", "nvjet_qqtst_128x256_64x4", us, {{m, k}, {k, n}, {}, {}},
                    {"c10::Float8_e4m3fn", "c10::Float8_e4m3fn"});
    else
      writer.kernel(
          "aten::mm", fp32 ? "sm80_xmma_gemm_f32f32" : "nvjet_tst_128x256_64x4", us, {{m, k}, {k, n}},
          fp32 ? std::vector<std::string>{"float", "float"} : std::vector<std::string>{kBf16, kBf16});
  }
  /// Forward GEMM and both of the backward pass.
  void linear(std::int64_t out, std::int64_t in, bool converted, bool backward, double slower = 1,
              bool fp32 = false) {
    if (converted) cast(backward ? out : in);
    if (!backward) return gemm(tokens_, out, in, false, converted, slower, fp32);
    gemm(tokens_, in, out, false, converted, slower, fp32);
    gemm(out, in, tokens_, true, converted, slower, fp32);
  }
  void cast(std::int64_t columns) {
    const TraceDims dims = {{tokens_, columns}};
    const double bytes = static_cast<double>(tokens_ * columns);
    if (!is(Planted::casts) && !is(Planted::eager)) {
      const double slow = is(Planted::small_gemms) ? 30 : 0;
      writer.kernel("triton_red_fused_abs_amax_0", "triton_red_fused_abs_amax_0",
                    slow + expected_.stream(2 * bytes) / 1e3, dims, {kBf16});
      writer.kernel("triton_poi_fused_clamp_mul_1", "triton_poi_fused_clamp_mul_1",
                    slow + expected_.stream(3 * bytes) / 1e3, dims, {kBf16});
      return;
    }
    writer.begin("matmul_with_hp_or_float8_args");
    elementwise("aten::abs", dims, 4 * bytes);
    writer.kernel("aten::max", "void at::native::reduce_kernel<512, 1>", expected_.stream(2 * bytes) / 1e3,
                  dims, {kBf16});
    for (int i = 0; i < 3; ++i) elementwise("aten::mul", dims, 8 * bytes);
    elementwise("aten::clamp", dims, 8 * bytes);
    elementwise("aten::copy_", dims, 5 * bytes);
    writer.end();
  }
  void elementwise(const char* op, const TraceDims& dims, double bytes) {
    writer.kernel(op, "void at::native::vectorized_elementwise_kernel<4>", 1 + expected_.stream(bytes) / 1e3,
                  dims, {kBf16});
  }
  /// Elementwise operations between two GEMMs, fused or each by itself.
  void pointwise(std::int64_t columns) {
    const TraceDims dims = {{tokens_, columns}};
    const double bytes = 6 * static_cast<double>(tokens_ * columns);
    if (is(Planted::eager)) {
      for (int i = 0; i < 6; ++i) elementwise("aten::mul", dims, bytes);
    } else {
      writer.kernel("triton_poi_fused_mul_silu_2",
                    is(Planted::unknown_kernels) ? "my_own_kernel\\u001b[31m" : "triton_poi_fused_mul_silu_2",
                    1 + expected_.stream(bytes) / 1e3, dims, {kBf16});
    }
  }
  void attention(bool backward) {
    constexpr std::int64_t heads = 32, head = 64;
    const std::int64_t T = tokens_ / 2;
    const double us = expected_.attention(2 * heads, T, head) / 1e3;
    if (!is(Planted::math_attention)) {
      writer.kernel("aten::_scaled_dot_product_cudnn_attention",
                    backward ? "cudnn_generated_fort_native_sdpa_sm90_flash_bprop"
                             : "cudnn_generated_fort_native_sdpa_sm90_flash_fprop",
                    us * (backward ? 0.7 : 0.3));
      return;
    }
    for (int i = 0; i < (backward ? 4 : 2); ++i)
      writer.kernel("aten::bmm", "nvjet_tst_64x64", us,
                    i % 2 ? TraceDims{{2 * heads, T, T}, {2 * heads, T, head}}
                          : TraceDims{{2 * heads, T, head}, {2 * heads, head, T}},
                    {kBf16, kBf16});
    writer.kernel("aten::_softmax", "softmax_warp_forward", us, {{2 * heads, T, T}}, {kBf16});
  }
  void block(bool backward) {
    const bool rest = fp8_, down = fp8_ && !is(Planted::unconverted);
    if (is(Planted::collectives)) {
      writer.fork_streams();
      writer.kernel("nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL", 300, {}, {}, 20);
      writer.join_streams();
    }
    if (is(Planted::graph_breaks))
      writer.begin("Torch-Compiled Region: 1/0"), writer.begin("Torch-Compiled Region: 2/0");
    pointwise(width_);
    linear(width_ + width_ / 2, width_, rest, backward);
    attention(backward);
    if (is(Planted::graph_breaks)) writer.end(), writer.end();
    linear(width_, width_, rest, backward);
    pointwise(width_);
    linear(2 * ffn_, width_, rest, backward);
    pointwise(2 * ffn_);
    linear(width_, ffn_, down, backward);
    if (is(Planted::synchronize) && !backward) writer.wait("cudaStreamSynchronize"), writer.sleep(150);
    if (is(Planted::sleep) && !backward) writer.wait("cudaStreamSynchronize"), writer.sleep(2000);
  }
  void step() {
    if (is(Planted::copy))
      writer.kernel("aten::copy_", "Memcpy HtoD (Pageable -> Device)", 4000, {}, {}, 7, "gpu_memcpy");
    if (is(Planted::recompilation)) writer.compile(300'000);
    writer.kernel("aten::embedding", "vectorized_gather_kernel", 5, {{vocabulary_, width_}, {2, tokens_ / 2}},
                  {kBf16, "long int"});
    for (int i = 0; i < kLayers; ++i) block(false);
    const double slower = is(Planted::fp32_head) ? 8 : is(Planted::alignment) ? 2 : 1;
    linear(vocabulary_, width_, false, false, slower, is(Planted::fp32_head));
    writer.kernel("triton_red_fused__log_softmax_3", "triton_red_fused__log_softmax_3",
                  expected_.stream(6 * static_cast<double>(tokens_ * vocabulary_)) / 1e3);
    linear(vocabulary_, width_, false, true, slower, is(Planted::fp32_head));
    for (int i = 0; i < kLayers; ++i) block(true);
    const std::int64_t parameters =
        kLayers * (width_ * width_ * 5 / 2 + 3 * width_ * ffn_) + 2 * vocabulary_ * width_;
    const double update = expected_.update(14.0 * static_cast<double>(parameters)) / 1e3;
    if (is(Planted::clipping))
      for (const char* op : {"aten::_foreach_norm", "aten::_foreach_mul_"})
        for (int i = 0; i < 10; ++i)
          writer.kernel(op, "multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<c10::BFloat16> >",
                        update / 25, {{parameters / 10}}, {"TensorList"});
    writer.begin("Optimizer.step#AdamW.step");
    if (is(Planted::optimizer)) {
      constexpr int tensors = 30;
      for (int i = 0; i < tensors; ++i)
        for (const char* op : {"aten::mul_", "aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"})
          writer.kernel(op, "void at::native::vectorized_elementwise_kernel<4>", update / tensors * 0.6,
                        {{parameters / tensors}}, {kBf16});
    } else if (is(Planted::foreach)) {
      constexpr int chunks = 10;
      for (const char* op : {"aten::_foreach_mul_", "aten::_foreach_lerp_", "aten::_foreach_addcmul_",
                             "aten::_foreach_sqrt", "aten::_foreach_addcdiv_"})
        for (int i = 0; i < chunks; ++i)
          writer.kernel(
              op,
              "multi_tensor_apply_kernel<TensorListMetadata<3>, PointwiseOpListFunctor<c10::BFloat16, 3> >",
              update / chunks * 0.5, {{parameters / chunks}}, {"TensorList"});
    } else {
      writer.kernel("aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdam>", update);
    }
    writer.end();
  }

  bool fp8_;
  Planted planted_;
  PlainRates expected_;
  std::int64_t tokens_ = 4096, width_ = 2048, ffn_ = 8192, vocabulary_ = 32768;
};

/// Returns the trace that Kineto's JSON holds.
inline TrainingTrace parsed(const std::string& json) {
  std::size_t at = 0;
  return read_kineto("trace.json", [&](char* to, std::size_t most) {
    const std::size_t count = std::min(most, json.size() - at);
    json.copy(to, count, at);
    at += count;
    return count;
  });
}

}  // namespace precbench::testing
