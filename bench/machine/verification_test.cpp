// Kept verdicts: where they are, when they hold, and what they demote.
#include "bench/machine/verification.h"

#include <cstdlib>
#include <fstream>

#include "bench/machine/cache_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

namespace precbench {
namespace {

GpuProperties some_gpu() {
  GpuProperties gpu;
  gpu.name = "NVIDIA H200", gpu.driver = "580.1", gpu.cuda_runtime = "13.0", gpu.cublaslt = "13.1.0";
  return gpu;
}

Verification some_verification() {
  Verification v;
  v.machine = verified_machine(some_gpu());
  v.created = "2026-01-02T03:04:05Z";
  v.paths = {{"gemm a", {true, "3 checks"}}, {"gemm b", {false, "error 3, bound 2"}}};
  return v;
}

}  // namespace

TEST_CASE("write_verification: is read back for the same machine and for no other", "[doctor]") {
  const CacheFolder cache;
  const Verification v = some_verification();
  CHECK_FALSE(read_verification(v.machine));
  write_verification(v);
  const auto read = read_verification(v.machine);
  REQUIRE(read);
  CHECK(read->machine == v.machine);
  CHECK(read->created == v.created);
  CHECK_FALSE(read->trusted);
  CHECK(read->paths.at("gemm a").agrees);
  CHECK_FALSE(read->paths.at("gemm b").agrees);
  CHECK(read->paths.at("gemm b").detail == "error 3, bound 2");
  for (const auto member : {&GpuProperties::name, &GpuProperties::driver, &GpuProperties::cuda_runtime,
                            &GpuProperties::cublaslt, &GpuProperties::cudnn, &GpuProperties::nccl}) {
    GpuProperties other = some_gpu();
    other.*member += "x";
    CHECK_FALSE(read_verification(verified_machine(other)));
  }
}

TEST_CASE("read_verification: a file that is damaged or of another machine counts for nothing", "[doctor]") {
  const CacheFolder cache;
  const Verification v = some_verification();
  write_verification(v);
  const std::string file = verification_file(v.machine);
  const std::string good = file_text(file);
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), good.substr(0, good.size() / 2),
        std::string("{\"machine\": {}, \"created\": \"\", \"trusted\": false, \"paths\": {}}"),
        std::string("{\"machine\": 3}")}) {
    std::ofstream(file) << bad;
    CHECK_FALSE(read_verification(v.machine));
  }
  std::ofstream(file) << good;
  CHECK(read_verification(v.machine));
}

TEST_CASE("verification_file: XDG folder or home and nothing without both", "[doctor]") {
  const CacheFolder restores_the_variable;
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/someone", 1);
  CHECK(cache_folder() == "/home/someone/.cache/precbench");
  setenv("XDG_CACHE_HOME", "relative", 1);  // to be ignored, says the specification
  CHECK(cache_folder() == "/home/someone/.cache/precbench");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  CHECK(cache_folder() == "/cache/precbench");
  unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
  CHECK(verification_file(some_verification().machine).empty());
  CHECK_FALSE(read_verification(some_verification().machine));
  CHECK_THROWS_WITH(write_verification(some_verification()), ContainsText("neither XDG_CACHE_HOME nor HOME"));
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
}

TEST_CASE("demoted_paths: those that disagree until they are trusted", "[doctor]") {
  Verification v = some_verification();
  DemotedPaths demoted = demoted_paths(v);
  REQUIRE(demoted.size() == 1);
  CHECK(demoted.at("gemm b").find("error 3, bound 2") != std::string::npos);
  CHECK(demoted.at("gemm b").find("doctor --trust") != std::string::npos);
  v.trusted = true;
  CHECK(demoted_paths(v).empty());
  CHECK(without_demoted({}, &v).demoted.empty());
  CHECK(without_demoted({}, nullptr).demoted.empty());
}

TEST_CASE("without_demoted: the other attention implementation is chosen if it agrees", "[doctor]") {
  Verification v = some_verification();
  v.paths = {{"attention own", {false, "wrong"}}, {"attention cudnn", {true, "10 checks"}}};
  CHECK(without_demoted({}, &v).attention == "cudnn");
  CHECK(without_demoted({.attention = "own"}, &v).attention == "own");  // as the user said
  v.paths = {{"attention own", {true, "10 checks"}}, {"attention cudnn", {false, "wrong"}}};
  CHECK(without_demoted({}, &v).attention == "own");
  // Without one that agrees no recipe has a speed.
  v.paths.erase("attention own");
  const GpuOptions options = without_demoted({}, &v);
  CHECK(options.attention == "auto");
  CHECK(options.demoted.contains(kEveryGemm));
}

TEST_CASE("unverified_paths: GEMMs with their quantizers and the attention that ran", "[doctor]") {
  const GemmRecipe gemm = find_recipe("rowwise").fprop;
  const std::vector<NativeGemm> gemms = {{gemm, GemmRole::fprop}};
  CHECK(unverified_paths(gemms, "own", nullptr).size() == 3);
  Verification v = some_verification();
  v.paths = {{gemm_path(gemm, GemmRole::fprop), {true, ""}},
             {quantizer_path(gemm.a), {true, ""}},
             {quantizer_path(gemm.b), {true, ""}},
             {"attention own", {true, ""}}};
  CHECK(unverified_paths(gemms, "own 128x128", &v).empty());
  CHECK(unverified_paths(gemms, "own forward, cudnn 9.14 backward", &v) ==
        std::vector<std::string>{"attention cudnn"});
  v.paths[quantizer_path(gemm.a)].agrees = false;
  CHECK(unverified_paths(gemms, "own", &v) == std::vector<std::string>{quantizer_path(gemm.a)});
}

}  // namespace precbench
