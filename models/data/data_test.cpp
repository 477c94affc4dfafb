// Token sources: order and sharding, entropy of the synthetic language, text, token files, and refusals.
#include "models/data/data.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/data/counter_random.h"
#include "models/data/data_doubts.h"
#include "models/data/data_testing.h"
#include "models/data/files.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

template <class Stored>
std::string bytes_of_tokens(const std::vector<Stored>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Stored)};
}

std::string bin_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic, header[1] = version, header[2] = count;
  return bytes_of_tokens(header);
}

/// Returns all tokens of a corpus in file order, read as a single window.
std::vector<std::int32_t> whole_corpus(const DataOptions& options, std::int64_t tokens) {
  DataOptions all = options;
  all.T = tokens - 1;
  return sequence_of(*open_data(all), 0, tokens - 1);
}

struct BigramCounts {
  std::map<std::pair<std::int32_t, std::int32_t>, double> pair;
  std::map<std::int32_t, double> first;
  double n = 0;

  BigramCounts(const DataSource& data, std::uint64_t begin, std::uint64_t end, std::int64_t T) {
    for (std::uint64_t index = begin; index < end; ++index) {
      const std::vector<std::int32_t> tokens = sequence_of(data, index, T);
      for (std::int64_t t = 0; t < T; ++t) {
        ++pair[{tokens[t], tokens[t + 1]}];
        ++first[tokens[t]];
        ++n;
      }
    }
  }
};

}  // namespace

TEST_CASE("permute: is a bijection of 0 to n - 1 that depends on the key", "[data]") {
  for (std::uint64_t n = 1; n <= 300; ++n) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < n; ++i) seen.insert(permute(i, n, 42));
    CHECK(seen.size() == n);
    CHECK(*seen.rbegin() == n - 1);
  }
  // Two random permutations of n agree in one place on average; more than 20 has a probability below 1e-18.
  int fixed = 0, agree = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    fixed += permute(i, 100000, 1) == i;
    agree += permute(i, 100000, 1) == permute(i, 100000, 2);
  }
  CHECK(fixed <= 20);
  CHECK(agree <= 20);
}

TEST_CASE("permute: all 24 orders of four elements are equally frequent", "[data]") {
  std::map<std::vector<std::uint64_t>, int> orders;
  const int keys = 24000;
  for (int key = 0; key < keys; ++key) {
    std::vector<std::uint64_t> order;
    for (std::uint64_t i = 0; i < 4; ++i)
      order.push_back(permute(i, 4, mix64(static_cast<std::uint64_t>(key))));
    ++orders[order];
  }
  CHECK(orders.size() == 24);
  double chi2 = 0;
  for (const auto& [order, count] : orders) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
  CHECK(chi2 < 70);  // 23 degrees of freedom: exceeded by chance once in 10^6
}

TEST_CASE("sequence_index: N ranks and one rank with N-fold accumulation see the same batch", "[data]") {
  const std::uint64_t batch = 3, steps = 4;
  for (const std::uint64_t ranks : {1, 2, 4}) {
    const std::uint64_t accumulation = 4 / ranks;
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::set<std::uint64_t> seen;
      for (std::uint64_t micro = 0; micro < accumulation; ++micro)
        for (std::uint64_t rank = 0; rank < ranks; ++rank)
          for (std::uint64_t b = 0; b < batch; ++b)
            seen.insert(sequence_index(step, micro, accumulation, rank, ranks, batch, b));
      CHECK(seen.size() == 12);
      CHECK(*seen.begin() == step * 12);
      CHECK(*seen.rbegin() == step * 12 + 11);
    }
  }
}

TEST_CASE("synthetic data: measured entropy equals the stated one for every vocabulary", "[data]") {
  const std::int64_t V = GENERATE(2, 3, 4, 5, 100, 256, 32000, 128256);
  const auto data = open_data({"", "", 7, V, 64});
  const double entropy = data->entropy_nats().value();
  CHECK(data->vocab() == V);
  if (V >= 4) CHECK(std::abs(entropy - 1.75 * std::log(2.0)) < 1e-12);
  if (V == 2) CHECK(std::abs(entropy + 10 / 16. * std::log(10 / 16.) + 6 / 16. * std::log(6 / 16.)) < 1e-12);

  const std::int64_t T = 1000;
  const BigramCounts counts(*data, 0, 400, T);
  // Conditional entropy of the counts. A next token's log-probability has a variance below 1 nat^2 (0.33 for
  // four successors), so the mean of n has a standard error below 1/sqrt(n). The plug-in estimate is low by
  // (pairs - words) / 2n (Miller-Madow). The bound is five standard errors.
  double measured = 0;
  for (const auto& [pair, count] : counts.pair) {
    measured -= count / counts.n * std::log(count / counts.first.at(pair.first));
  }
  const double bias = static_cast<double>(counts.pair.size() - counts.first.size()) / (2 * counts.n);
  CHECK(std::abs(measured + bias - entropy) < 5 / std::sqrt(counts.n));

  const std::int64_t words = std::min<std::int64_t>(V, 256);
  CHECK(static_cast<std::int64_t>(counts.first.size()) == words);
  CHECK(static_cast<std::int64_t>(counts.pair.size()) == words * std::min<std::int64_t>(words, 4));
  CHECK(counts.first.begin()->first >= 0);
  CHECK(counts.first.rbegin()->first < V);
  if (V > 256) CHECK(counts.first.rbegin()->first > V / 2);  // scattered, not the first 256
}

TEST_CASE("synthetic data: bigram counts reach the entropy and word frequencies do not", "[data]") {
  const auto data = open_data({"", "", 3, 50000, 64});
  const std::int64_t T = 1000;
  const BigramCounts train(*data, 0, 400, T);
  const BigramCounts test(*data, 400, 500, T);
  double bigram = 0, unigram = 0;
  for (const auto& [pair, count] : test.pair) {
    REQUIRE(train.pair.count(pair) == 1);  // every pair of the test sequences occurs in training
    bigram -= count / test.n * std::log(train.pair.at(pair) / train.first.at(pair.first));
    unigram -= count / test.n * std::log(train.first.at(pair.second) / train.n);
  }
  CHECK(std::abs(bigram - data->entropy_nats().value()) < 5 / std::sqrt(test.n));
  CHECK(std::abs(unigram - std::log(256.0)) < 0.01);
}

TEST_CASE("open_data: sequences depend only on seed and index", "[data]") {
  TempDirectory directory;
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(1 + mix64(static_cast<std::uint64_t>(i)) % 255);
  for (const std::string& path : {std::string(), directory.write("a.txt", text)}) {
    const auto data = open_data({path, "", 1, 256, 32});
    const auto again = open_data({path, "", 1, 256, 32});
    const auto other = open_data({path, "", 2, 256, 32});
    int same_as_other_seed = 0, same_as_next = 0;
    for (std::uint64_t i = 0; i < 50; ++i) {
      CHECK(sequence_of(*data, i, 32) == sequence_of(*again, i, 32));
      same_as_other_seed += sequence_of(*data, i, 32) == sequence_of(*other, i, 32);
      same_as_next += sequence_of(*data, i, 32) == sequence_of(*data, i + 1, 32);
    }
    CHECK(same_as_other_seed < 10);
    CHECK(same_as_next < 10);
  }
}

TEST_CASE("open_data: several threads can read one source", "[data]") {
  TempDirectory directory;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "line " + std::to_string(i) + "<|endoftext|>";
  const auto data = open_data({directory.write("a.txt", text), "", 1, 256, 64});
  std::vector<std::vector<std::int32_t>> alone(200), together(200);
  for (std::uint64_t i = 0; i < 200; ++i) alone[i] = sequence_of(*data, i, 64);
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (std::uint64_t i = rank; i < 200; i += 4) together[i] = sequence_of(*data, i, 64);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(alone == together);
}

TEST_CASE("Corpus: every epoch visits each window once in its own order", "[data]") {
  TempDirectory directory;
  const std::int64_t T = 16, windows = 100;
  std::vector<std::uint32_t> tokens(T * windows + 1 + 5);  // five tokens too few for one more window
  std::iota(tokens.begin(), tokens.end(), 0u);
  const auto data = open_data({directory.write("a.u32", bytes_of_tokens(tokens)), "", 9, 1 << 20, T});
  std::vector<std::vector<std::int32_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int32_t> order;
    for (std::uint64_t i = 0; i < windows; ++i) {
      const auto window = sequence_of(*data, epoch * windows + i, T);
      for (std::int64_t t = 0; t <= T; ++t) REQUIRE(window[t] == window[0] + t);
      order.push_back(window[0]);
    }
    CHECK(!std::is_sorted(order.begin(), order.end()));
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < windows; ++i) CHECK(order[i] == i * T);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
}

TEST_CASE("open_data: text bytes are tokens and document boundaries are single 0 tokens", "[data]") {
  TempDirectory directory;
  directory.write("t/b.txt", "\xff<|endoftext|><|endoftext|>z");
  directory.write("t/a.txt", "<|endoftext|>xy<|endoftext");
  directory.write("t/c.txt", "");  // an empty file leaves no trace
  directory.write("t/sub/d.txt", "q<|endoftext|>");
  directory.write("t/other.h", "not this one");
  std::vector<std::int32_t> expected = {0, 'x', 'y'};
  for (const char c : std::string("<|endoftext")) expected.push_back(c);
  for (const std::int32_t token : {0, 0xff, 0, 0, static_cast<int>('z'), 0, static_cast<int>('q'), 0}) {
    expected.push_back(token);
  }
  const DataOptions options{directory / "t", "*.txt", 0, 256, 1};
  CHECK(whole_corpus(options, static_cast<std::int64_t>(expected.size())) == expected);
  DataOptions too_long = options;
  too_long.T = static_cast<std::int64_t>(expected.size());
  CHECK(contains(data_refusal(too_long), "holds 22 tokens"));
  CHECK(contains(open_data(options)->describe(), "3 files that match '*.txt', 22 tokens"));
  CHECK(!open_data(options)->entropy_nats());

  // Short windows put together give the same corpus, wherever they begin and end.
  for (const std::int64_t T : {1, 2, 3, 5, 7}) {
    const auto data = open_data({directory / "t", "*.txt", 0, 256, T});
    std::set<std::vector<std::int32_t>> seen, wanted;
    for (std::int64_t w = 0; w < 21 / T; ++w) {
      seen.insert(sequence_of(*data, static_cast<std::uint64_t>(w), T));
      wanted.insert({expected.begin() + w * T, expected.begin() + w * T + T + 1});
    }
    CHECK(seen == wanted);
  }
}

TEST_CASE("open_data: end-of-text markers are found across scan chunks", "[data]") {
  TempDirectory directory;
  const std::string marker = "<|endoftext|>";
  const std::size_t chunk = std::size_t{8} << 20;
  for (const std::size_t before : {chunk - 13, chunk - 12, chunk - 6, chunk - 1, chunk, chunk + 1}) {
    const std::string path = directory.write("a.txt", std::string(before, 'a') + marker + "b" + marker + "c");
    const auto tokens = whole_corpus({path, "", 0, 256, 1}, static_cast<std::int64_t>(before) + 4);
    CHECK(std::all_of(tokens.begin(), tokens.end() - 4, [](std::int32_t token) { return token == 'a'; }));
    CHECK(std::vector<std::int32_t>(tokens.end() - 4, tokens.end()) ==
          std::vector<std::int32_t>{0, 'b', 0, 'c'});
  }
}

TEST_CASE("open_data: opening and reading a corpus keeps resident memory small", "[data]") {
  const auto resident_file_bytes = [] {
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0, resident = 0, shared = 0;
    statm >> total >> resident >> shared;
    return shared * ::sysconf(_SC_PAGESIZE);
  };
  TempDirectory directory;
  const std::int64_t size = std::int64_t{64} << 20, T = 4096;
  const std::string path = directory.write("a.txt", std::string(static_cast<std::size_t>(size), 'a'));
  const std::int64_t before = resident_file_bytes();
  const auto data = open_data({path, "", 0, 256, T});
  CHECK(resident_file_bytes() - before < size / 8);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(T) + 1);
  for (std::int64_t i = 0; i < size / T; ++i) data->sequence(static_cast<std::uint64_t>(i), T, tokens.data());
  CHECK(resident_file_bytes() - before < size / 8);
}

TEST_CASE("find_files: sorts names and follows links once and counts unreadable files", "[data]") {
  TempDirectory directory;
  directory.write("t/b.h", "bb");
  directory.write("t/a/z.h", "zz");
  directory.write("t/a.h", "aa");
  std::filesystem::create_directory_symlink(directory / "t", directory / "t/a/loop");
  std::filesystem::create_directory_symlink(directory / "t/a", directory / "t/second-way");
  std::filesystem::create_symlink(directory / "nowhere", directory / "t/dangling.h");
  REQUIRE(::mkfifo((directory / "t/fifo.h").c_str(), 0600) == 0);
  std::filesystem::create_directory(directory / "t/directory.h");
  directory.write("t/directory.h/x.h", "xx");

  const FoundFiles found = find_files(directory / "t", "*.h");
  CHECK(found.paths == std::vector<std::string>{directory / "t/a/z.h", directory / "t/a.h",
                                                directory / "t/b.h", directory / "t/directory.h/x.h"});
  CHECK(found.skipped == 2);
  const auto data = open_data({directory / "t", "*.h", 0, 256, 4});
  CHECK(contains(data->describe(), "4 files"));
  CHECK(contains(data->describe(), "11 tokens, 2 unreadable skipped"));
}

TEST_CASE("open_data: reads llm.c files and raw tokens and directories of shards", "[data]") {
  TempDirectory directory;
  const std::vector<std::uint16_t> small = {0, 1, 50256, 65535, 7};
  const std::vector<std::uint32_t> large = {0, 128255, 65536, 3, 9};
  const std::vector<std::int32_t> small_tokens(small.begin(), small.end()),
      large_tokens(large.begin(), large.end());
  directory.write("gpt2/a.bin", bin_header(20240520, 1, 5) + bytes_of_tokens(small));
  directory.write("llama/a.bin", bin_header(20240801, 7, 5) + bytes_of_tokens(large));
  directory.write("raw/a.u16", bytes_of_tokens(small));
  directory.write("raw/a.u32", bytes_of_tokens(large));
  CHECK(whole_corpus({directory / "gpt2/a.bin", "", 0, 65536, 1}, 5) == small_tokens);
  CHECK(whole_corpus({directory / "llama/a.bin", "", 0, 128256, 1}, 5) == large_tokens);
  CHECK(whole_corpus({directory / "raw/a.u16", "", 0, 65536, 1}, 5) == small_tokens);
  CHECK(whole_corpus({directory / "raw/a.u32", "", 0, 128256, 1}, 5) == large_tokens);

  directory.write("gpt2/b.bin",
                  bin_header(20240520, 1, 2) + bytes_of_tokens(std::vector<std::uint16_t>{8, 9}));
  std::vector<std::int32_t> both = small_tokens;
  both.insert(both.end(), {8, 9});
  CHECK(whole_corpus({directory / "gpt2", "*.bin", 0, 65536, 1}, 7) == both);

  CHECK(contains(data_refusal({directory / "raw", "", 0, 65536, 1}), "mixes uint16 tokens"));
  CHECK(contains(data_refusal({directory / "raw", "*.u32", 0, 128255, 1}),
                 "a.u32: token 128255 at position 1 is beyond the vocabulary of 128255"));
  CHECK(contains(data_refusal({directory / "gpt2", "", 0, 50257, 1}),
                 "a.bin: token 65535 at position 3 is beyond the vocabulary of 50257"));
}

TEST_CASE("open_data: a token beyond the vocabulary is found at any position", "[data]") {
  TempDirectory directory;
  const std::size_t chunk = (std::size_t{8} << 20) / 4;
  for (const std::size_t position : {std::size_t{0}, chunk - 1, chunk, chunk + 4}) {
    std::vector<std::uint32_t> tokens(chunk + 5, 99);
    tokens[position] = 0xffffffffu;
    const std::string path = directory.write("a.u32", bytes_of_tokens(tokens));
    CHECK(contains(data_refusal({path, "", 0, 100, 1}),
                   "token 4294967295 at position " + std::to_string(position) + " is beyond"));
  }
}

TEST_CASE("open_data: unusable data is refused with a one-line reason", "[data]") {
  TempDirectory directory;
  const std::string text = directory.write("hello.txt", "hello");
  CHECK(contains(data_refusal({directory / "missing", "", 0, 256, 1}),
                 "missing: cannot be read (No such file"));
  CHECK(contains(data_refusal({directory.write("empty.txt", ""), "", 0, 256, 1}), "empty.txt: is empty"));
  CHECK(contains(data_refusal({text, "", 0, 255, 1}),
                 "vocabulary of at least 256 (one token per byte), not 255"));
  CHECK(
      contains(data_refusal({text, "", 0, 256, 5}), "holds 5 tokens, but one sequence of length 5 needs 6"));
  CHECK(data_refusal({text, "", 0, 256, 4}).empty());
  CHECK(contains(data_refusal({text, "", 0, 256, 0}), "sequence length 0"));
  CHECK(contains(data_refusal({"", "", 0, 1, 8}), "vocabulary of 1"));
  CHECK(contains(data_refusal({"", "", 0, std::int64_t{1} << 31, 8}), "vocabulary of 2147483648"));
  CHECK(contains(data_refusal({directory.path().string(), "*.none", 0, 256, 1}),
                 "a name that matches '*.none'"));
  CHECK(contains(data_refusal({directory.path().string(), "empty*", 0, 256, 1}), "nothing to read"));
  CHECK(contains(data_refusal({"/dev/null", "", 0, 256, 1}), "is not a regular file"));

  const auto refused_bin = [&](const std::string& content) {
    return data_refusal({directory.write("a.bin", content), "", 0, 70000, 1});
  };
  const std::string five(10, '\1');
  CHECK(contains(refused_bin("short"), "5 bytes are too few for the header"));
  CHECK(contains(refused_bin(bin_header(1, 1, 5) + five),
                 "bad magic 1, not an llm.c token file (20240520 or 20240801); "));
  CHECK(contains(refused_bin(bin_header(20240522, 1, 5) + five), "evaluation file"));
  CHECK(contains(refused_bin(bin_header(20240520, 7, 5) + five),
                 "version 7, but magic 20240520 goes with version 1"));
  CHECK(contains(refused_bin(bin_header(20240520, 1, 6) + five), "truncated: its header declares 6 tokens"));
  CHECK(contains(refused_bin(bin_header(20240801, 7, 5) + five),
                 "truncated: its header declares 5 tokens (20 bytes)"));
  CHECK(contains(refused_bin(bin_header(20240520, 1, 4) + five), "corrupt: its header declares 4 tokens"));
  CHECK(contains(refused_bin(bin_header(20240520, 1, 0)), "holds no tokens"));
  CHECK(contains(refused_bin(bin_header(20240520, 1, -5) + five), "holds no tokens"));
  CHECK(refused_bin(bin_header(20240520, 1, 5) + five).empty());
  CHECK(contains(data_refusal({directory.write("odd.u16", "abc"), "", 0, 70000, 1}),
                 "not a whole number of 2-byte"));
  CHECK(contains(data_refusal({directory.write("odd.u32", "ab"), "", 0, 70000, 1}), "holds no tokens"));
}

namespace {

/// Returns token ids below `vocab` in no order, as integers of type Stored.
template <class Stored>
std::string some_tokens(std::int64_t count, std::uint64_t vocab, bool big_endian = false) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<Stored>(mix64(11, static_cast<std::uint64_t>(i)) % vocab);
    std::string one(reinterpret_cast<const char*>(&token), sizeof token);
    if (big_endian) std::reverse(one.begin(), one.end());
    bytes += one;
  }
  return bytes;
}

}  // namespace

TEST_CASE("open_data: integers wider than a token file's name says are refused", "[data]") {
  TempDirectory directory;
  const auto refusal = [&](const std::string& name, const std::string& content, std::int64_t vocab) {
    return data_refusal({directory.write(name, content), "", 0, vocab, 1});
  };
  const std::string int32 = "4-byte integers (int32 or uint32): name the file .u32",
                    int64 =
                        "8-byte integers (int64): write them to a file .u32 (NumPy: fromfile(FILE, \"<i8\")";
  for (const std::int64_t count : {100, 300'000})
    for (const std::int64_t vocab : {256, 50'257, 65'536, 151'936}) {
      CAPTURE(count, vocab);
      CHECK(contains(refusal("a.u16", some_tokens<std::int32_t>(count, vocab), vocab),
                     "a.u16: not uint16 tokens but " + int32));
      CHECK(contains(refusal("a.u16", some_tokens<std::int64_t>(count, vocab), vocab),
                     "a.u16: not uint16 tokens but " + int64));
      CHECK(contains(refusal("a.u32", some_tokens<std::int64_t>(count, vocab), vocab),
                     "a.u32: not uint32 tokens but " + int64));
      CHECK(contains(refusal("a.u16", some_tokens<std::int32_t>(count, vocab, true), vocab),
                     "4-byte big-endian integers"));
      CHECK(contains(refusal("a.u32", some_tokens<std::int64_t>(count, vocab, true), vocab),
                     "8-byte big-endian integers"));
      CHECK(refusal("a.u32", some_tokens<std::int32_t>(count, vocab), vocab).empty());
      if (vocab <= 65'536) CHECK(refusal("a.u16", some_tokens<std::uint16_t>(count, vocab), vocab).empty());
    }
  CHECK(contains(refusal("a.u16", bin_header(20240801, 7, 5), 70'000), "name it .bin"));
}

TEST_CASE("open_data: tokens with many zeros are not mistaken for wider integers", "[data]") {
  TempDirectory directory;
  const auto accepts = [&](std::vector<std::uint16_t> tokens, std::int64_t vocab = 1024) {
    const std::vector<std::uint32_t> wide(tokens.begin(), tokens.end());
    return data_refusal({directory.write("a.u16", bytes_of_tokens(tokens)), "", 0, vocab, 1}).empty() &&
           data_refusal({directory.write("a.u32", bytes_of_tokens(wide)), "", 0, vocab, 1}).empty();
  };
  std::vector<std::uint16_t> zeros(4096, 0), alternating(4096, 0), pairs(4096, 0), padded(4096, 0), few, odd;
  for (std::size_t i = 0; i < zeros.size(); ++i) {
    alternating[i] = i % 2 == 0 ? 5 : 0;  // one token and a separator
    pairs[i] =
        static_cast<std::uint16_t>(i % 3 == 2 ? 0 : 1 + mix64(3, i) % 1000);  // two tokens and a separator
    if (i < 100) padded[i] = static_cast<std::uint16_t>(mix64(4, i) % 1000);
    odd.push_back(i == 2001 ? 7 : static_cast<std::uint16_t>(i % 2 == 0 ? 1 + mix64(5, i) % 1000 : 0));
  }
  for (std::uint16_t i = 0; i < 60; ++i)
    few.push_back(i % 2 == 0 ? static_cast<std::uint16_t>(i + 1) : std::uint16_t{0});
  CHECK(accepts(zeros));
  CHECK(accepts(zeros, 2));
  CHECK(accepts(alternating));
  CHECK(accepts(pairs));
  CHECK(accepts(padded));
  CHECK(accepts(few));  // too few to tell
  CHECK(accepts(odd));  // a single token where an upper half would be
}

TEST_CASE("open_data: a .bin that is not llm.c's is answered with the way to read it", "[data]") {
  TempDirectory directory;
  const auto advice = [&](const std::string& name, const std::string& content) {
    return data_refusal({directory.write(name, content), "", 0, 151'936, 1});
  };
  const std::string int32 = some_tokens<std::int32_t>(1000, 50'257),
                    uint16 = some_tokens<std::uint16_t>(1000, 50'257);
  CHECK(contains(advice("raw.bin", int32),
                 "it seems to hold raw 4-byte integers (int32 or uint32): name the file .u32"));
  CHECK(contains(advice("raw.bin", some_tokens<std::int64_t>(1000, 50'257)),
                 "it seems to hold raw 8-byte integers (int64)"));
  CHECK(
      advice("raw.bin", uint16)
          .ends_with(
              "; name raw tokens of 2 bytes (uint16) .u16, and of 4 bytes (uint32, and Megatron's int32) .u32"));
  // Megatron's index names the type.
  const auto with_index = [&](char type, const std::string& content) {
    directory.write("meg.idx", std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17) + type + std::string(32, '\0'));
    return advice("meg.bin", content);
  };
  CHECK(contains(with_index(4, int32), "Megatron's: int32 tokens: name a link to it, or a copy, .u32"));
  CHECK(contains(with_index(8, uint16), "Megatron's: uint16 tokens: name a link to it, or a copy, .u16"));
  CHECK(contains(with_index(5, int32), "Megatron's: 8-byte integers (int64): write them"));
  // The advice is right: the same bytes under that name are these tokens.
  const std::string renamed = directory.write("meg.u32", int32);
  CHECK(data_refusal({renamed, "", 0, 50'257, 1}).empty());
}

TEST_CASE("token_warnings: uint16 tokens for a vocabulary beyond 65,536 have a warning", "[data]") {
  TempDirectory directory;
  const std::string path = directory.write("a.u16", some_tokens<std::uint16_t>(100, 60'000)),
                    wide = directory.write("a.u32", some_tokens<std::uint32_t>(100, 60'000));
  const auto warnings = [](const std::string& file, std::int64_t vocab) {
    return token_warnings(*open_data({file, "", 0, vocab, 1}), "a");
  };
  CHECK(warnings(path, 65'536).empty());
  CHECK(warnings(path, 151'936) ==
        std::vector<std::string>{"uint16 tokens: the vocabulary has 151936 tokens, and a cannot hold ids above 65535: "
                                 "tokens of this model belong in a .u32 file"});
  CHECK(warnings(wide, 151'936).empty());
  CHECK(warnings("", 151'936).empty());  // synthetic
}

TEST_CASE("reads_bytes: text and documents with text are read as bytes", "[data]") {
  TempDirectory directory;
  const auto are_bytes = [](const std::string& path) { return reads_bytes(*open_data({path, "", 0, 1024, 4})); };
  const std::string folder = directory / "folder";
  directory.write("folder/d.jsonl", "{\"prompt\": [1]}");
  CHECK(are_bytes(directory.write("a.txt", std::string(100, 'x'))));
  CHECK(are_bytes(folder));
  CHECK(are_bytes(directory.write("d.jsonl", R"({"prompt": [1], "answer": "a"})")));
  CHECK_FALSE(are_bytes(directory.write("ids.jsonl", R"({"prompt": [1], "answer": [2]})")));
  CHECK_FALSE(are_bytes(directory.write("a.u16", some_tokens<std::uint16_t>(100, 256))));
  CHECK_FALSE(are_bytes(""));  // synthetic
}

TEST_CASE("open_data: binary files are refused by signature and by name", "[data]") {
  TempDirectory directory;
  using namespace std::string_literals;
  const std::string text(600, 'a');
  std::string tar = text, safetensors = "\x10\0\0\0\0\0\0\0{\"x\":1}"s + text;
  tar.replace(257, 5, "ustar");
  const auto says = [&](const std::string& name, const std::string& content) {
    return data_refusal({directory.write(name, content), "", 0, 256, 4});
  };
  const std::vector<std::pair<std::string, std::string>> contents = {
      {"\x1f\x8b\x08\0"s, "gzip-compressed"},  {"\x28\xb5\x2f\xfd"s, "zstd-compressed"},
      {"\xfd\x37zXZ\0"s, "xz-compressed"},     {"BZh91AY&SY"s, "bzip2-compressed"},
      {"\x93NUMPY\x01\0"s, "a NumPy array"},   {"PK\x03\x04"s, "a zip archive"},
      {"\x89HDF\r\n\x1a\n"s, "an HDF5 file"},  {"ARROW1\0\0"s, "an Arrow table"},
      {"%PDF-1.7"s, "a PDF document"},         {"\xff\xfeh\0i\0"s, "text in UTF-16"},
      {"abc\0def"s, "a binary file, not text"}};
  for (const auto& [start, what] : contents) {
    INFO(what);
    CHECK(contains(says("data", start + text), "data: " + what));
    CHECK(contains(says("data.txt", start + text), "data.txt: " + what));
  }
  CHECK(contains(says("table", "PAR1" + text + "PAR1"), "a Parquet table"));
  CHECK(contains(says("archive", tar), "a tar archive: unpack it first (tar -xf)"));
  CHECK(contains(says("weights", safetensors), "weights, not text: --init-from takes them"));
  // By name, whatever their contents.
  for (const char* name : {"a.gz", "a.GZ", "a.npy", "a.npz", "a.parquet", "a.zst", "a.xz", "a.bz2", "a.zip",
                           "a.safetensors", "a.arrow", "a.pt", "a.pkl", "a.h5"})
    CHECK(contains(says(name, text), std::string(name) + ": "));
}

TEST_CASE("open_data: text that resembles a signature and tokens of any bytes are accepted", "[data]") {
  TempDirectory directory;
  const std::string text(600, 'a');
  for (const std::string start :
       {"BZh of text", "PAR1 ", "PK", "Rar", "\xef\xbb\xbf text", "{\"text\": 1}\n"})
    for (const char* name : {"a.txt", "a.json", "a.md", "a"})
      CHECK(data_refusal({directory.write(name, start + text), "", 0, 256, 4}).empty());
  CHECK(data_refusal({directory.write("a.u16", "\x1f\x8b" + text), "", 0, 65536, 4}).empty());
  CHECK(contains(data_refusal({directory.write("b.u16", "\x93NUMPY" + text), "", 0, 65536, 4}),
                 "a NumPy array"));
}

TEST_CASE("open_data: files truncated within a signature cause no exception", "[data]") {
  TempDirectory directory;
  std::string tar(600, 'a');
  tar.replace(257, 5, "ustar");
  for (const std::string& whole : {std::string("BZh91AY&SY"), std::string("PAR1PAR1PAR1"),
                                   std::string("\x10\0\0\0\0\0\0\0{\"x\":1}", 15), tar})
    for (std::size_t size = 1; size < whole.size(); ++size) {
      INFO(whole.substr(0, 12) << ", the first " << size << " bytes");
      // The longest sequence that fits, so that only the signature can cause a refusal.
      const auto T = std::max<std::int64_t>(1, static_cast<std::int64_t>(size) - 1);
      CHECK_NOTHROW(data_refusal({directory.write("data", whole.substr(0, size)), "", 0, 256, T}));
    }
  CHECK(data_refusal({directory.write("data", "BZh"), "", 0, 256, 2}).empty());
}

TEST_CASE("open_data: a binary file in a folder is named with a hint at --glob", "[data]") {
  TempDirectory directory;
  directory.write("d/a.txt", "hello hello");
  directory.write("d/b.png", std::string("\x89PNG\r\n\x1a\n\0\0", 10));
  CHECK(contains(data_refusal({directory / "d", "", 0, 256, 4}), "b.png: a binary file, not text"));
  CHECK(contains(data_refusal({directory / "d", "", 0, 256, 4}), "; or leave it out with --glob"));
  CHECK(data_refusal({directory / "d", "*.txt", 0, 256, 4}).empty());
}
