// Text helpers. See text.h.
#include "tools/text/text.h"

#include <fmt/format.h>

#include <cstdint>

#include "kernels/base/fnv1a.h"

namespace precbench {
namespace {

/// Most file systems limit names to 255 bytes, including the extension.
constexpr std::size_t kMostLetters = 120;

}  // namespace

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

std::string file_name(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.';
    if (kept || (!result.empty() && result.back() != '-')) result += kept ? c : '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  if (result.size() <= kMostLetters) return result;
  std::uint64_t hash = kFingerprintStart;
  add_to_fingerprint(hash, text);
  const std::string end = fmt::format("-{:016x}", hash);
  return result.substr(0, kMostLetters - end.size()) + end;
}

}  // namespace precbench
