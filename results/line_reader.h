// The lines of a file that may be anybody's: however large the file or a line of it is, no more than one line is held.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// Returns the file descriptor that a path names, where it names one of this process instead of a file: 0 for "-" and
/// /dev/stdin, N for /dev/fd/N and /proc/self/fd/N, which is how a shell passes <(command).
std::optional<int> named_descriptor(const std::string& path);

/// Returns the name for messages about what is read from `path`: "standard input", or the path.
std::string input_name(const std::string& path);

class LineReader {
 public:
  /// `most`: bytes of the longest line that is held whole. `path`: a regular file, or a descriptor (named_descriptor) that
  /// is open on a file, a pipe, a socket or a terminal. Throws InvalidInput where it is neither, or cannot be read. A
  /// named pipe is refused, since opening it would wait for a writer.
  LineReader(const std::string& path, std::size_t most);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// Goes to the next line; false at the end. Throws InvalidInput where reading fails.
  bool next();

  const std::string& line() const {
    return line_;
  }  ///< without its newline; the first `most` bytes of a longer one
  std::size_t bytes() const { return bytes_; }    ///< of the whole line
  std::size_t number() const { return number_; }  ///< from 1
  bool ended() const { return ended_; }           ///< whether a newline followed it

 private:
  bool fill();

  std::string path_;
  std::size_t most_;
  int descriptor_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  ///< of what of the buffer is not read yet
  std::string line_;
  std::size_t bytes_ = 0, number_ = 0;
  bool ended_ = false;
};

}  // namespace precbench
