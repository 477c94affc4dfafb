// Recognizes integers that are wider than a raw token file's name says: int32 in a .u16, int64 in a .u16 or .u32. Their
// upper halves would be read as tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "models/data/corpus.h"

namespace precbench {

/// Layout of integers in a file.
struct IntegerLayout {
  int bytes = 0;
  bool big_endian = false;
  bool operator==(const IntegerLayout&) const = default;
};

/// Returns the layout of the integers in `count` values of `width` (u16 or u32) if they are wider than that. They are
/// if every second value, or three of every four, could be the upper part of a token id below `vocab`, which is 0 as a
/// rule, and the other values could not. Examines at most 65,536 values, evenly spread. Null for tokens of this width,
/// for fewer than 64 values, and for values that repeat so few tokens that they may alternate with a token 0.
std::optional<IntegerLayout> wider_layout(const std::byte* data, std::int64_t count, TokenWidth width,
                                          std::int64_t vocab);

/// Returns a name and the way to a file that can be read: "4-byte integers (int32): name the file .u32".
std::string describe_remedy(const IntegerLayout& layout);

}  // namespace precbench
