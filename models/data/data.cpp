// Opens the token source of the options and refuses unusable data.
#include "models/data/data.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "models/data/corpus.h"
#include "models/data/documents.h"
#include "models/data/file_kind.h"
#include "models/data/files.h"
#include "models/data/synthetic.h"

namespace precbench {
namespace {

const char* name_of(std::optional<TokenWidth> width) {
  if (!width) return "text";
  return *width == TokenWidth::u16 ? "uint16 tokens" : "uint32 tokens";
}

struct OpenFiles {
  std::vector<MappedFile> files;  // none of them empty
  std::int64_t skipped = 0;
};

OpenFiles open_files(const DataOptions& options, bool directory, const std::string& glob) {
  OpenFiles open;
  if (!directory) {
    MappedFile& file = open.files.emplace_back(options.path);
    if (file.size() == 0) throw InvalidInput(options.path + ": is empty");
    return open;
  }
  FoundFiles found = find_files(options.path, glob);
  open.skipped = found.skipped;
  for (const std::string& path : found.paths) {
    try {
      MappedFile file(path);
      if (file.size() > 0) open.files.push_back(std::move(file));
    } catch (const InvalidInput&) {
      ++open.skipped;  // one unreadable file is no reason to refuse the rest; the record reports it
    }
  }
  if (open.files.empty()) {
    throw InvalidInput(fmt::format("{}: {} '{}' ({} unreadable)", options.path,
                                   found.paths.empty()
                                       ? "no file below this directory has a name that matches"
                                       : "nothing to read in the files that match",
                                   glob, open.skipped));
  }
  return open;
}

/// Throws InvalidInput for the first file that is neither text nor tokens.
void refuse_other_kinds(const OpenFiles& open, bool directory) {
  for (const MappedFile& file : open.files)
    if (const auto why = not_a_corpus_reason(file, token_width(file).has_value()))
      throw InvalidInput(
          fmt::format("{}: {}{}", file.path(), *why, directory ? "; or leave it out with --glob" : ""));
}

}  // namespace

std::unique_ptr<DataSource> open_data(const DataOptions& options) {
  if (options.T < 1) throw InvalidInput(fmt::format("sequence length {} is not positive", options.T));
  if (options.vocab < 2 || options.vocab > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidInput(fmt::format("a vocabulary of {} is outside [2, 2^31)", options.vocab));
  }
  if (options.path.empty()) return make_synthetic_data(options.seed, options.vocab);

  std::error_code unused;  // a path that cannot be examined fails with a reason when it is opened
  const bool directory = std::filesystem::is_directory(options.path, unused);
  const std::string glob = options.glob.empty() ? "*" : options.glob;
  OpenFiles open = open_files(options, directory, glob);
  refuse_other_kinds(open, directory);

  const MappedFile& first = open.files.front();
  if (!directory && is_documents(options.path))
    return std::make_unique<Documents>(options, std::string_view(reinterpret_cast<const char*>(first.data()),
                                                                 static_cast<std::size_t>(first.size())));
  const std::optional<TokenWidth> width = token_width(first);
  for (const MappedFile& file : open.files) {
    const std::optional<TokenWidth> other = token_width(file);
    if (other == width) continue;
    throw InvalidInput(fmt::format("{}: mixes {} ({}) and {} ({}); choose one kind with a glob", options.path,
                                   name_of(width), first.path(), name_of(other), file.path()));
  }
  if (!width && options.vocab < kByteValues) {
    throw InvalidInput(fmt::format("{}: text needs a vocabulary of at least {} (one token per byte), not {}",
                                   options.path, kByteValues, options.vocab));
  }

  auto corpus = std::make_unique<Corpus>(options.seed, options.vocab, width.value_or(TokenWidth::u8));
  for (MappedFile& file : open.files) {
    if (width) {
      add_token_file(*corpus, std::move(file));
    } else {
      add_text(*corpus, std::move(file));
    }
  }
  if (corpus->tokens() < options.T + 1) {
    throw InvalidInput(fmt::format("{}: holds {}, but one sequence of length {} needs {}", options.path,
                                   plural(corpus->tokens(), "token"), options.T, options.T + 1));
  }
  std::string description = fmt::format("{}: {}", name_of(width), options.path);
  if (directory) description += fmt::format(", {} files that match '{}'", corpus->files(), glob);
  description += fmt::format(", {} tokens", corpus->tokens());
  if (open.skipped > 0) description += fmt::format(", {} unreadable skipped", open.skipped);
  corpus->set_description(description, open.skipped);
  return corpus;
}

}  // namespace precbench
