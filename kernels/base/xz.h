// Unpacks xz data as it is read, in bounded memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace precbench {

/// Number of bytes that tell xz data.
inline constexpr std::size_t kXzMagicBytes = 6;

/// Returns true if data that begin so are packed with xz.
bool is_xz(std::string_view begin);

/// Returns true if a file that begins with these few bytes could still turn out to be packed with xz.
bool may_be_xz(std::string_view begin);

/// Unpacks one input: the streams of an .xz file, one after the other. Integrity checks are verified.
class XzReader {
 public:
  /// Fills a buffer with packed bytes; returns their number, 0 at the end of the input.
  using Source = std::function<std::size_t(char* to, std::size_t most)>;

  /// `name`: of the input, for messages. `begin`: its first bytes, which `source` does not return again.
  XzReader(std::string name, std::string begin, Source source);
  ~XzReader();
  XzReader(const XzReader&) = delete;
  XzReader& operator=(const XzReader&) = delete;

  /// Unpacks up to `most` bytes; returns their number, 0 at the end. Throws InvalidInput with the input's name if the
  /// data are damaged or truncated, if unpacking takes more memory than xz -9 needs, or if they unpack to far more than
  /// records can.
  std::size_t read(char* to, std::size_t most);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace precbench
