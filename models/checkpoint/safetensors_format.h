// Constants and checks shared by the reader and writer of safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// The reference implementation's limit on the JSON header. Rejects corrupt lengths.
constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;

constexpr const char* kSafetensorsMetadata = "__metadata__";

struct SafetensorsDtype {
  const char* name;
  int bits;
};

/// In the order in which a writer stores tensors, so that each is aligned for its type.
constexpr SafetensorsDtype kSafetensorsDtypes[] = {
    {"U64", 64},        {"I64", 64},    {"F64", 64},    {"C64", 64},    {"F32", 32}, {"U32", 32},
    {"I32", 32},        {"BF16", 16},   {"F16", 16},    {"U16", 16},    {"I16", 16}, {"F8_E5M2FNUZ", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I8", 8},   {"U8", 8},
    {"F6_E3M2", 6},     {"F6_E2M3", 6}, {"F4", 4},      {"BOOL", 8},
};

/// Returns the row of kSafetensorsDtypes, or null.
const SafetensorsDtype* find_safetensors_dtype(const std::string& name);

/// Returns `word` and, if there is one, the nearest dtype as a hint: "'f32' (did you mean F32?)".
std::string describe_unknown_dtype(const std::string& word);

/// Returns the bytes of a tensor; nullopt if a dimension is negative, the product overflows, or packed
/// elements do not fill whole bytes.
std::optional<std::int64_t> safetensors_bytes(const std::vector<std::int64_t>& shape, int bits);

/// Returns `text` with control characters replaced and cut to 200 bytes. Names come from files, and an error
/// message is one line.
std::string visible(std::string text);

}  // namespace precbench
