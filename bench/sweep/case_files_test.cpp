// Checks of a case's files before anything runs: refusals, their texts, and files left behind.
#include "bench/sweep/case_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/checkpoint/safetensors.h"
#include "models/transformer/parallel/parameters.h"

using namespace precbench;

namespace {

std::string refusal(const std::vector<Case>& cases) {
  return refusal_of([&] { check_files(validate(cases)); });
}

}  // namespace

TEST_CASE("check_files: inputs are checked before a sweep starts", "[files]") {
  const TempDirectory directory;
  Case c;
  c.data = directory.write("text.txt", std::string(200, 'x'));
  CHECK(refusal({c}) == "");
  Case longer = c;
  longer.seq = 256;
  CHECK(refusal({c, longer}).find("text.txt") != std::string::npos);
  c.init_from = directory / "none.safetensors";
  CHECK(refusal({c}) == "--init-from: " + c.init_from + ": No such file or directory");
}

TEST_CASE("check_files: documents must fit into the shortest sequence of a sweep", "[files][documents]") {
  const TempDirectory directory;
  Case c;
  c.data = directory.write("chat.jsonl",
                           R"({"prompt": "a question", "answer": "and its answer of forty letters or so"})");
  c.seq = 64;
  CHECK(refusal({c}) == "");
  Case shorter = c;
  shorter.seq = 32;
  CHECK(refusal({c, shorter}) ==
        c.data + ": line 1: 48 tokens are more than a sequence of length 32 holds (33)");
}

TEST_CASE("check_files: missing or short held-out text is refused", "[files][held_out]") {
  const TempDirectory directory;
  Case c;
  c.eval_data = directory / "none.u16";
  CHECK(refusal({c}) == "--eval-data: " + c.eval_data + ": cannot be read (No such file or directory)");
  c.eval_data =
      directory.write("held.txt", std::string(129 + 128, 'x'));  // 2 sequences of 128 tokens and a next one
  c.eval_tokens = 256;
  CHECK(refusal({c}) == "");
  c.eval_tokens = 257;
  CHECK(refusal({c}) ==
        "--eval-data: " + c.eval_data + ": holds 2 sequences of 128 tokens, --eval-tokens 257 needs 3");
  c.eval_tokens = std::numeric_limits<std::int64_t>::max();
  CHECK(refusal({c}).ends_with("--eval-tokens 9223372036854775807 needs 72057594037927936"));
}

TEST_CASE("check_files: outputs must be writable and their folders are created", "[files]") {
  const TempDirectory directory;
  Case c;
  c.save_init = directory / "new/folder/init.safetensors";
  c.save_final = directory.write("final.safetensors", "old");
  CHECK(refusal({c}) == "");
  CHECK(std::filesystem::is_directory(directory / "new/folder"));
  CHECK(!std::filesystem::exists(c.save_init));  // no trace of the test file
  CHECK(std::filesystem::file_size(c.save_final) == 3);

  c.save_grads = directory / "final.safetensors/grads.safetensors";
  CHECK(refusal({c}) == "--save-grads: cannot make the folder " + c.save_final + ": Not a directory");
  c.save_grads = directory / "new";
  CHECK(refusal({c}) == "--save-grads: cannot write " + c.save_grads + ": Is a directory");
  c.save_grads = "/dev/null/grads";
  CHECK(refusal({c}).starts_with("--save-grads: cannot make the folder /dev/null: "));
}

TEST_CASE("check_files: an unreadable checkpoint is refused", "[files]") {
  const TempDirectory directory;
  Case c;
  c.init_from = directory.write("broken.safetensors", "no checkpoint");
  CHECK(refusal({c}).starts_with(c.init_from));
}

TEST_CASE("check_files: a checkpoint with an unsupported dtype is refused", "[files]") {
  const TempDirectory directory;
  Case c;
  c.init_from = directory / "weights.safetensors";
  const Layout layout(find_model(c.model), 1);
  std::vector<NamedTensor> tensors;
  std::int64_t most = 0;
  for (const Unit& unit : layout.units())
    for (const Parameter& p : unit.parameters) {
      tensors.push_back({p.name, "F16", p.shape(), nullptr});
      most = std::max(most, p.size());
    }
  const std::vector<std::uint16_t> zeros(static_cast<std::size_t>(most));
  for (NamedTensor& tensor : tensors) tensor.data = zeros.data();
  write_safetensors(c.init_from, tensors);
  CHECK(refusal({c}) == "");
  tensors[1].dtype = "I16";
  write_safetensors(c.init_from, tensors);
  const std::string refused = fmt::format(
      "{}: tensor '{}' is I16; weights must be F32, BF16, F16 or, with scales, F8_E4M3 or F8_E5M2",
      c.init_from, tensors[1].name);
  CHECK(refusal({c}) == refused);
  CHECK(refusal_of([&] { check_inputs({validate(c)}); }) == refused);  // as in a dry run
}

TEST_CASE("check_files: checkpoints need a writable folder", "[files]") {
  const TempDirectory directory;
  Case c;
  c.checkpoint_every = 2;
  CHECK(refusal({c}) == "--checkpoint-every needs a number of steps: add --steps N");
  c.steps = 4;
  CHECK(refusal({c}) == "--checkpoint-every: no checkpoint folder: add --checkpoint-dir DIR or --out DIR");
  c.checkpoint_dir = directory / "new/checkpoints";
  CHECK(refusal({c}) == "");
  CHECK(std::filesystem::is_empty(c.checkpoint_dir));
  c.checkpoint_dir = directory.write("file", "x");
  CHECK(refusal({c}) == "--checkpoint-dir: cannot make the folder " + c.checkpoint_dir + ": Not a directory");
}

TEST_CASE("check_files: pipes and devices are neither read nor written", "[files]") {
  const TempDirectory directory;
  const std::string pipe = directory / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0644) == 0);
  for (std::string Case::*name : {&Case::init_from, &Case::data, &Case::save_final}) {
    Case c;
    c.*name = pipe;
    CHECK(refusal({c}).find(pipe) != std::string::npos);
  }
  Case device;
  device.save_final = "/dev/null";
  CHECK(refusal({device}) == "--save-final: /dev/null: not a regular file");
}

TEST_CASE("check_outputs: outputs must differ from each other and from inputs", "[files]") {
  const TempDirectory directory;
  Case c;
  c.save_init = directory / "w.safetensors";
  c.save_grads = directory / "new/../w.safetensors";
  const std::string refused =
      "--save-grads: " + c.save_grads + " is also the file of --save-init; choose another";
  CHECK(refusal({c}) == refused);
  CHECK(refusal_of([&] { check_inputs({validate(c)}); }) == refused);  // as in a dry run
  CHECK(refusal_of([&] { check_outputs(validate(c)); }) == refused);
  CHECK(!std::filesystem::exists(directory / "new"));
  c.save_grads = "";
  c.init_from = directory.write("start.safetensors", "old");
  c.save_final = std::filesystem::relative(c.init_from).string();
  CHECK(refusal_of([&] { check_outputs(validate(c)); }) ==
        "--save-final: " + c.save_final + " is also the file of --init-from; choose another");
  std::filesystem::create_directory_symlink(directory.path(), directory / "link");
  c.save_final = directory / "link/start.safetensors";
  CHECK(refusal_of([&] { check_outputs(validate(c)); }).starts_with("--save-final: "));
  c.save_final = directory / "link/final.safetensors";
  CHECK(refusal_of([&] { check_outputs(validate(c)); }) == "");
}
