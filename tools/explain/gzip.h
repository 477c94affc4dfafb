// Unpacks gzip data as it is read, in bounded memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace precbench {

/// Returns true if data that begin so are packed with gzip.
bool is_gzip(std::string_view begin);

/// Unpacks one input: the members of a .gz file, one after the other. Check sums are verified.
class GzipReader {
 public:
  /// Fills a buffer with packed bytes; returns their number, 0 at the end of the input.
  using Source = std::function<std::size_t(char* to, std::size_t most)>;

  /// `name`: of the input, for messages.
  GzipReader(std::string name, Source source);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Unpacks up to `most` bytes; returns their number, 0 at the end. Throws InvalidInput with the input's name if the
  /// data are damaged or truncated, or if they unpack to far more than a trace can.
  std::size_t read(char* to, std::size_t most);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace precbench
