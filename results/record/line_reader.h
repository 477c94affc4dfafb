// Reads the lines of a file of any size while holding at most one bounded line in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// Returns the descriptor that a path names instead of a file: 0 for "-" and /dev/stdin, N for /dev/fd/N and
/// /proc/self/fd/N (which a shell passes for <(command)); else nullopt.
std::optional<int> named_descriptor(const std::string& path);

/// Returns the name of the input for messages: "standard input", or the path.
std::string input_name(const std::string& path);

class XzReader;

/// Data packed with xz (kernels/base/xz.h) are unpacked as they are read, from files and descriptors alike.
class LineReader {
 public:
  /// `most`: maximum bytes of a line that are stored. `path`: a regular file, or a descriptor
  /// (named_descriptor) of a file, pipe, socket or terminal. Throws InvalidInput for anything else or if it
  /// cannot be read. Named pipes are refused because opening one would wait for a writer.
  LineReader(const std::string& path, std::size_t most);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// Advances to the next line; returns false at the end. Throws InvalidInput if reading fails or packed data are damaged.
  bool next();

  const std::string& line() const {
    return line_;
  }  ///< without its newline; the first `most` bytes of a longer one
  std::size_t bytes() const { return bytes_; }    ///< length of the whole line
  std::size_t number() const { return number_; }  ///< from 1
  bool ended() const { return ended_; }           ///< a newline followed it

 private:
  bool fill();
  std::size_t read_input(char* to, std::size_t most);
  void find_packing();

  std::string path_;
  std::size_t most_;
  int descriptor_;
  std::vector<char> buffer_;
  bool packing_known_ = false;
  std::unique_ptr<XzReader> unpacked_;  ///< null for plain input
  std::size_t begin_ = 0, end_ = 0;  ///< unread part of the buffer
  std::string line_;
  std::size_t bytes_ = 0, number_ = 0;
  bool ended_ = false;
};

}  // namespace precbench
