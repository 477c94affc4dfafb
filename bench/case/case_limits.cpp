// Refusals of cases. See case_limits.h.
#include "bench/case/case_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "bench/case/stress.h"
#include "kernels/base/errors.h"

namespace precbench {

void check_word(const Field& field, const std::string& text) {
  Case scratch;
  set_text(scratch, field, text);
  const std::string_view name = field.name;
  if (name == "keep_bf16") parse_keep_bf16(text);
  if (name == "stress") parse_stress(text);
  if (name == "fidelity_stress") parse_fidelity_stress(text);
}

// Above these a number is a slip, and counts of bytes and FLOPs could overflow.
void check_size(const Case& c) {
  if (c.accumulation > kMaxAccumulation)
    throw InvalidInput(
        fmt::format("--accumulation: must be at most {}, not {}", kMaxAccumulation, c.accumulation));
  if (c.shard_group > kMaxTokensPerStep)
    throw InvalidInput(
        fmt::format("--shard-group: must be at most {}, not {}", kMaxTokensPerStep, c.shard_group));
  double tokens = 1;  // the product may overflow
  for (const std::int64_t factor : {c.batch, c.seq, c.accumulation, c.gpus})
    tokens *= static_cast<double>(factor);
  if (tokens > static_cast<double>(kMaxTokensPerStep))
    throw InvalidInput(
        fmt::format("--batch, --seq, --accumulation, --gpus: {:.3g} tokens per step; the most are {}", tokens,
                    kMaxTokensPerStep));
}

void check_combinations(const Case& c) {
  if (c.device == "cpu" && c.attention != "auto")
    throw InvalidInput(
        fmt::format("--attention {}: chooses among a GPU's kernels, and --device is cpu, which has its own",
                    c.attention));
  if ((c.parallel == "hsdp") != (c.shard_group > 1))
    throw InvalidInput("--shard-group: hsdp needs groups of 2 or more ranks, and only hsdp has groups");
  if (c.lr == 0) throw InvalidInput("--lr: must be above 0: nothing would be trained");
  if (c.schedule == "cosine" && c.steps == 0)
    throw InvalidInput("--schedule cosine needs a number of steps: add --steps N");
  if (c.schedule == "cosine" && c.warmup >= c.steps)
    throw InvalidInput(
        fmt::format("--warmup: {} steps leave none of the {} of --steps to the cosine", c.warmup, c.steps));
  if (!c.init_from.empty() && !c.fork_from.empty())
    throw InvalidInput("--fork-from and --init-from: the first weights come from one of them; choose one");
  if (c.checkpoint_every > 0 && c.steps == 0)
    throw InvalidInput("--checkpoint-every needs a number of steps: add --steps N");
  if (!c.fidelity_stress.empty() && c.fidelity_batches == 0)
    throw InvalidInput("--fidelity-stress needs batches to compare gradients of: add --fidelity-batches K");
}

KeepBf16 parse_keep_bf16(const std::string& text) {
  KeepBf16 keep;
  bool seen_first = false, seen_last = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t colon = std::min(part.find(':'), part.size());
    std::int64_t count = -1;
    const char *digits = part.data() + std::min(colon + 1, part.size()), *stop = part.data() + part.size();
    const bool whole = std::from_chars(digits, stop, count) == std::from_chars_result{stop, std::errc()};
    const std::string side = part.substr(0, colon);
    bool* seen = side == "first" ? &seen_first : side == "last" ? &seen_last : nullptr;
    if (!seen || *seen || !whole || count < 0 || end + 1 == text.size())
      throw InvalidInput(fmt::format("--keep-bf16: \"{}\" is not of the form first:N,last:N", text));
    *seen = true;
    (seen == &seen_first ? keep.first : keep.last) = count;
    begin = end + 1;
  }
  return keep;
}

}  // namespace precbench
