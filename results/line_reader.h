// The lines of a file that may be anybody's: however large the file or a line of it is, no more than one line is held.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

namespace precbench {

class LineReader {
 public:
  /// `most`: bytes of the longest line that is held whole. Throws InvalidInput where the file is none, no regular one,
  /// or cannot be read.
  LineReader(const std::string& path, std::size_t most);

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
  std::ifstream file_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  ///< of what of the buffer is not read yet
  std::string line_;
  std::size_t bytes_ = 0, number_ = 0;
  bool ended_ = false;
};

}  // namespace precbench
