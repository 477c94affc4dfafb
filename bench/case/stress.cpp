// Parses and formats --stress. See stress.h.
#include "bench/case/stress.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

constexpr const char* kFidelityFlag = "--fidelity-stress";

constexpr EnumNames<StressKind, 3> kKindNames{{"ffn", "norm", "vo"}};

}  // namespace

std::optional<Stress> parse_stress(const std::string& text, const char* flag) {
  if (text == "none") return std::nullopt;
  const std::size_t first = std::min(text.find(':'), text.size());
  const std::size_t second = std::min(text.find(':', first + 1), text.size());
  const std::string_view all = text;
  std::optional<std::int64_t> exponent, channels = Stress{}.channels;
  if (first < text.size()) exponent = parse_number<std::int64_t>(all.substr(first + 1, second - first - 1));
  if (second < text.size()) channels = parse_number<std::int64_t>(all.substr(second + 1));
  const auto kind = kKindNames.find(all.substr(0, first));
  if (!kind || !exponent || !channels || *channels < 1)
    throw InvalidInput(fmt::format(
        "{}: \"{}\" is not none, ffn:S, norm:S or vo:S, perhaps with :CHANNELS behind", flag, text));
  if (*exponent < -kMaxStress || *exponent > kMaxStress)
    throw InvalidInput(fmt::format("{}: {}: S is from -{} to {}", flag, text, kMaxStress, kMaxStress));
  return Stress{*kind, static_cast<int>(*exponent), *channels};
}

std::vector<Stress> parse_fidelity_stress(const std::string& text) {
  std::vector<Stress> all;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::optional<Stress> stress = parse_stress(word, kFidelityFlag);
    if (!stress)
      throw InvalidInput(fmt::format("{}: none: leave it out, it is measured first", kFidelityFlag));
    all.push_back(*stress);
  }
  return all;
}

std::string to_text(const Stress& stress) {
  return fmt::format("{}:{}:{}", kKindNames.of(stress.kind), stress.exponent, stress.channels);
}

std::int64_t channels_of(StressKind kind, const ModelConfig& model) {
  if (kind == StressKind::norm) return model.width;
  if (kind == StressKind::vo) return model.kv_width();
  std::int64_t narrowest = model.ffn;
  for (const std::int64_t ffn : {model.moe.expert_ffn, model.moe.shared_ffn})
    if (ffn > 0) narrowest = std::min(narrowest, ffn);
  return narrowest;
}

std::optional<std::string> stress_unsupported_reason(StressKind kind, const ModelConfig& model) {
  if (kind == StressKind::ffn && !model.block.gated)
    return "the model's networks have no gate, so their outputs are not proportional to the channels of up";
  if (kind == StressKind::vo && model.latent)
    return "the model has latent attention, whose values share a matrix with keys";
  if (kind == StressKind::ffn && (model.moe.expert_bias || model.moe.swiglu_limit > 0))
    return "the model's experts have biases or a clamped SwiGLU, whose outputs are not proportional to the channels of up";
  if (kind != StressKind::norm) return std::nullopt;
  if (model.block.norms != NormPlace::before)
    return "the model has norms on the outputs of a block's halves, whose channels no layer reads";
  if (model.block.gains_minus_one)
    return "the model stores the gains of its norms minus 1, which no power of two multiplies exactly";
  return std::nullopt;
}

std::optional<std::string> stress_unsupported_reason(const Stress& stress, const ModelConfig& model) {
  const char* kind = kKindNames.of(stress.kind);
  if (const auto why = stress_unsupported_reason(stress.kind, model))
    return fmt::format("{}: {}", kind, *why);
  const std::int64_t most = channels_of(stress.kind, model);
  if (stress.channels <= most) return std::nullopt;
  return fmt::format("{} channels requested, {} of a block has {}", stress.channels, kind, most);
}

}  // namespace precbench
