// Documents of prompt and answer: padding, losses on answers, epochs, refusals, and packing.
#include "models/data/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "models/data/data_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns the targets with a loss of a sequence.
std::vector<std::uint8_t> counted(const DataSource& data, std::uint64_t index, std::int64_t T) {
  std::vector<std::uint8_t> marks(static_cast<std::size_t>(T), 9);
  data.mark_counted(index, T, marks.data());
  return marks;
}

}  // namespace

TEST_CASE("documents: text and token ids, padded, with a loss on the answer", "[data][documents]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", R"({"prompt": "ab", "answer": "c"}
{"prompt": [5, 6, 7], "answer": [8, 9], "source": "ignored"}

{"answer": [1, 2], "prompt": []}
)");
  const auto data = open_data({path, "", 3, 256, 6});
  CHECK(data->sequences(6) == 3);
  CHECK(data->describe() ==
        "documents: " + path + ", 3 of 11 tokens, 6 of them in answers; 56% of positions are padding");
  std::map<std::vector<std::int32_t>, std::vector<std::uint8_t>> found;
  for (std::uint64_t i = 0; i < 3; ++i) {
    found[sequence_of(*data, i, 6)] = counted(*data, i, 6);
    const auto marks = counted(*data, i, 6);
    CHECK(data->counted_targets(i, 6) == std::count(marks.begin(), marks.end(), 1));
  }
  const std::map<std::vector<std::int32_t>, std::vector<std::uint8_t>> expected = {
      {{'a', 'b', 'c', 0, 0, 0, 0}, {0, 1, 1, 0, 0, 0}},
      {{5, 6, 7, 8, 9, 9, 9}, {0, 0, 1, 1, 0, 0}},
      {{1, 2, 2, 2, 2, 2, 2}, {1, 0, 0, 0, 0, 0}}};  // the first token has nothing before it
  CHECK(found == expected);
}

TEST_CASE("documents: every epoch visits each once, in its own order", "[data][documents]") {
  const TempDirectory directory;
  std::string text;
  for (int i = 0; i < 50; ++i) text += fmt::format("{{\"prompt\": [{}], \"answer\": [60]}}\n", i);
  const auto data = open_data({directory.write("many.jsonl", text), "", 1, 64, 4});
  std::vector<std::vector<std::int32_t>> epochs(2);
  for (std::uint64_t i = 0; i < 100; ++i) epochs[i / 50].push_back(sequence_of(*data, i, 4).front());
  CHECK(epochs[0] != epochs[1]);
  for (std::vector<std::int32_t>& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (int i = 0; i < 50; ++i) CHECK(epoch[i] == i);
  }
}

TEST_CASE("documents: what cannot be trained on is refused by line", "[data][documents]") {
  const TempDirectory directory;
  const auto refusal_for = [&](const std::string& line, std::int64_t vocab = 256) {
    const std::string path =
        directory.write("bad.jsonl", "{\"prompt\": [1], \"answer\": [2]}\n" + line + "\n");
    const std::string message = data_refusal({path, "", 1, vocab, 4});
    CHECK(message.starts_with(path + ": line 2: "));
    return message.substr(std::min(message.size(), path.size() + 10));
  };
  CHECK(refusal_for("prompt,answer") == "is not JSON");
  CHECK(refusal_for("[1, 2]") == "is not an object with prompt and answer");
  CHECK(refusal_for(R"({"prompt": "a"})") == "has no answer");
  CHECK(refusal_for(R"({"note": "a"})") == "has no prompt");
  for (const char* key : {"text", "content"})
    CHECK(
        refusal_for(fmt::format(R"({{"id": 1, "{}": "a"}})", key)) ==
        fmt::format(
            "has no prompt: it has {0}; tools/data/tokenize_text.py --field {0} makes a token file of such rows",
            key));
  CHECK(
      refusal_for(R"({"instruction": "a", "input": "", "output": "b"})") ==
      "has no prompt: it has instruction and output; name them prompt and answer, as tools/data/tokenize_chats.py also "
      "expects them");
  CHECK(refusal_for(R"({"prompt": "a", "completion": "b"})")
            .starts_with("has no answer: it has prompt and completion; "));
  CHECK(refusal_for(R"({"text": [1, 2]})") == "has no prompt");
  CHECK(refusal_for(R"({"prompt": [1], "answer": [2], "prompt": [3]})") == "prompt: given twice");
  CHECK(refusal_for(R"({"prompt": "a", "answer": ""})") == "its answer is empty");
  CHECK(refusal_for(R"({"prompt": [], "answer": [1]})") ==
        "a single token, with nothing before it, cannot be predicted");
  CHECK(refusal_for(R"({"prompt": "a", "answer": 3})") == "answer: expected text or a list of token ids");
  CHECK(refusal_for(R"({"prompt": [1.5], "answer": [3]})") == "prompt: 1.5 is not a token id");
  CHECK(refusal_for(R"({"prompt": [256], "answer": [3]})") ==
        "prompt: token 256 is beyond the vocabulary of 256");
  CHECK(refusal_for(R"({"prompt": [3], "answer": [-1]})") ==
        "answer: token -1 is beyond the vocabulary of 256");
  CHECK(refusal_for(R"({"prompt": [1, 1, 1], "answer": [1, 1, 1]})") ==
        "6 tokens are more than a sequence of length 4 holds (5)");
  CHECK(refusal_for(R"({"prompt": "a", "answer": "b"})", 100) ==
        "prompt: text needs a vocabulary of at least 256 (one token per byte), not 100");
  CHECK(refusal_for(R"({"messages": []})") ==
        "has messages; tools/data/tokenize_chats.py makes prompts and answers of them");
  const std::string empty = directory.write("none.jsonl", "\n");
  CHECK(data_refusal({empty, "", 1, 256, 4}) == empty + ": holds no documents");
}

namespace {

/// Returns the documents of a sequence's positions.
std::vector<std::int32_t> begins(const DataSource& data, std::uint64_t index, std::int64_t T) {
  std::vector<std::int32_t> first(static_cast<std::size_t>(T), -1);
  data.mark_documents(index, T, first.data());
  return first;
}

/// Documents of 2 to 9 tokens; the first token is the document's number.
std::string numbered_documents(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += fmt::format("{{\"prompt\": [{}], \"answer\": [99", i);
    for (int more = 0; more < i * i % 8; ++more) text += ", 99";
    text += "]}\n";
  }
  return text;
}

}  // namespace

TEST_CASE("documents: packed ones begin where they are marked, with losses on their own answers",
          "[data][documents]") {
  const TempDirectory directory;
  const std::string path = directory.write("chat.jsonl", R"({"prompt": [1], "answer": [2, 3]}
{"prompt": [5, 6], "answer": [7]}
)");
  const auto data = open_data({.path = path, .glob = "", .seed = 3, .vocab = 64, .T = 8, .packed = true});
  CHECK(data->sequences(8) == 1);
  CHECK(data->describe() ==
        "documents: " + path +
            ", 2 of 6 tokens, 3 of them in answers; packed into 1 sequence, 50% of positions "
            "are padding");
  const auto tokens = sequence_of(*data, 0, 8);
  const bool first_is_first = tokens[0] == 1;
  CHECK(tokens == (first_is_first ? std::vector<std::int32_t>{1, 2, 3, 5, 6, 7, 7, 7, 7}
                                  : std::vector<std::int32_t>{5, 6, 7, 1, 2, 3, 3, 3, 3}));
  CHECK(counted(*data, 0, 8) == (first_is_first ? std::vector<std::uint8_t>{1, 1, 0, 0, 1, 0, 0, 0}
                                                : std::vector<std::uint8_t>{0, 1, 0, 1, 1, 0, 0, 0}));
  CHECK(begins(*data, 0, 8) == std::vector<std::int32_t>{0, 0, 0, 3, 3, 3, 6, 7});
  CHECK(data->counted_targets(0, 8) == 3);
  // Unpacked, a sequence is one document with its padding.
  const auto apart = open_data({path, "", 3, 64, 8});
  CHECK(begins(*apart, 0, 8) == std::vector<std::int32_t>(8, 0));
}

TEST_CASE("documents: an epoch of packs has each document once, whole", "[data][documents]") {
  const TempDirectory directory;
  constexpr int kCount = 90;
  constexpr std::int64_t kLength = 20;
  const std::string path = directory.write("many.jsonl", numbered_documents(kCount));
  const auto open = [&](std::uint64_t seed) {
    return open_data({.path = path, .glob = "", .seed = seed, .vocab = 100, .T = kLength, .packed = true});
  };
  const auto data = open(1), same = open(1), other = open(2);
  const std::int64_t packs = data->sequences(kLength);
  std::int64_t tokens = 0;
  for (int i = 0; i < kCount; ++i) tokens += 2 + i * i % 8;
  CHECK(packs >= (tokens + kLength) / (kLength + 1));
  CHECK(packs <= (tokens + kLength) / (kLength + 1) + 2);  // best fit wastes little
  std::vector<std::vector<std::int32_t>> first_epoch;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int> seen(kCount, 0);
    bool moved = false;
    for (std::int64_t i = 0; i < packs; ++i) {
      const auto index = static_cast<std::uint64_t>(epoch * packs + i);
      const auto sequence = sequence_of(*data, index, kLength);
      CHECK(sequence == sequence_of(*same, index, kLength));
      const auto marks = counted(*data, index, kLength);
      CHECK(data->counted_targets(index, kLength) == std::count(marks.begin(), marks.end(), 1));
      const auto first = begins(*data, index, kLength);
      for (std::int64_t t = 0; t < kLength; ++t) {
        if (first[t] != t || sequence[t] == 99) continue;  // padding repeats an answer's last token
        const int number = sequence[t], length = 2 + number * number % 8;
        ++seen[number];
        for (std::int64_t p = t; p < t + length; ++p) {
          CHECK((p == t || sequence[p] == 99));
          if (p < kLength) CHECK(first[p] == t);
          if (p < kLength) CHECK(marks[p] == (p + 1 < t + length));
        }
        if (t + length < kLength) CHECK(first[t + length] == t + length);
      }
      if (epoch == 0)
        first_epoch.push_back(sequence);
      else
        moved = moved || sequence != first_epoch[static_cast<std::size_t>(i)];
    }
    CHECK(std::count(seen.begin(), seen.end(), 1) == kCount);
    CHECK(moved == (epoch == 1));
  }
  CHECK(sequence_of(*other, 0, kLength) != first_epoch.front());
}
