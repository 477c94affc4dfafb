// Tests names derived from untrusted text.
#include "tools/text/text.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("file_name: consists of letters and digits and dots and single hyphens", "[text]") {
  CHECK(file_name("speed NVIDIA H200, llama3.1-8b") == "speed-nvidia-h200-llama3.1-8b");
  CHECK(file_name(" ../../a//b\\c ") == "..-..-a-b-c");
  CHECK(file_name("\u00fcber\n") == "ber");
}

TEST_CASE("file_name: a long name is cut and stays distinct", "[text]") {
  CHECK(file_name(std::string(120, 'x')) == std::string(120, 'x'));
  const std::string cut = file_name(std::string(121, 'x'));
  CHECK(cut.size() == 120);
  CHECK(cut.substr(0, 104) == std::string(103, 'x') + "-");
  const std::string base(5000, 'm');
  CHECK(file_name(base + " seq 1024") != file_name(base + " seq 2048"));
  CHECK(file_name(base + " seq 1024") == file_name(base + " seq 1024"));
  CHECK(file_name(base + "/") != file_name(base + "\\"));  // differ only in characters that names omit
}
