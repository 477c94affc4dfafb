// Text for models whose weights are loaded: refusals, and the commands in them.
#include "bench/case/trained_text.h"

#include <fmt/format.h>

#include "bench/case/definition.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/checkpoint/safetensors.h"

using namespace precbench;

namespace {

constexpr float kValue[] = {1};

void write_weights(const std::string& path, const std::map<std::string, std::string>& metadata) {
  write_safetensors(path, {{"w", "F32", {1}, kValue}}, metadata);
}

ModelConfig with_vocab(std::int64_t vocab) {
  ModelConfig model = find_model("tiny");
  model.vocab = vocab;
  return model;
}

}  // namespace

TEST_CASE("text_refusal: text for trained weights is refused with the command that makes tokens of it",
          "[data]") {
  const TempDirectory directory;
  const std::string folder = directory / "my model";
  directory.write("my model/tokenizer.json", "{}");
  write_weights(directory / "my model/model.safetensors", {{"format", "pt"}});
  Case c;
  c.init_from = folder;
  const auto refusal = [&](std::int64_t vocab, const std::string& path, const std::string& flag = "--data") {
    return text_refusal(c, with_vocab(vocab), flag, path);
  };
  const std::string
      start = "text is read as bytes, but the weights of --init-from know the ids of a vocabulary of ",
      with = "; make tokens of it with tools/data/tokenize_text.py --tokenizer '" + folder + "' --out ";
  CHECK(refusal(1024, "texts/my text.txt") ==
        start + "1024" + with + "'my text-tokens' 'texts/my text.txt', then --data 'my text-tokens.u16'");
  CHECK(refusal(65537, "texts/") ==
        start + "65537" + with + "texts-tokens texts/, then --data texts-tokens.u32");
  CHECK(refusal(65536, ".") == start + "65536" + with + "tokens ., then --data tokens.u16");
  CHECK(refusal(1024, "held.txt", "--eval-data") ==
        start + "1024; make tokens of it with tools/data/tokenize_text.py --tokenizer '" + folder +
            "' --held-out 0 --out held-tokens held.txt, then --eval-data held-tokens.u16");
  CHECK(refusal(1024, "it's.jsonl") ==
        start + "1024; make tokens of it with tools/data/tokenize_chats.py --tokenizer '" + folder +
            "' --out 'it'\\''s-tokens' 'it'\\''s.jsonl', then --data " + "'it'\\''s-tokens.jsonl'");
  // The weights' own file, and a tokenizer beside the model alone.
  c.init_from = folder + "/model.safetensors";
  CHECK(contains(refusal(1024, "a.txt"), "--tokenizer '" + folder + "' "));
  write_weights(directory / "bare.safetensors", {});
  c.init_from = directory / "bare.safetensors";
  CHECK(contains(refusal(1024, "a.txt"), "--tokenizer FOLDER_OF_TOKENIZER_JSON "));
  for (const std::string& model : {folder, folder + "/config.json"}) {
    c.model = model;
    CHECK(contains(refusal(1024, "a.txt"), "--tokenizer '" + folder + "' "));
  }
}

TEST_CASE(
    "text_refusal: text is read by random weights, by bytes, and by weights that precbench trained on it",
    "[data]") {
  const TempDirectory directory;
  Case c;
  const auto is_refused = [&](std::int64_t vocab = 1024) {
    return !text_refusal(c, with_vocab(vocab), "--data", "a.txt").empty();
  };
  CHECK_FALSE(is_refused());
  write_weights(directory / "a.safetensors", {});
  c.init_from = directory / "a.safetensors";
  CHECK(is_refused());
  CHECK_FALSE(is_refused(256));
  const auto with_metadata = [&](const std::string& name,
                                 const std::map<std::string, std::string>& metadata) {
    c.init_from = directory / name;
    write_weights(c.init_from, metadata);
    return is_refused();
  };
  CHECK_FALSE(with_metadata("earlier.safetensors", {{"model", "{}"}}));
  CHECK_FALSE(with_metadata("bytes.safetensors", {{"model", "{}"}, {"tokens", "bytes"}}));
  CHECK(std::string(tokens_of_saved(c, "text")) == kTokensAreBytes);
  CHECK(with_metadata("ids.safetensors", {{"model", "{}"}, {"tokens", "ids"}}));
  CHECK(std::string(tokens_of_saved(c, "jsonl")) == kTokensAreIds);  // documents that continue weights of ids
  c.init_from = directory / "none.safetensors";
  CHECK_FALSE(is_refused());  // its own message says so
  CHECK(std::string(tokens_of_saved(c, "u16")) == kTokensAreIds);
  // A trunk's checkpoint tells the data of its run.
  for (const auto& [kind, refused] :
       {std::pair("text", false), std::pair("u32", true), std::pair("jsonl", false)}) {
    Case fork;
    fork.fork_from = directory / kind;
    directory.write(std::string(kind) + "/state.json",
                    fmt::format(R"({{"definition": {{"data": {{"kind": "{}"}}}}}})", kind));
    CHECK(text_refusal(fork, with_vocab(1024), "--data", "a.txt").empty() == !refused);
  }
}
