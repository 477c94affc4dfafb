// Sweep files: keys, sections, errors.
#include "bench/cli/config_file.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

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

TEST_CASE("sweep file: keys are field names in snake_case or kebab-case", "[sweep-file]") {
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
  const Axes& axes = file.grids[0].axes;
  CHECK(axes.at("model") == Words{"tiny"});
  CHECK(axes.at("seq") == Words{"128-512*2"});
  CHECK(axes.at("recipe") == Words{"bf16", "mxfp8"});
  CHECK(axes.at("gpus") == Words{"1", "2"});
  CHECK(axes.at("weight_decay") == Words{"0.1"});
  CHECK(file.out == "there");
  CHECK(file.timeout_s == 30);
  CHECK(!file.interleave);
}

TEST_CASE("sweep file: quoted keys and underscores in numbers, as other programs write TOML",
          "[sweep-file]") {
  CHECK(read("\"seq\" = 1_024\n'steps' = [10, 2_000]\n").grids[0].axes ==
        Axes{{"seq", {"1024"}}, {"steps", {"10", "2000"}}});
  CHECK(read("lr = 1_0e-1_0\n").grids[0].axes.at("lr") == std::vector<std::string>{"10e-10"});
  for (const char* bad : {"seq = 1__0\n", "seq = 10_\n", "seq = _10\n"}) {
    INFO(bad);
    CHECK(refusal(bad).starts_with(":1: --seq: "));
  }
}

TEST_CASE("sweep file: keys may be second names of fields", "[sweep-file]") {
  const Axes axes = read("master_dtype = [\"fp32\", \"bf16\"]\nlm-head = \"recipe\"\n").grids[0].axes;
  CHECK(axes == Axes{{"master", {"fp32", "bf16"}}, {"head", {"recipe"}}});
  CHECK(refusal("master_dtyp = 1\n") == ":1: unknown key master_dtyp; did you mean master_dtype?");
  CHECK(refusal("grouped = \"loop\"\n") ==
        ":1: unknown key grouped; removed: experts run in the fastest grouped GEMM that the GPU supports");
  CHECK(refusal("clip = 1\ngrad_clip = 2\n") == ":2: clip is given twice, first in line 1");
}

TEST_CASE("sweep file: a UTF-8 byte order mark is skipped and UTF-16 is refused", "[sweep-file]") {
  CHECK(read("\xEF\xBB\xBFmodel = \"tiny\"\r\n").grids.front().axes.at("model") == Words{"tiny"});
  CHECK(read("\xEF\xBB\xBF[small]\nmodel = \"tiny\"\n").grids.front().section == "small");
  const TempDirectory directory;
  const std::string path = directory.write("wide.toml", std::string("\xFF\xFEs\0", 4));
  CHECK(refusal_of([&] { read_sweep_file(path); }) == "--config: " + path + ": UTF-16; save it as UTF-8");
}

TEST_CASE("sweep file: a list may span lines", "[sweep-file]") {
  CHECK(read("recipe = [\"bf16\",\n  \"mxfp8\"]\n").grids[0].axes.at("recipe") == Words{"bf16", "mxfp8"});
}

TEST_CASE("sweep file: each section is a separate grid on top of the common keys", "[sweep-file]") {
  const SweepFile file = read(
      "seed = 42\n"
      "seq = 2048\n"
      "[small-model]\n"
      "model = \"llama3.2-1b\"\n"
      "[large]\n"
      "model = \"llama3.1-8b\"\n"
      "seq = 8192\n");
  REQUIRE(file.grids.size() == 2);
  CHECK(file.grids[0].section == "small-model");
  CHECK(file.grids[0].axes.at("model") == Words{"llama3.2-1b"});
  CHECK(file.grids[0].axes.at("seq") == Words{"2048"});
  CHECK(file.grids[1].axes.at("seq") == Words{"8192"});
  CHECK(file.grids[1].axes.at("seed") == Words{"42"});
}

TEST_CASE("sweep file: values may be bare or quoted or lists of both", "[sweep-file]") {
  const SweepFile file = read(
      "glob = 'a\\b # no comment'#comment\r\n"
      "data = \"a \\\"b\\\" \\\\\"\n"
      "seq=64-256*2\n"
      "gpus = [ 1,2, # ranks\n  '3-4',\n]\n"
      "out = \"\"");
  const Axes& axes = file.grids[0].axes;
  CHECK(axes.at("glob") == Words{"a\\b # no comment"});
  CHECK(axes.at("data") == Words{"a \"b\" \\"});
  CHECK(axes.at("seq") == Words{"64-256*2"});
  CHECK(axes.at("gpus") == Words{"1", "2", "3-4"});
  CHECK(file.out == "");
  CHECK(read("").grids.size() == 1);
}

TEST_CASE("sweep file: a syntax error or unknown key is refused with its line", "[sweep-file]") {
  CHECK(refusal("modle = \"tiny\"\n") == ":1: unknown key modle; did you mean model?");
  CHECK(refusal("[a]\nweight-decy = 1\n") == ":2: unknown key weight-decy; did you mean weight_decay?");
  CHECK(refusal("xyzzyxyzzyx = 1\n") == ":1: unknown key xyzzyxyzzyx; see precbench sweep --help");
  CHECK(refusal("[a]\nout = \"x\"\n") == ":2: out belongs before the first section");
  CHECK(refusal("seq = 64\n\nseq 128\n") == ":3: seq 128: = and a value are missing");
  CHECK(refusal("seq = 64 128\n") == ":1: expected [section], or key = value with a word or a [list]");
  CHECK(refusal("seq = [64 128]\n") == ":1: values of a list are separated by commas");
  CHECK(refusal("[[a]]\n") == ":1: expected [name]");
  CHECK(refusal("[a\nseq = 64\n") == ":1: expected [name]");
  CHECK_THROWS_WITH(read_sweep_file("none.toml"), "--config: none.toml: no such file");
  CHECK_THROWS_WITH(read_sweep_file("/"), "--config: /: a folder, not a file");
}

TEST_CASE("sweep file: a repeated key or section is refused", "[sweep-file]") {
  CHECK(refusal("model = tiny\nseq = 128\nmodel = 15m\n") == ":3: model is given twice, first in line 1");
  CHECK(refusal("steps = 1\nsteps = 2\n") == ":2: steps is given twice, first in line 1");
  CHECK(refusal("timeout = 1\ntimeout = 2\n") == ":2: timeout is given twice, first in line 1");
  CHECK(refusal("[a]\nweight-decay = 1\nweight_decay = 0\n") ==
        ":3: weight_decay of [a] is given twice, first in line 2");
  CHECK(refusal("[a]\nsteps = 1\n[b]\nsteps = 1\n[ a ]\nseq = 64\n") ==
        ":5: [a] is given twice, first in line 1");
}

TEST_CASE("sweep file: an unclosed quote or list is refused", "[sweep-file]") {
  CHECK(refusal("seq = 64\nmodel = \"tiny\nseed = 1\n") == ":2: the quote is not closed: \"tiny");
  CHECK(refusal("recipe = ['bf16]") == ":1: the quote is not closed: 'bf16]");
  CHECK(refusal("recipe = [\"bf16\",\n\"mxfp8\"\n\n") == ":1: the list is not closed");
  CHECK(refusal("data = \"C:\\new\"\n").starts_with(":1: only \" and \\ may follow a backslash"));
}

TEST_CASE("sweep file: an invalid value is refused with its line", "[sweep-file]") {
  CHECK(refusal("seed = 1\n[a]\nseq = 0\n") == ":3: --seq: must be at least 1, not 0");
  CHECK(refusal("seq = []\n") == ":1: --seq: empty axis");
  CHECK(refusal("seq =\n") == ":1: --seq: empty value in \"\"");
  CHECK(refusal("gpus = [1, \"4-2\"]\n") == ":1: --gpus: range 4-2 starts above its end");
  CHECK(refusal("recipe = [\"bf16\", \"mxfp9\"]\n").starts_with(":1: unknown recipe \"mxfp9\""));
  CHECK(refusal("seq = [64,\n128,\n0]\n") == ":1: --seq: must be at least 1, not 0");  // the line of the key
  CHECK(refusal("model = tinny\n") == ":1: unknown model \"tinny\"; did you mean tiny?");
  CHECK(refusal("warmup = [1, 2]\n") == ":1: warmup takes one value");
  CHECK(refusal("timeout = soon\n") ==
        ":1: --timeout: \"soon\" is not a number of seconds, such as 90, 10s, 30m or 2h");
  CHECK(refusal("interleave = maybe\n") == ":1: interleave: \"maybe\" is neither true nor false");
}
