// Syntax of layer and step selections, and torchao's rule. See selection.h.
#include "kernels/numerics/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/numerics/recipe.h"

namespace precbench {
namespace {

constexpr const char* kNothing = "none";
constexpr const char* kKeepWords =
    "first:N, last:N, qkv, o, gate_up, down, head, q, k, v, block:N, block:N.ROLE, first_linear, last_linear, min_in:N, min_out:N, "
    "torchao_auto, split_qkv";

/// Returns a role's name in a selection, where lm_head is "head".
const char* word_of(LinearRole role) { return role == LinearRole::head ? "head" : name_of(role); }

/// Parses "3", or a number between 0 and 1 with a decimal point.
std::optional<Share> share_in(std::string_view text) {
  if (text.find('.') == std::string_view::npos) {
    const auto count = parse_number<std::int64_t>(text);
    return count && *count >= 0 ? std::optional(Share{*count, 0}) : std::nullopt;
  }
  const auto part = parse_number<double>(text);
  return part && *part > 0 && *part < 1 ? std::optional(Share{0, *part}) : std::nullopt;
}

std::string to_text(const Share& share) {
  return share.part > 0 ? fmt::format("{}", share.part) : fmt::format("{}", share.count);
}

/// Parses "7" or "7.down".
std::optional<KeptBlock> block_in(std::string_view text) {
  const std::size_t dot = std::min(text.find('.'), text.size());
  const auto block = parse_number<std::int64_t>(text.substr(0, dot));
  if (!block || *block < 0) return std::nullopt;
  if (dot == text.size()) return KeptBlock{*block};
  for (const LinearRole role : kLinearsOfBlock)
    if (text.substr(dot + 1) == name_of(role)) return KeptBlock{*block, role};
  return std::nullopt;
}

std::string to_text(const KeptBlock& kept) {
  return kept.role ? fmt::format("block:{}.{}", kept.block, name_of(*kept.role))
                   : fmt::format("block:{}", kept.block);
}

/// Splits at commas. Returns nothing for "" and "none"; an empty word between commas counts as a word.
std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> words;
  if (text.empty() || text == kNothing) return words;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(',', begin)) != std::string::npos; begin = end + 1)
    words.push_back(text.substr(begin, end - begin));
  words.push_back(text.substr(begin));
  return words;
}

/// Adds a word to `keep`. Returns false if it is unknown or repeated.
bool add_word(KeepBf16& keep, const std::string& word) {
  const auto once = [](bool& seen) { return !std::exchange(seen, true); };
  for (int role = 0; role < kRolesAndParts; ++role)
    if (word == word_of(static_cast<LinearRole>(role))) return once(keep.roles[role]);
  if (word == "last_linear") return once(keep.roles[static_cast<int>(LinearRole::head)]);
  if (word == "first_linear") return once(keep.first_linear);
  if (word == "torchao_auto") return once(keep.small);
  // Records and ids have the older name.
  if (word == "split_qkv" || word == "qkv_apart") return once(keep.apart);
  if (constexpr std::string_view kBlock = "block:"; word.starts_with(kBlock)) {
    const auto block = block_in(std::string_view(word).substr(kBlock.size()));
    if (!block || std::count(keep.blocks.begin(), keep.blocks.end(), *block) > 0) return false;
    keep.blocks.push_back(*block);
    return true;
  }
  for (const auto& [side, share] : {std::pair{"first:", &keep.first}, std::pair{"last:", &keep.last}}) {
    if (!word.starts_with(side)) continue;
    const auto read = share_in(std::string_view(word).substr(std::string_view(side).size()));
    if (!read || !(*share == Share{})) return false;
    *share = *read;
    return true;
  }
  for (const auto& [side, least] :
       {std::pair{"min_in:", &keep.min_in}, std::pair{"min_out:", &keep.min_out}}) {
    if (!word.starts_with(side)) continue;
    const auto read =
        parse_number<std::int64_t>(std::string_view(word).substr(std::string_view(side).size()));
    return read && *read > 0 && std::exchange(*least, *read) == 0;
  }
  return false;
}

}  // namespace

const char* name_of(LinearRole role) {
  static constexpr const char* kNames[kAllLinearRoles] = {
      "qkv",         "o",      "gate_up", "down", "lm_head", "q", "k", "v", "shared_gate_up",
      "shared_down", "router", "q_up",    "kv_up"};
  return kNames[static_cast<int>(role)];
}

std::int64_t Share::of(std::int64_t all) const {
  constexpr double kRounding = 1e-9;  // 0.07 of 100 is 7
  return part > 0 ? static_cast<std::int64_t>(std::ceil(part * static_cast<double>(all) - kRounding)) : count;
}

KeepBf16 parse_keep_bf16(const std::string& text) {
  KeepBf16 keep;
  for (const std::string& word : words_in(text))
    if (!add_word(keep, word))
      throw InvalidInput(
          fmt::format("\"{}\": \"{}\" is unknown or repeated; known: {}", text, word, kKeepWords));
  return keep;
}

std::vector<std::string> words_of(const KeepBf16& keep) {
  std::vector<std::string> words;
  if (!(keep.first == Share{})) words.push_back("first:" + to_text(keep.first));
  if (!(keep.last == Share{})) words.push_back("last:" + to_text(keep.last));
  for (const KeptBlock& block : keep.blocks) words.push_back(to_text(block));
  for (int role = 0; role < kRolesAndParts; ++role)
    if (keep.roles[role]) words.emplace_back(word_of(static_cast<LinearRole>(role)));
  if (keep.first_linear) words.emplace_back("first_linear");
  if (keep.min_in > 0) words.push_back(fmt::format("min_in:{}", keep.min_in));
  if (keep.min_out > 0) words.push_back(fmt::format("min_out:{}", keep.min_out));
  if (keep.small) words.emplace_back("torchao_auto");
  if (keep.apart) words.emplace_back("qkv_apart");
  return words;
}

bool is_too_small(const Recipe& recipe, std::int64_t out, std::int64_t in) {
  std::optional<Granularity> one;
  bool same = true;
  for (const GemmRole role : kGemmRoles)
    for (const QuantFormat& operand : {recipe.gemm(role).a, recipe.gemm(role).b}) {
      same = same && (!one || *one == operand.granularity);
      one = operand.granularity;
    }
  if (!same || (one != Granularity::tensor && one != Granularity::row))
    throw InvalidInput(fmt::format(
        "torchao_auto: needs tensor scales or row scales throughout, which {} does not have", recipe.name));
  if (out % 16 != 0 || in % 16 != 0) return true;
  if (one == Granularity::tensor) return in <= 4096 && out <= 1024;
  return out <= 2048 || in <= 1024 || (out <= 4096 && in <= 2048);
}

bool KeepBf16::qkv_apart() const {
  return apart || std::any_of(roles.begin() + kLinearRoles, roles.end(), [](bool kept) { return kept; });
}

bool KeepBf16::keeps_size(const Recipe& recipe, std::int64_t out, std::int64_t in) const {
  return in < min_in || out < min_out || (small && is_too_small(recipe, out, in));
}

bool KeepBf16::keeps(const Recipe& recipe, LinearRole role, std::int64_t layer, std::int64_t layers,
                     std::int64_t out, std::int64_t in) const {
  if (roles[static_cast<int>(is_qkv_part(role) ? LinearRole::qkv : role)]) return true;
  if (roles[static_cast<int>(role)]) return true;
  if (keeps_size(recipe, out, in)) return true;
  if (role == LinearRole::head) return false;
  const LinearRole whole = is_qkv_part(role) ? LinearRole::qkv : role;
  if (std::any_of(blocks.begin(), blocks.end(), [&](const KeptBlock& kept) {
        return kept.block == layer && (!kept.role || *kept.role == whole);
      }))
    return true;
  // Counted from either end, so that a count beyond all blocks does not overflow.
  return layer < first.of(layers) || layers - 1 - layer < last.of(layers) ||
         (first_linear && layer == 0 && (role == LinearRole::qkv || role == LinearRole::q));
}

std::vector<RecipeSwitch> parse_switches(const std::string& text) {
  std::vector<RecipeSwitch> switches;
  for (const std::string& word : words_in(text)) {
    const std::size_t at = std::min(word.rfind('@'), word.size());
    const auto from = at < word.size() ? share_in(std::string_view(word).substr(at + 1)) : std::nullopt;
    if (at == 0 || !from || *from == Share{})
      throw InvalidInput(
          fmt::format("\"{}\" is not RECIPE@STEP, nor RECIPE@0.8 for a fraction of --steps", word));
    const auto is_later = [](const Share& before, const Share& after) {
      return (before.part > 0) != (after.part > 0) || before.part < after.part || before.count < after.count;
    };
    if (!switches.empty() && !is_later(switches.back().from, *from))
      throw InvalidInput(fmt::format("{} does not come after {}", word, to_text(switches.back())));
    switches.push_back({word.substr(0, at), *from});
  }
  return switches;
}

std::string to_text(const RecipeSwitch& change) { return change.recipe + "@" + to_text(change.from); }

}  // namespace precbench
