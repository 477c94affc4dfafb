// Sweep files: keys, sections, refusals.
#include "bench/config_file.h"

#include "tools/catch.h"
#include "tools/temp_directory.h"
#include "tools/test_text.h"

using namespace precbench;

namespace {

using Words = std::vector<std::string>;

SweepFile read(const std::string& text) {
  const TempDirectory directory;
  return read_sweep_file(directory.write("sweep.toml", text));
}

std::string refusal(const std::string& text) {
  const TempDirectory directory;
  const std::string path = directory.write("sweep.toml", text);
  const std::string message = refusal_of([&] { read_sweep_file(path); });
  REQUIRE(message.starts_with(path));
  return message.substr(path.size());
}

}  // namespace

TEST_CASE("keys of a sweep file are the fields, in either spelling", "[sweep-file]") {
  const SweepFile file = read(
      "# comment\n"
      "model = \"tiny\"\n"
      "seq = \"128-512*2\"\n"
      "recipe = [\"bf16\", \"mxfp8\"]\n"
      "gpus = [1, 2]  # ranks\n"
      "keep-bf16 = \"first:1,last:1\"\n"
      "weight_decay = 0.1\n"
      "out = \"there\"\n"
      "timeout = 30\n");
  REQUIRE(file.grids.size() == 1);
  const Axes& axes = file.grids[0];
  CHECK(axes.at("model") == Words{"tiny"});
  CHECK(axes.at("seq") == Words{"128-512*2"});
  CHECK(axes.at("recipe") == Words{"bf16", "mxfp8"});
  CHECK(axes.at("gpus") == Words{"1", "2"});
  CHECK(axes.at("weight_decay") == Words{"0.1"});
  CHECK(file.options.at("out") == "there");
  CHECK(file.options.at("timeout") == "30");
}

TEST_CASE("a list may span lines", "[sweep-file]") {
  CHECK(read("recipe = [\"bf16\",\n  \"mxfp8\"]\n").grids[0].at("recipe") == Words{"bf16", "mxfp8"});
}

TEST_CASE("each section is a grid of its own on top of the common keys", "[sweep-file]") {
  const SweepFile file = read(
      "seed = 42\n"
      "seq = 2048\n"
      "[small-model]\n"
      "model = \"llama3.2-1b\"\n"
      "[large]\n"
      "model = \"llama3.1-8b\"\n"
      "seq = 8192\n");
  REQUIRE(file.grids.size() == 2);
  CHECK(file.grids[0].at("model") == Words{"llama3.2-1b"});
  CHECK(file.grids[0].at("seq") == Words{"2048"});
  CHECK(file.grids[1].at("seq") == Words{"8192"});
  CHECK(file.grids[1].at("seed") == Words{"42"});
}

TEST_CASE("a bad sweep file is refused in one line with the place", "[sweep-file]") {
  CHECK(refusal("modle = \"tiny\"\n") == ": unknown key modle; did you mean model?");
  CHECK(refusal("[a]\nweight-decy = 1\n") == ": unknown key weight-decy; did you mean weight_decay?");
  CHECK(refusal("xyzzyxyzzyx = 1\n") == ": unknown key xyzzyxyzzyx; precbench sweep --help lists the fields");
  CHECK(refusal("model = \"tiny\"\nseq = 128\nmodel = \"15m\"\n") == ": model is given twice");
  CHECK(refusal("[a]\nout = \"x\"\n") == ": out belongs before the first section");
  CHECK_THROWS_WITH(read_sweep_file("none.toml"), "--config: none.toml: No such file or directory");
}
