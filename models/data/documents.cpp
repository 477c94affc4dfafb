// Reads documents of prompt and answer. See documents.h.
#include "models/data/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/description.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "models/data/counter_random.h"

namespace precbench {
namespace {

using nlohmann::json;

constexpr std::int32_t kEndOfAnswer = 0;

/// One line of the file, for messages.
struct Line {
  const std::string& path;
  std::int64_t number;
  std::int64_t vocab;

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidInput(fmt::format("{}: line {}: {}", path, number, why));
  }
};

/// Appends a prompt or an answer. Returns the number of its tokens. Sets `has_text` if it is a string.
std::int64_t append(std::vector<std::int32_t>& tokens, const Line& line, const char* key, const json& part,
                    bool& has_text) {
  const auto before = std::ssize(tokens);
  if (part.is_string()) {
    has_text = true;
    if (line.vocab < kByteValues)
      line.refuse(fmt::format("{}: text needs a vocabulary of at least {} (one token per byte), not {}", key,
                              kByteValues, line.vocab));
    for (const char c : part.get_ref<const std::string&>()) tokens.push_back(static_cast<unsigned char>(c));
    return std::ssize(tokens) - before;
  }
  if (!part.is_array()) line.refuse(fmt::format("{}: expected text or a list of token ids", key));
  for (const json& id : part) {
    if (!id.is_number_integer())
      line.refuse(fmt::format("{}: {} is not a token id", key, id.dump(-1, ' ', true)));
    if (id < 0 || id >= line.vocab)
      line.refuse(fmt::format("{}: token {} is beyond the vocabulary of {}", key, id.dump(), line.vocab));
    tokens.push_back(id.get<std::int32_t>());
  }
  return std::ssize(tokens) - before;
}

/// Keys of other formats of JSON Lines: texts, and the answers to a prompt or an instruction.
constexpr const char* kTextKeys[] = {"text", "content", "raw_content"};
constexpr const char* kPromptKeys[] = {"prompt", "instruction", "question", "input", "query"};
constexpr const char* kAnswerKeys[] = {"answer", "completion", "response", "output", "chosen"};

/// Returns the first of the keys that the object has with a string; null if there is none.
template <std::size_t kCount>
const char* text_among(const json& object, const char* const (&keys)[kCount]) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && found->is_string()) return key;
  return nullptr;
}

/// Returns what makes documents or tokens of an object of another format: ": ..."; empty for an unknown one.
std::string other_format_hint(const json& object) {
  const char *text = text_among(object, kTextKeys), *prompt = text_among(object, kPromptKeys),
             *answer = text_among(object, kAnswerKeys);
  if (prompt && answer)
    return fmt::format(
        ": it has {} and {}; name them prompt and answer, as tools/data/tokenize_chats.py also expects them",
        prompt, answer);
  if (text)
    return fmt::format(": it has {}; tools/data/tokenize_text.py --field {} makes a token file of such rows",
                       text, text);
  return "";
}

json parsed(const Line& line, std::string_view text) {
  json object = json::parse(text, nullptr, false);
  if (object.is_discarded()) line.refuse("is not JSON");
  if (!object.is_object()) line.refuse("is not an object with prompt and answer");
  if (object.contains("messages"))
    line.refuse("has messages; tools/data/tokenize_chats.py makes prompts and answers of them");
  for (const char* key : {"prompt", "answer"})
    if (!object.contains(key)) line.refuse(fmt::format("has no {}{}", key, other_format_hint(object)));
  if (const auto key = duplicate_key(text)) line.refuse(fmt::format("{}: given twice", *key));
  return object;
}

}  // namespace

bool is_documents(const std::string& path) { return std::filesystem::path(path).extension() == ".jsonl"; }

std::vector<std::vector<std::int64_t>> pack_documents(const std::vector<std::int64_t>& sizes,
                                                      std::int64_t capacity, std::uint64_t seed) {
  constexpr std::uint64_t kOrderStream = 0x7061636b;  // another order than that of the epochs
  std::vector<std::vector<std::int64_t>> packs;
  std::multimap<std::int64_t, std::size_t> tokens_left;  // in each pack; of equal ones the oldest first
  const std::uint64_t count = sizes.size(), key = mix64(seed, kOrderStream);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto document = static_cast<std::int64_t>(permute(i, count, key));
    const auto best = tokens_left.lower_bound(sizes[document]);
    std::size_t pack = packs.size();
    std::int64_t left = capacity;
    if (best == tokens_left.end()) {
      packs.emplace_back();
    } else {
      left = best->first;
      pack = best->second;
      tokens_left.erase(best);
    }
    packs[pack].push_back(document);
    tokens_left.emplace(left - sizes[document], pack);
  }
  return packs;
}

Documents::Documents(const DataOptions& options, std::string_view text)
    : seed_(options.seed), vocab_(options.vocab), T_(options.T), packed_(options.packed) {
  read(options, text);
  const auto count = std::ssize(documents_);
  std::vector<std::int64_t> sizes(documents_.size());
  std::transform(documents_.begin(), documents_.end(), sizes.begin(),
                 [](const Document& document) { return document.size(); });
  if (packed_)
    packs_ = pack_documents(sizes, T_ + 1, seed_);
  else
    for (std::int64_t i = 0; i < count; ++i) packs_.push_back({i});
  const std::int64_t answers =
      std::accumulate(documents_.begin(), documents_.end(), std::int64_t{0},
                      [](std::int64_t sum, const Document& document) { return sum + document.answer; });
  // A document of n tokens needs n - 1 positions.
  const double used =
      static_cast<double>(std::ssize(tokens_) - count) / static_cast<double>(std::ssize(packs_) * T_);
  description_ =
      fmt::format("documents: {}, {} of {} tokens, {} of them in answers; {}{:.0f}% of positions are padding",
                  options.path, count, std::ssize(tokens_), answers,
                  packed_ ? fmt::format("packed into {}, ", plural(std::ssize(packs_), "sequence")) : "",
                  100 * (1 - used));
}

void Documents::read(const DataOptions& options, std::string_view text) {
  Line line{options.path, 0, vocab_};
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, end - begin);
    begin = end + 1;
    ++line.number;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const json object = parsed(line, row);
    Document& document = documents_.emplace_back();
    document.first = std::ssize(tokens_);
    document.prompt = append(tokens_, line, "prompt", object["prompt"], has_text_);
    document.answer = append(tokens_, line, "answer", object["answer"], has_text_);
    if (document.answer == 0) line.refuse("its answer is empty");
    if (object["answer"].is_string()) {
      tokens_.push_back(kEndOfAnswer);
      ++document.answer;
    }
    if (document.size() < 2) line.refuse("a single token, with nothing before it, cannot be predicted");
    // A sequence of length T has T + 1 tokens.
    if (document.size() > options.T + 1)
      line.refuse(fmt::format("{} are more than a sequence of length {} holds ({})",
                              plural(document.size(), "token"), options.T, options.T + 1));
  }
  if (documents_.empty()) throw InvalidInput(options.path + ": holds no documents");
}

const Documents::Pack& Documents::at(std::uint64_t index) const {
  const std::uint64_t count = packs_.size();
  return packs_[permute(index % count, count, mix64(seed_, index / count))];
}

void Documents::sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const {
  std::int32_t* end = tokens;
  for (const std::int64_t i : at(index))
    end = std::copy_n(tokens_.begin() + documents_[i].first, documents_[i].size(), end);
  std::fill(end, tokens + T + 1, end[-1]);
}

void Documents::mark_counted(std::uint64_t index, std::int64_t T, std::uint8_t* counted) const {
  std::fill_n(counted, T, std::uint8_t{0});
  std::int64_t begin = 0;
  for (const std::int64_t i : at(index)) {
    const Document& document = documents_[i];
    // Position t predicts token t + 1; the document's first token has nothing before it.
    for (std::int64_t t = std::max<std::int64_t>(1, document.prompt); t < document.size(); ++t)
      counted[begin + t - 1] = 1;
    begin += document.size();
  }
}

std::int64_t Documents::counted_targets(std::uint64_t index, std::int64_t) const {
  std::int64_t sum = 0;
  for (const std::int64_t i : at(index))
    sum += documents_[i].size() - std::max<std::int64_t>(1, documents_[i].prompt);
  return sum;
}

void Documents::mark_documents(std::uint64_t index, std::int64_t T, std::int32_t* first) const {
  if (!packed_) return DataSource::mark_documents(index, T, first);
  std::int64_t begin = 0;
  for (const std::int64_t i : at(index)) {
    const std::int64_t end = std::min(T, begin + documents_[i].size());
    std::fill(first + begin, first + end, static_cast<std::int32_t>(begin));
    begin = end;
  }
  std::iota(first + begin, first + T, static_cast<std::int32_t>(begin));
}

std::vector<std::int64_t> Documents::positions() const {
  std::vector<std::int64_t> positions;
  for (const Pack& pack : packs_) {
    std::int64_t left = T_;
    for (const std::int64_t i : pack) {
      positions.push_back(std::min(left, documents_[i].size()));
      left -= positions.back();
    }
  }
  return positions;
}

}  // namespace precbench
