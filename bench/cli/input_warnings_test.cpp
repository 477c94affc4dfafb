// Doubts about data and weights, which run, sweep and study print before they start, and refusals of text for trained
// weights.
#include <fmt/format.h>

#include <filesystem>

#include "bench/cli/cli_testing.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/checkpoint/safetensors.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr const char* kFlags = " --device cpu --recipe bf16 --seq 32 --batch 1";

/// Returns the path of a small model with tied embeddings.
std::string small_model(const TempDirectory& directory, int vocab) {
  return directory.write(
      "model/config.json",
      fmt::format(R"({{"layers": 1, "width": 16, "ffn": 32, "heads": 2, "vocab": {}, "tied": true}})",
                  vocab));
}

/// Writes weights of the model with random values and, beside them, `more`. Without metadata they are not precbench's
/// own.
std::string weights_of(const TempDirectory& directory, const std::string& model,
                       std::vector<NamedTensor> more) {
  const std::string first = directory / "first.safetensors", path = directory / "model/model.safetensors";
  const Answer answer = precbench_says("run --model " + model + kFlags + " --steps 1 --save-init " + first);
  INFO(answer.text);
  REQUIRE(answer.status == 0);
  const SafetensorsFile file(first);
  for (const StoredTensor& stored : file.tensors())
    more.push_back({stored.name, stored.dtype, stored.shape, stored.data});
  write_safetensors(path, more, {{"format", "pt"}});
  return path;
}

std::string study_file(const TempDirectory& directory) {
  return directory.write(
      "study.toml", "[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = 3\nages = [2]\n[fork]\nsteps = 12\n");
}

/// Returns how often `part` occurs in `text`.
int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("run, sweep, study: tensors that are left out are printed at once", "[cli]") {
  const TempDirectory directory;
  const std::string model = small_model(directory, 256);
  const std::vector<float> ones(256 * 16, 1.0f);
  const std::string weights =
      weights_of(directory, model,
                 {{"lm_head.weight", "F32", {256, 16}, ones.data()},
                  {"model.layers.0.self_attn.q_proj.bias", "F32", {16}, ones.data()}});
  const std::string
      head = "precbench: --init-from: " + weights +
             ": lm_head.weight differs from model.embed_tokens.weight, which the model uses as its head too "
             "(tied); it was left out\n",
      bias = "precbench: --init-from: 1 tensor of " + weights +
             " is not part of the model and was left out: model.layers.0.self_attn.q_proj.bias\n";
  const std::string text = directory.write("text.txt", std::string(20'000, 'x')),
                    flags =
                        " --model " + (directory / "model") + " --init-from " + weights + " --data " + text;
  const std::string out = directory / "out";
  for (const std::string& command :
       {"run" + flags + kFlags + " --steps 2", "sweep" + flags + kFlags + " --steps 2,3 --out " + out,
        "sweep --dry-run" + flags + kFlags + " --steps 2",
        "study --device cpu --recipe rowwise --dry-run" + flags + " --config " + study_file(directory) +
            " --out " + out}) {
    INFO(command);
    const Answer answer = precbench_says(command);
    INFO(answer.text);
    CHECK(answer.status == 0);
    CHECK(count_of(answer.text, head) == 1);
    CHECK(count_of(answer.text, bias) == 1);
    if (command.starts_with("run")) CHECK(answer.text.find(bias) < answer.text.find("\"status\""));
  }
}

TEST_CASE("run, sweep, study: text for trained weights is refused with the command that tokenizes it",
          "[cli]") {
  const TempDirectory directory;
  const std::string model = small_model(directory, 300);
  const std::string weights = weights_of(directory, model, {});
  directory.write("model/tokenizer.json", "{" + std::string(200, ' ') + "}");
  const std::string text = directory.write("text.txt", std::string(20'000, 'x')),
                    lines = directory.write("documents.jsonl", R"({"prompt": "a", "answer": "b"})"),
                    folder = directory / "model",
                    tokens = directory.write("ids.u16", std::string(20'000, '\0'));
  const auto remedy = [&](const char* script, const std::string& out, const std::string& input) {
    return fmt::format("tools/data/{} --tokenizer {} --out {} {}", script, folder, out, input);
  };
  const std::string reason =
      ": text is read as bytes, but the weights of --init-from know the ids of a vocabulary of 300; make "
      "tokens of it with ";
  for (const std::string& init : {weights, folder}) {
    const std::string flags = " --model " + folder + " --init-from " + init;
    const std::string line = "precbench: " + text + reason + remedy("tokenize_text.py", "text-tokens", text) +
                             ", then --data text-tokens.u16";
    for (const char* command : {"run", "sweep", "sweep --dry-run"})
      CHECK(refused(command + flags + kFlags + " --steps 2 --data " + text) == line);
    CHECK(refused("study --device cpu --recipe rowwise --config " + study_file(directory) + flags +
                  " --data " + text) == line);
    CHECK(refused("sweep" + flags + kFlags + " --steps 2 --data " + lines) ==
          "precbench: " + lines + reason + remedy("tokenize_chats.py", "documents-tokens", lines) +
              ", then --data documents-tokens.jsonl");
    CHECK(refused("sweep" + flags + kFlags + " --steps 2 --eval-tokens 32 --data " + tokens +
                  " --eval-data " + text) ==
          "precbench: --eval-data: " + text + reason + "tools/data/tokenize_text.py --tokenizer " + folder +
              " --held-out 0 --out text-tokens " + text + ", then --eval-data text-tokens.u16");
    // Files that are no text at all, but were read as one.
    CHECK(refused("run" + flags + kFlags + " --steps 2 --data " + folder + "/tokenizer.json")
              .starts_with("precbench: " + folder + "/tokenizer.json: text is read as bytes"));
    CHECK(precbench_says("run" + flags + kFlags + " --steps 2 --data " + tokens).status == 0);
  }
  // Weights of our own that were trained on text go on with it.
  const std::string own = directory / "own.safetensors";
  REQUIRE(
      precbench_says("run --model " + model + kFlags + " --steps 1 --data " + text + " --save-final " + own)
          .status == 0);
  CHECK(precbench_says("run --model " + model + kFlags + " --steps 1 --data " + text + " --init-from " + own)
            .status == 0);
}

TEST_CASE("run, sweep: uint16 tokens for a large vocabulary are doubted at once", "[cli]") {
  const TempDirectory directory;
  const std::string model = small_model(directory, 70'000),
                    tokens = directory.write("ids.u16", std::string(1000, '\1'));
  const std::string line = "precbench: uint16 tokens: the vocabulary has 70000 tokens, and " + tokens +
                           " cannot hold ids above 65535: tokens of this model belong in a .u32 file\n";
  for (const char* command : {"run", "sweep --quiet --out "}) {
    const std::string out = std::string(command) == "run" ? "" : directory / "out";
    const Answer answer =
        precbench_says(command + out + " --model " + model + kFlags + " --steps 1 --data " + tokens);
    INFO(answer.text);
    CHECK(answer.status == 0);
    CHECK(count_of(answer.text, line) == 1);
  }
}

TEST_CASE("sweep: a raised number of steps starts anew beside its checkpoints, and says so",
          "[cli][checkpoint]") {
  const TempDirectory directory;
  const std::string sweep = "sweep --model " + small_model(directory, 256) + kFlags +
                            " --quiet --checkpoint-every 2 --out " + (directory / "out") + " --steps ";
  const auto said = [&](const std::string& steps) {
    const Answer answer = precbench_says(sweep + steps);
    INFO(answer.text);
    CHECK(answer.status == 0);
    return answer.text;
  };
  const std::string anew = "precbench: --steps 6: starts anew, though " + (directory / "out/checkpoints/");
  CHECK(count_of(said("4"), "starts anew") == 0);
  CHECK(count_of(said("4"), "starts anew") == 0);  // finished
  const std::string text = said("6");
  CHECK(count_of(text, anew) == 1);
  CHECK(count_of(text,
                 "/step-000004 has the same case with --steps 4: the number of steps is part of a case; "
                 "--fork-from continues from a checkpoint as a case of its own\n") == 1);
  CHECK(count_of(said("4,6"), "starts anew") == 0);
  CHECK(count_of(said("8 --lr 1e-2"), "starts anew") == 0);  // other work
  namespace fs = std::filesystem;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(directory / "out/checkpoints"))
    folders.push_back(entry.path());
  REQUIRE(folders.size() == 3);
  for (const fs::path& folder : folders) fs::rename(folder, folder.string() + "-kept");
  CHECK(count_of(said("8"), "starts anew") == 0);
}

TEST_CASE("study: adapters beside a random model are doubted", "[cli][lora]") {
  const TempDirectory directory;
  const std::string model = small_model(directory, 256), weights = weights_of(directory, model, {}),
                    text = directory.write("text.txt", std::string(20'000, 'x'));
  const auto said = [&](const std::string& more) {
    const Answer answer =
        precbench_says("study --device cpu --recipe rowwise --dry-run --model " + model + " --data " + text +
                       " --config " + study_file(directory) + " --out " + (directory / "out") + more);
    INFO(answer.text);
    CHECK(answer.status == 0);
    return count_of(answer.text, "precbench: --lora without --init-from: the frozen model is random, ");
  };
  CHECK(said(" --lora 2") == 1);
  CHECK(said(" --lora 2 --init-from " + weights) == 0);
  CHECK(said("") == 0);
}
