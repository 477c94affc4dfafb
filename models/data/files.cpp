// Finds the files of a corpus and reads the two kinds.
//
// llm.c's token file (karpathy/llm.c, dev/data/data_common.py): 256 int32 of header, of which the first three
// are magic, version and token count, then the tokens. Magic 20240520, version 1: uint16 (GPT-2); magic
// 20240801, version 7: uint32 (Llama 3). Raw .u16 and .u32 files consist of tokens only.
#include "models/data/files.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Scans release the pages they have read after so many bytes.
constexpr std::int64_t kScanBytes = std::int64_t{8} << 20;

constexpr std::string_view kEndOfText = "<|endoftext|>";

using BinHeader = std::array<std::int32_t, 256>;

struct BinVersion {
  std::int32_t magic, version;
  TokenWidth width;
};
constexpr BinVersion kBinVersions[] = {{20240520, 1, TokenWidth::u16}, {20240801, 7, TokenWidth::u32}};
constexpr std::int32_t kBinEvaluationMagic = 20240522;

bool ends_with(const std::string& path, const char* extension) {
  return fs::path(path).extension() == extension;
}

BinHeader read_bin_header(const MappedFile& file) {
  BinHeader header;
  if (file.size() < static_cast<std::int64_t>(sizeof header)) {
    throw InvalidInput(
        fmt::format("{}: {} bytes are too few for the header of an llm.c token file ({} bytes)", file.path(),
                    file.size(), sizeof header));
  }
  std::memcpy(header.data(), file.data(), sizeof header);
  return header;
}

TokenWidth bin_width(const MappedFile& file) {
  const BinHeader header = read_bin_header(file);
  for (const BinVersion& known : kBinVersions) {
    if (header[0] != known.magic) continue;
    if (header[1] == known.version) return known.width;
    throw InvalidInput(fmt::format("{}: llm.c token file of version {}, but magic {} goes with version {}",
                                   file.path(), header[1], known.magic, known.version));
  }
  if (header[0] == kBinEvaluationMagic) {
    throw InvalidInput(file.path() + ": is an llm.c evaluation file, not a token file to train on");
  }
  throw InvalidInput(fmt::format(
      "{}: bad magic {}, not an llm.c token file ({} or {}); name raw uint16 or uint32 tokens .u16 or .u32",
      file.path(), header[0], kBinVersions[0].magic, kBinVersions[1].magic));
}

/// Throws InvalidInput if a token is >= vocab. The inner loop has no exit, so that it vectorizes.
template <class Stored>
void check_vocabulary(const MappedFile& file, const std::byte* data, std::int64_t count, std::int64_t vocab) {
  if (static_cast<std::uint64_t>(vocab) > static_cast<Stored>(-1)) return;  // no stored value can exceed it
  const Stored* tokens = reinterpret_cast<const Stored*>(data);             // aligned: page start or + 1024
  const std::int64_t chunk = kScanBytes / static_cast<std::int64_t>(sizeof(Stored));
  for (std::int64_t begin = 0; begin < count; begin += chunk) {
    const std::int64_t end = std::min(count, begin + chunk);
    Stored largest = 0;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, tokens[i]);
    if (static_cast<std::int64_t>(largest) >= vocab) {
      const Stored* bad = std::find_if(tokens + begin, tokens + end, [&](Stored token) {
        return static_cast<std::int64_t>(token) >= vocab;
      });
      throw InvalidInput(fmt::format("{}: token {} at position {} is beyond the vocabulary of {}",
                                     file.path(), *bad, bad - tokens, vocab));
    }
    const std::int64_t offset = data - file.data();
    file.forget(offset + begin * static_cast<std::int64_t>(sizeof(Stored)),
                offset + end * static_cast<std::int64_t>(sizeof(Stored)));
  }
}

using DirectoryIdentity = std::pair<dev_t, ino_t>;

void find_below(const fs::path& directory, const std::string& glob, std::set<DirectoryIdentity>& entered,
                FoundFiles& found) {
  struct stat identity {};
  if (::stat(directory.c_str(), &identity) != 0) {
    ++found.skipped;
    return;
  }
  if (!entered.emplace(identity.st_dev, identity.st_ino).second) return;

  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(*entry);
  }
  if (error) ++found.skipped;
  // Sorted before descending, because the choice between two links to one directory must not depend on the
  // file system.
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    const fs::file_status status = entry.status(error);
    if (fs::is_directory(status)) {
      find_below(entry.path(), glob, entered, found);
    } else if (::fnmatch(glob.c_str(), entry.path().filename().c_str(), 0) == 0) {
      if (fs::is_regular_file(status)) {
        found.paths.push_back(entry.path().string());
      } else {
        ++found.skipped;
      }
    }
  }
}

}  // namespace

FoundFiles find_files(const std::string& directory, const std::string& glob) {
  FoundFiles found;
  std::set<DirectoryIdentity> entered;
  find_below(directory, glob, entered, found);
  return found;
}

std::optional<TokenWidth> token_width(const MappedFile& file) {
  if (ends_with(file.path(), ".bin")) return bin_width(file);
  if (ends_with(file.path(), ".u16")) return TokenWidth::u16;
  if (ends_with(file.path(), ".u32")) return TokenWidth::u32;
  return std::nullopt;
}

void add_token_file(Corpus& corpus, MappedFile file) {
  const bool bin = ends_with(file.path(), ".bin");
  const std::int64_t header_bytes = bin ? sizeof(BinHeader) : 0;
  const std::int64_t token_bytes = static_cast<std::int64_t>(corpus.width());
  const std::int64_t payload = file.size() - header_bytes;
  const std::int64_t count = bin ? read_bin_header(file)[2] : payload / token_bytes;
  if (count <= 0) throw InvalidInput(fmt::format("{}: holds no tokens", file.path()));
  if (count * token_bytes != payload) {
    throw InvalidInput(
        bin ? fmt::format("{}: {}: its header declares {} tokens ({} bytes), but {} bytes follow",
                          file.path(), count * token_bytes > payload ? "truncated" : "corrupt", count,
                          count * token_bytes, payload)
            : fmt::format("{}: {} bytes are not a whole number of {}-byte tokens", file.path(), payload,
                          token_bytes));
  }
  const std::byte* data = file.data() + header_bytes;
  if (corpus.width() == TokenWidth::u16) {
    check_vocabulary<std::uint16_t>(file, data, count, corpus.vocab());
  } else {
    check_vocabulary<std::uint32_t>(file, data, count, corpus.vocab());
  }
  corpus.add_file(std::move(file));
  corpus.add_span(data, count);
}

void add_text(Corpus& corpus, MappedFile text) {
  const MappedFile& file = corpus.add_file(std::move(text));
  const std::int64_t marker = kEndOfText.size();
  const std::int64_t size = file.size();
  std::int64_t document = 0;   // start of the current document
  std::int64_t forgotten = 0;  // end of what has been scanned and released
  for (std::int64_t position = 0; position < size;) {
    // The overlap finds a marker across the end of a chunk. Markers cannot overlap each other.
    const std::int64_t chunk_end = std::min(size, position + kScanBytes);
    const std::int64_t reach = std::min(size, chunk_end + marker - 1);
    const void* hit = ::memmem(file.data() + position, static_cast<std::size_t>(reach - position),
                               kEndOfText.data(), kEndOfText.size());
    if (hit == nullptr) {
      position = chunk_end;
    } else {
      const std::int64_t at = static_cast<const std::byte*>(hit) - file.data();
      corpus.add_span(file.data() + document, at - document);
      position = document = at + marker;
    }
    if (position - forgotten >= kScanBytes || position >= size) {
      file.forget(forgotten, position);
      forgotten = position;
    }
  }
  corpus.add_span(file.data() + document, size - document);
}

}  // namespace precbench
