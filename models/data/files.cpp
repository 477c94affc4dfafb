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
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/errors.h"
#include "models/data/integer_layout.h"

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

/// Element types of Megatron's indexed data sets, by their code in the .idx file (its indexed_dataset.py).
constexpr std::pair<int, const char*> kMegatronTypes[] = {{4, "int32"}, {5, "int64"}, {8, "uint16"}};

/// Returns the type of the tokens of Megatron's X.bin, which X.idx tells; null without such a file.
std::optional<std::string> megatron_type(const std::string& bin) {
  constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
  std::array<char, kMagic.size() + sizeof(std::uint64_t) + 1> head{};  // magic, version, type
  std::ifstream index(fs::path(bin).replace_extension(".idx"), std::ios::binary);
  if (!index.read(head.data(), head.size()) || std::string_view(head.data(), kMagic.size()) != kMagic)
    return std::nullopt;
  for (const auto& [code, name] : kMegatronTypes)
    if (head.back() == code) return name;
  return std::nullopt;
}

/// Returns how a .bin without llm.c's header can be read.
std::string advice_for_raw(const MappedFile& file) {
  const std::int64_t size = file.size();
  if (const auto type = megatron_type(file.path()))
    return fmt::format("beside its .idx it is Megatron's: {}",
                       *type == "uint16"  ? "uint16 tokens: name a link to it, or a copy, .u16"
                       : *type == "int32" ? "int32 tokens: name a link to it, or a copy, .u32"
                                          : describe_remedy({8, false}));
  constexpr std::int64_t kAnyVocabulary = 1 << 20;
  if (const auto layout = wider_layout(file.data(), size / 2, TokenWidth::u16, kAnyVocabulary))
    return "it seems to hold raw " + describe_remedy(*layout);
  return "name raw tokens of 2 bytes (uint16) .u16, and of 4 bytes (uint32, and Megatron's int32) .u32";
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
  throw InvalidInput(fmt::format("{}: bad magic {}, not an llm.c token file ({} or {}); {}", file.path(),
                                 header[0], kBinVersions[0].magic, kBinVersions[1].magic,
                                 advice_for_raw(file)));
}

/// Throws InvalidInput if a raw token file has llm.c's header, or integers that are wider than its name says.
void check_width(const MappedFile& file, TokenWidth width, std::int64_t vocab) {
  std::array<std::int32_t, 2> start{};
  if (file.size() >= static_cast<std::int64_t>(sizeof(BinHeader)))
    std::memcpy(start.data(), file.data(), sizeof start);
  for (const BinVersion& known : kBinVersions)
    if (start[0] == known.magic && start[1] == known.version)
      throw InvalidInput(
          fmt::format("{}: begins with the header of an llm.c token file; name it .bin", file.path()));
  if (const auto layout =
          wider_layout(file.data(), file.size() / static_cast<std::int64_t>(width), width, vocab))
    throw InvalidInput(fmt::format("{}: not uint{} tokens but {}", file.path(), 8 * static_cast<int>(width),
                                   describe_remedy(*layout)));
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

void find_below(const fs::path& directory, const std::string& glob, Below below,
                std::set<DirectoryIdentity>& entered, FoundFiles& found) {
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
      if (below == Below::all) find_below(entry.path(), glob, below, entered, found);
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

FoundFiles find_files(const std::string& directory, const std::string& glob, Below below) {
  FoundFiles found;
  std::set<DirectoryIdentity> entered;
  find_below(directory, glob, below, entered, found);
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
  if (!bin) check_width(file, corpus.width(), corpus.vocab());
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
