// Parsing and printing of --recompute. See recompute.h.
#include "bench/case/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

constexpr std::string_view kFirstBlocks = "block:";

struct Part {
  std::string_view name;
  bool Recompute::*member;
};
constexpr Part kParts[] = {  // in alphabetical order
    {"attention", &Recompute::attention},
    {"ffn", &Recompute::ffn},
    {"norm", &Recompute::norm}};

bool Recompute::*part_named(std::string_view name) {
  for (const Part& part : kParts)
    if (part.name == name) return part.member;
  return nullptr;
}

}  // namespace

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return {};
  if (text == "block") return kRecomputeBlocks;
  if (text == "selective") return kRecomputeSelective;
  if (text.starts_with(kFirstBlocks)) {
    const auto blocks = parse_number<std::int64_t>(text.substr(kFirstBlocks.size()));
    if (!blocks || *blocks < 1)
      throw InvalidInput(
          fmt::format("--recompute: \"{}\": K in block:K is a number of blocks, at least 1", text));
    return {.blocks = *blocks};
  }
  Recompute recompute;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto member = part_named(word);
    if (!member)
      throw InvalidInput(fmt::format(
          "--recompute: \"{}\" is not none, selective, block, block:K, or norm, ffn and attention joined by +",
          text));
    if (recompute.*member) throw InvalidInput(fmt::format("--recompute: {} twice in {}", word, text));
    recompute.*member = true;
    begin = end + 1;
  }
  return recompute;
}

std::string recompute_text(const Recompute& recompute) {
  if (recompute == kRecomputeBlocks) return "block";
  if (recompute.selective) return "selective";
  if (recompute.blocks > 0) return fmt::format("{}{}", kFirstBlocks, recompute.blocks);
  std::string text;
  for (const Part& part : kParts)
    if (recompute.*part.member) text += fmt::format("{}{}", text.empty() ? "" : "+", part.name);
  return text.empty() ? "none" : text;
}

}  // namespace precbench
