// Fuzzes training data. The first bytes select kind, vocabulary and sequence length, the others are the file.
#include <algorithm>
#include <iterator>
#include <vector>

#include "models/data/data.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(data) {
  constexpr std::size_t kChoices = 3;
  constexpr const char* kNames[] = {"text.txt", "tokens.bin", "tokens.u16", "tokens.u32", "documents.jsonl"};
  if (size < kChoices) return 0;
  DataOptions options;
  options.path = scratch().write(kNames[data[0] % std::size(kNames)],
                                 std::string(text_of(data + kChoices, size - kChoices)));
  options.seed = data[0];
  options.vocab = std::int64_t{1} << data[1] % 33;
  options.T = data[2];
  options.packed = data[0] / std::size(kNames) % 2 == 1;
  taken([&] {
    const auto source = open_data(options);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.T) + 1);
    for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
      source->sequence(index, options.T, tokens.data());
      for (const std::int32_t token : tokens) expect(token >= 0 && token < options.vocab);
      std::vector<std::uint8_t> counted(static_cast<std::size_t>(options.T));
      source->mark_counted(index, options.T, counted.data());
      const auto marked = std::count(counted.begin(), counted.end(), 1);
      expect(marked > 0 && marked == source->counted_targets(index, options.T));
      std::vector<std::int32_t> first(static_cast<std::size_t>(options.T));
      source->mark_documents(index, options.T, first.data());
      for (std::int64_t t = 0; t < options.T; ++t)
        expect(first[t] <= t && first[t] >= (t > 0 ? first[t - 1] : 0));
    }
  });
  return 0;
}
