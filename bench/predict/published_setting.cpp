// Translates published settings. See published_setting.h.
#include "bench/predict/published_setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

bool says(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

/// Builds a setting and notes what it assumes.
class Translator {
 public:
  explicit Translator(const PublishedPoint& point) : p_(point) {}

  PublishedSetting run() {
    if (!p_.gpus) throw InvalidInput("the number of GPUs is not stated");
    s_.machine = published_machine(p_);
    s_.model = published_model(p_.model);
    s_.c.device = "cuda";
    s_.c.recipe = recipe_of_precision(p_.precision);
    if (p_.precision == "nvfp4") assume("layers in BF16: none");
    if (s_.c.recipe.empty()) throw InvalidInput(fmt::format("no recipe like {}", p_.precision));
    translate_layout();
    translate_batch();
    translate_states();
    translate_recompute();
    return std::move(s_);
  }

 private:
  void assume(std::string what) { s_.assumed.push_back(std::move(what)); }
  std::int64_t stated(const std::optional<std::int64_t>& value, std::int64_t otherwise, const char* what) {
    if (!value) assume(fmt::format("{}: {}", what, otherwise));
    return value.value_or(otherwise);
  }
  bool is_megatron() const { return p_.framework.starts_with("megatron"); }

  void translate_layout() {
    ParallelLayout& layout = s_.layout;
    layout.tensor = static_cast<int>(p_.tp.value_or(1));
    layout.context = static_cast<int>(p_.cp.value_or(1));
    layout.pipeline = static_cast<int>(p_.pp.value_or(1));
    layout.interleave = static_cast<int>(p_.vp ? *p_.vp : unsaid_interleave());
    const std::int64_t model_ranks = std::int64_t{layout.tensor} * layout.context * layout.pipeline;
    if (*p_.gpus % model_ranks != 0)
      throw InvalidInput(fmt::format("{} ranks of a replica do not divide {} GPUs", model_ranks, *p_.gpus));
    layout.data = static_cast<int>(stated(p_.dp, *p_.gpus / model_ranks, "data ranks"));
    // Megatron's recipes overlap tensor and context traffic with GEMMs and attention, but tensor traffic not in NVFP4;
    // torchtitan does with async TP.
    layout.tensor_overlap = (is_megatron() && p_.precision != "nvfp4") || says(p_.caveat, "async TP");
    layout.context_overlap = is_megatron();
    const std::int64_t shards = p_.fsdp.value_or(1) * layout.context;
    if (p_.hsdp) {
      const std::int64_t group = likely_shard_group();
      assume(fmt::format("shard group: {}", group));
      s_.c.parallel = "hsdp";
      s_.c.shard_group = group;
    } else if (p_.fsdp && *p_.fsdp < layout.data) {
      s_.c.parallel = "hsdp";
      s_.c.shard_group = shards;
    } else if (p_.fsdp) {
      s_.c.parallel = "fsdp";
    } else {
      s_.c.parallel = "ddp";
      layout.sharded_optimizer = layout.traced_ranks() > 1;
    }
    if (const std::int64_t ranks = layout.traced_ranks();
        s_.c.parallel == "hsdp" && ranks % s_.c.shard_group != 0)
      throw InvalidInput(
          fmt::format("groups of {} ranks that share states do not divide {} data and context ranks",
                      s_.c.shard_group, ranks));
    if (layout.pipeline > 1 && s_.c.parallel != "ddp") keep_stage_weights();
    translate_experts();
  }

  /// A stage gathers its weights in its first micro-batch, keeps them, and reduces gradients in its last one.
  void keep_stage_weights() {
    s_.c.reshard = "off";
    s_.c.grad_sync = "last";
    assume("weights of a stage: gathered once a step");
  }

  /// Rows travel to experts by all-to-all. Layouts of data ranks alone keep the exchange that they were first predicted
  /// with, this program's default; none of TorchTitan's was.
  void translate_experts() {
    const std::int64_t ranks = p_.ep.value_or(1);
    const bool data_alone = s_.layout.tensor == 1 && s_.layout.pipeline == 1;
    if (!s_.model.moe || (data_alone && p_.framework != "torchtitan")) {
      s_.c.ep = ranks;
      return;
    }
    if (ranks == 1 && s_.layout.tensor > 1)
      throw InvalidInput("experts with tensor ranks but without expert ranks are not predicted");
    s_.layout.experts = static_cast<int>(ranks);
  }

  /// TorchTitan's default depth of a schedule with several groups of layers a stage.
  std::int64_t unsaid_interleave() {
    constexpr std::int64_t kDefault = 2;
    if (!says(p_.caveat, "interleaved")) return 1;
    assume(fmt::format("groups of layers a stage: {}", kDefault));
    return kDefault;
  }

  /// Returns the smallest number of domains' GPUs, doubled, among which FP32 states take at most half of the memory.
  std::int64_t likely_shard_group() const {
    constexpr double kStateBytes = 16, kShare = 0.5;  // weights, gradients, two moments
    std::int64_t group = s_.machine.levels.empty() ? 1 : s_.machine.levels.front().gpus;
    const double bytes = kStateBytes * static_cast<double>(parameter_count(s_.model)) / s_.layout.pipeline;
    while (2 * group <= s_.layout.traced_ranks() &&
           bytes / static_cast<double>(group) > kShare * 1e9 * s_.machine.memory_gb)
      group *= 2;
    return std::min<std::int64_t>(group, s_.layout.traced_ranks());
  }

  // Settings that a source with TorchTitan leaves unsaid are as in TorchTitan's presets: 8B with one sequence and
  // recomputation per op, 70B with eight and 405B with two, both with recomputation of blocks.
  bool is_large() const { return parameter_count(s_.model) > 30e9; }
  std::int64_t preset_batch() const {
    const bool titan = p_.framework == "torchtitan";
    return titan && is_large() ? (parameter_count(s_.model) > 200e9 ? 2 : 8) : 1;
  }
  /// TorchTitan divides the sequences of a data rank into as many micro-batches as there are stages.
  std::int64_t unsaid_batch() const {
    const std::int64_t micro_batches = std::int64_t{s_.layout.data} * s_.layout.pipeline;
    const bool divides = p_.framework == "torchtitan" && s_.layout.pipeline > 1 && p_.global_batch &&
                         *p_.global_batch % micro_batches == 0;
    return divides ? *p_.global_batch / micro_batches : preset_batch();
  }

  void translate_batch() {
    s_.c.seq = stated(p_.seq, 8192, "sequence length");
    s_.c.batch = stated(p_.micro_batch, unsaid_batch(), "micro-batch");
    const std::int64_t per_micro_step = s_.c.batch * s_.layout.data;
    const std::int64_t global = stated(p_.global_batch, per_micro_step, "global batch");
    if (global % per_micro_step != 0)
      throw InvalidInput(
          fmt::format("{} sequences a step are no multiple of {} a micro-step", global, per_micro_step));
    s_.c.accumulation = global / per_micro_step;
  }

  void translate_states() {
    if (p_.framework == "llm.q") {
      s_.c.master = s_.c.moments = s_.c.grads = "bf16";
    } else if (is_megatron()) {
      s_.c.grads = "bf16";  // its performance recipes reduce gradients in BF16
    }
    const bool tensorwise = s_.c.recipe == "tensorwise" && !s_.model.moe;  // experts are gathered in BF16
    if (s_.c.parallel != "ddp" && tensorwise && !says(p_.caveat, "BF16 all-gather")) s_.c.gather = "fp8";
  }

  void translate_recompute() {
    const std::string& text = p_.recompute;
    RecomputeShare& share = s_.recompute;
    if (text.empty() || says(text, "not said")) {
      const bool titan = p_.framework == "torchtitan";
      assume(!titan ? "recompute: none" : is_large() ? "recompute: block" : "recompute: selective (per op)");
      if (titan) share = is_large() ? RecomputeShare{.blocks = 1} : partial_share("selective (per op)");
    } else if (text.starts_with("block, 5 of 32")) {
      share.blocks = 5.0 / 32;
    } else if (text.starts_with("block") || text == "recompute-block") {
      share.blocks = 1;
    } else if (says(text, "second layer") || says(text, "n-th block")) {
      share.blocks = 0.5;
    } else if (text.starts_with("selective") || text.starts_with("recompute-")) {
      share = partial_share(text);
    } else if (!text.starts_with("none")) {
      throw InvalidInput(fmt::format("recompute \"{}\" is not predicted", text));
    }
    if (share.blocks > 0) s_.c.recompute = "block";
  }

  /// Returns the share of a block's GEMMs that parts of it need.
  RecomputeShare partial_share(const std::string& text) const {
    const ModelConfig& m = s_.model;
    const auto width = static_cast<double>(m.width);
    const double q = width * static_cast<double>(m.q_width()), kv = width * static_cast<double>(m.kv_width()),
                 ffn = width * static_cast<double>(m.ffn);
    // The forward pass that runs again never includes the down layer.
    const double all = 2 * q + 2 * kv + 2 * ffn;
    double again = 0;
    if (text.starts_with("selective")) {
      again =
          kv + q + ffn;  // torchtitan keeps every second of q, k, v, o, gate, up, down: k, o and up run again
    } else {
      if (says(text, "ffn")) again += 2 * ffn;
      if (says(text, "att") || says(text, "qkv")) again += q + 2 * kv;
    }
    return {1, again / all, 0};
  }

  const PublishedPoint& p_;
  PublishedSetting s_;
};

}  // namespace

std::string recipe_of_precision(const std::string& precision) {
  // Megatron-Bridge's configurations for NVFP4 leave no block in BF16.
  static const std::map<std::string, std::string> known = {{"bf16", "bf16"},
                                                           {"fp8_tensorwise", "tensorwise"},
                                                           {"tensorwise", "tensorwise"},
                                                           {"fp8_current_tensorwise", "tensorwise"},
                                                           {"fp8_delayed_tensorwise", "tensorwise_delayed"},
                                                           {"fp8_rowwise", "rowwise"},
                                                           {"fp8_rowwise_gw_hp", "rowwise_gw_hp"},
                                                           {"fp8_blockwise", "blockwise"},
                                                           {"blockwise", "blockwise"},
                                                           {"blockwise_pow2_flow", "blockwise_pow2"},
                                                           {"mxfp8", "mxfp8"},
                                                           {"mxfp8_rceil", "mxfp8"},
                                                           {"nvfp4", "nvfp4_all"}};
  const auto found = known.find(precision);
  return found == known.end() ? "" : found->second;
}

PublishedSetting published_setting(const PublishedPoint& point) { return Translator(point).run(); }

}  // namespace precbench
