// The order of a head's elements in checkpoints. See stored_order.h.
#include "models/config/stored_order.h"

#include <array>

namespace precbench {

std::int64_t StoredOrder::stored(std::int64_t element) const {
  if (plain()) return element;
  const std::int64_t i = element % head_dim, half = head_dim / 2, rotated_pairs = rotary_dim / 2;
  const bool second = i >= half;
  const std::int64_t pair = second ? i - half : i;
  const auto in_head = [&] {
    if (pair >= rotated_pairs) return rotary_dim + pair - rotated_pairs + (second ? half - rotated_pairs : 0);
    return pairs == RopePairs::halves ? pair + (second ? rotated_pairs : 0) : 2 * pair + (second ? 1 : 0);
  };
  return element - i + in_head();
}

StoredOrder stored_order(const ModelConfig& config, std::string_view parameter) {
  if (config.latent) return {};  // its RoPE takes pairs as they are stored (LatentHeads)
  constexpr std::array kOfQueriesAndKeys = {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.q_norm.",
                                            "self_attn.k_norm."};
  for (const std::string_view known : kOfQueriesAndKeys)
    // The rows of an adapter's A are not those of the layer.
    if (parameter.find(known) != parameter.npos && parameter.find(".lora_A.") == parameter.npos)
      return {config.head_dim, config.rotary_dim(), config.block.rope_pairs};
  return {};
}

}  // namespace precbench
