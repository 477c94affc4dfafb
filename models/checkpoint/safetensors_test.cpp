// Safetensors: the reference implementation's bytes in both directions, shards, conversions, and malformed
// files.
#include "models/checkpoint/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/checkpoint/safetensors_parts.h"
#include "models/data/counter_random.h"

using namespace precbench;

namespace {

const std::string kReference = PRECBENCH_SOURCE_DIR "/models/checkpoint/golden/reference.safetensors";

// Values stored by tools/goldens/make_safetensors_golden.py.
const std::vector<float> kValues = {0.0f, 1.0f, -2.0f, 0.5f, 448.0f, -0.015625f};
const std::vector<std::uint16_t> kValuesF16 = {0, 0x3c00, 0xc000, 0x3800, 0x5f00, 0xa400};
const std::vector<std::uint16_t> kValuesBf16 = {0, 0x3f80, 0xc000, 0x3f00, 0x43e0, 0xbc80};
const std::vector<std::uint8_t> kValuesE4m3 = {0, 0x38, 0xc0, 0x30, 0x7e, 0x88};
const std::vector<std::int64_t> kIds64 = {std::int64_t{1} << 40, -1};
const std::vector<std::int32_t> kIds32 = {7, -8, 9};
const float kScalar = 3.25f;
const std::vector<std::uint8_t> kBools = {1, 0, 1};

std::vector<NamedTensor> reference_tensors() {
  return {{"weights.f32", "F32", {2, 3}, kValues.data()},
          {"weights.f16", "F16", {2, 3}, kValuesF16.data()},
          {"weights.bf16", "BF16", {2, 3}, kValuesBf16.data()},
          {"weights.e4m3", "F8_E4M3", {2, 3}, kValuesE4m3.data()},
          {"ids.i64", "I64", {2}, kIds64.data()},
          {"ids.i32", "I32", {3}, kIds32.data()},
          {"scalar", "F32", {}, &kScalar},
          {"empty", "F32", {0, 4}, nullptr},
          {"größe \"x\"", "BOOL", {3}, kBools.data()}};
}

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string refusal(const std::string& path) {
  return refusal_of([&] { SafetensorsFile file(path); });
}

std::vector<float> as_f32(const StoredTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  copy_to_f32(values.data(), tensor);
  return values;
}

}  // namespace

TEST_CASE("SafetensorsFile: reads the reference implementation's file", "[safetensors]") {
  const SafetensorsFile file(kReference);
  CHECK(file.tensors().size() == 9);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  for (const NamedTensor& expected : reference_tensors()) {
    const StoredTensor& tensor = file.at(expected.name);
    CHECK(tensor.dtype == expected.dtype);
    CHECK(tensor.shape == expected.shape);
    if (tensor.bytes > 0)
      CHECK(std::memcmp(tensor.data, expected.data, static_cast<std::size_t>(tensor.bytes)) == 0);
  }
  for (const char* name : {"weights.f32", "weights.f16", "weights.bf16"})
    CHECK(as_f32(file.at(name)) == kValues);
  CHECK(file.at("empty").bytes == 0);
  CHECK(file.at("scalar").size() == 1);
  CHECK(file.find("weights") == nullptr);
  CHECK(contains(refusal_of([&] { file.at("weight.f32"); }),
                 "reference.safetensors: has no tensor 'weight.f32'; the nearest is 'weights.f32'"));
  CHECK(contains(refusal_of([&] { as_f32(file.at("ids.i64")); }), "'ids.i64' is I64; weights must be"));
}

TEST_CASE("write_safetensors: writes the reference implementation's bytes", "[safetensors]") {
  TempDirectory directory;
  write_safetensors(directory / "model.safetensors", reference_tensors(), {{"format", "pt"}});
  CHECK(file_text(directory / "model.safetensors") == file_text(kReference));
  // Overwrites an existing file and leaves no temporary file behind.
  write_safetensors(directory / "model.safetensors", {});
  CHECK(SafetensorsFile(directory / "model.safetensors").tensors().empty());
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("PartFile: a file written in parts equals the reference", "[safetensors]") {
  const TempDirectory directory;
  const std::string path = directory / "parts.safetensors";
  const SafetensorsLayout layout = lay_out_safetensors(reference_tensors(), {{"format", "pt"}});
  PartFile::make(path, layout);
  CHECK(file_text(path).size() == file_text(kReference).size());
  CHECK(file_text(path) != file_text(kReference));
  const PartFile one(path), two(path);
  for (const NamedTensor& tensor : reference_tensors()) {
    const std::int64_t bytes = SafetensorsFile(kReference).at(tensor.name).bytes, half = bytes / 2;
    const auto* data = static_cast<const std::byte*>(tensor.data);
    const std::int64_t offset = layout.offsets.at(tensor.name);
    two.write(offset + half, data + half, bytes - half);
    one.write(offset, data, half);
  }
  one.sync();
  CHECK(file_text(path) == file_text(kReference));
  CHECK(contains(refusal_of([&] { PartFile(directory / "none"); }), "none: cannot be written (No such file"));
}

TEST_CASE("half_to_float: exact for all 65536 halves", "[safetensors]") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31 && mantissa != 0) {
      REQUIRE(std::isnan(value));
      REQUIRE((std::bit_cast<std::uint32_t>(value) >> 13 & 1023) == static_cast<std::uint32_t>(mantissa));
    } else if (exponent == 31) {
      REQUIRE(value == sign * std::numeric_limits<float>::infinity());
    } else {
      const int significand = exponent == 0 ? mantissa : 1024 + mantissa;
      REQUIRE(value == sign * std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - 25));
    }
    REQUIRE(std::signbit(value) == ((bits & 0x8000) != 0));
  }
}

TEST_CASE("SafetensorsFile: reads shards by index or directory and refuses bad indexes", "[safetensors]") {
  TempDirectory directory;
  const std::vector<float> a = {1, 2}, b = {3, 4};
  write_safetensors(directory / "one.safetensors",
                    {{"a", "F32", {2}, a.data()}, {"unlisted", "F32", {2}, b.data()}});
  write_safetensors(directory / "two.safetensors", {{"b", "F32", {2}, b.data()}}, {{"format", "pt"}});
  const std::string index = directory.write(
      "model.safetensors.index.json",
      R"({"metadata": {"total_size": 16}, "weight_map": {"b": "two.safetensors", "a": "one.safetensors"}})");
  for (const std::string& path : {index, directory.path().string()}) {
    const SafetensorsFile file(path);
    CHECK(file.tensors().size() == 2);
    CHECK(as_f32(file.at("a")) == a);
    CHECK(as_f32(file.at("b")) == b);
    CHECK(file.metadata().at("format") == "pt");
  }

  const auto refused_index = [&](const std::string& text) {
    return refusal(directory.write("bad.json", text));
  };
  CHECK(contains(refused_index(R"({"weight_map": {"a": "three.safetensors"}})"),
                 "shard three.safetensors is missing"));
  CHECK(contains(refused_index(R"({"weight_map": {"c": "one.safetensors"}})"),
                 "places tensor 'c' in one.safetensors, which does not hold it"));
  for (const char* shard : {R"("../one.safetensors")", R"("/etc/passwd")", R"("..")", R"("")", "7"}) {
    CHECK(contains(refused_index(R"({"weight_map": {"a": )" + std::string(shard) + "}}"),
                   "no plain file name"));
  }
  CHECK(contains(refused_index(R"({"weight_map": {}})"), "has no weight_map"));
  CHECK(contains(refused_index(R"({"hidden_size": 4})"), "has no weight_map"));
  CHECK(contains(refused_index("[]"), "is not a JSON object"));
  CHECK(contains(refused_index(""), "the index is not valid JSON"));
  CHECK(
      contains(refused_index("version https://git-lfs.github.com/spec/v1\n"), "bad.json: a Git LFS pointer"));
  CHECK(contains(refused_index(R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})"),
                 "the index has weight_map.a twice"));

  std::filesystem::create_directory(directory / "single");
  CHECK(contains(refusal(directory / "single"),
                 "has neither model.safetensors.index.json nor model.safetensors"));
  const auto refused_folder = [&](const std::string& file) {
    const std::string folder = directory / ("with " + file);
    std::filesystem::create_directory(folder);
    directory.write("with " + file + "/" + file, "");
    const std::string text = refusal(folder),
                      start = folder + ": has neither model.safetensors.index.json nor model.safetensors";
    CHECK(text.starts_with(start));
    return text.substr(std::min(text.size(), start.size()));
  };
  CHECK(refused_folder("pytorch_model.bin") ==
        "; it has pytorch_model.bin, which tools/trained/pytorch_checkpoint.py FOLDER --out NEW converts");
  CHECK(refused_folder("adapter_model.safetensors") ==
        "; it has LoRA adapters alone: merge them into their base model with peft (merge_and_unload)");
  CHECK(refused_folder("tiny.gguf") == "; it has tiny.gguf, which tools/trained/gguf_checkpoint.py converts");
  CHECK(refused_folder("consolidated.safetensors") ==
        "; give its file consolidated.safetensors, or an index if there are more");
  CHECK(refused_folder("README.md") == "");
  write_safetensors(directory / "single/model.safetensors", {{"a", "F32", {2}, a.data()}});
  CHECK(as_f32(SafetensorsFile(directory / "single").at("a")) == a);
}

TEST_CASE("SafetensorsFile: corrupt and foreign files are refused with a one-line reason", "[safetensors]") {
  TempDirectory directory;
  const auto refused = [&](const std::string& content) {
    return refusal(directory.write("x.safetensors", content));
  };
  const std::string eight(8, '\0');
  const auto with_tensors = [&](const std::string& tensors) {
    return refused(file_of("{" + tensors + "}", eight));
  };

  CHECK(contains(refusal(directory / "missing.safetensors"),
                 "missing.safetensors: cannot be read (No such file"));
  CHECK(contains(refused(""), "0 bytes are too few"));
  CHECK(contains(refused("1234567"), "7 bytes are too few"));
  const std::string pytorch =
      ": a PyTorch file, not safetensors: tools/trained/pytorch_checkpoint.py FOLDER --out NEW converts";
  CHECK(contains(refused("PK\3\4 a zip archive, as torch.save writes it"), pytorch));
  CHECK(contains(refused("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 as torch.save wrote it before"), pytorch));
  CHECK(contains(refused("GGUF\3 and more"),
                 ": a GGUF file, not safetensors: tools/trained/gguf_checkpoint.py"));
  CHECK(contains(refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
                 ": a Git LFS pointer, not the file itself: fetch it with git lfs pull"));
  CHECK(contains(refused("<!DOCTYPE html><html>"), ": a web page (HTML), not the file itself"));
  // A header length whose bytes begin like a pickle's is a length.
  CHECK(refused(file_of("{}" + std::string(638, ' '), "")).empty());
  CHECK(contains(refused(std::string(8, '\xff') + "{}"),
                 "a header of 18446744073709551615 bytes in a file of 10"));
  CHECK(contains(refused(std::string(8, '\0')), "the safetensors header is not valid JSON"));
  CHECK(contains(refused(file_of("{\"a\":", "")), "not valid JSON"));
  CHECK(contains(refused(file_of("{\"a\n\xff\":1}", "")), "not valid JSON"));
  CHECK(contains(refused(file_of("{\"a\":1e999}", "")), "not valid JSON"));
  CHECK(contains(refused(file_of("[1]", "")), "is not a JSON object"));
  CHECK(contains(refused(file_of(R"({"__metadata__":[]})", "")), "__metadata__ is not a JSON object"));
  CHECK(contains(refused(file_of(R"({"__metadata__":{"a":1}})", "")), "__metadata__ 'a' is not a string"));

  CHECK(with_tensors(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})").empty());
  CHECK(contains(with_tensors(R"("a\nb":7)"), "tensor 'a?b' is not described"));
  CHECK(contains(with_tensors(R"("a":{"shape":[2],"data_offsets":[0,8]})"), "has no dtype"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]})"),
                 "unknown dtype 'f32' (did you mean F32?)"));
  // Long values from a file are quoted shortened.
  const std::string many(1'000'000, '1'),
      long_dtype = R"("a":{"dtype":")" + many + R"(","shape":[2],"data_offsets":[0,8]})";
  CHECK(contains(with_tensors(long_dtype), "unknown dtype '111"));
  CHECK(with_tensors(long_dtype).size() < 1000);
  std::string ones = "1";
  for (int i = 0; i < 100'000; ++i) ones += ",1";
  const std::string deep_shape = R"("a":{"dtype":"F32","shape":[)" + ones + R"(],"data_offsets":[0,8]})";
  CHECK(contains(with_tensors(deep_shape), "does not fit F32 of shape [1, 1, "));
  CHECK(with_tensors(deep_shape).size() < 1000);
  for (const char* shape : {"[-2]", "[2.0]", "2", "[\"2\"]", "[18446744073709551615]"}) {
    CHECK(contains(
        with_tensors(R"("a":{"dtype":"F32","shape":)" + std::string(shape) + R"(,"data_offsets":[0,8]})"),
        "has no valid shape"));
  }
  for (const char* offsets : {"[-8,0]", "[0]", "[0,8,8]", "[0,8.0]", "{}"}) {
    CHECK(contains(
        with_tensors(R"("a":{"dtype":"F32","shape":[2],"data_offsets":)" + std::string(offsets) + "}"),
        "has no valid data_offsets"));
  }
  CHECK(
      contains(with_tensors(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "before it begins"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
                 "takes 8 bytes, which does not fit F32 of shape [3]"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"),
                 "does not fit F32"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]})"), "does not fit F4"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
                 "truncated: the header describes 12 bytes of tensors, the file holds 8"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
                 "corrupt: the header describes 4 bytes of tensors, the file holds 8"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
                 "tensor 'b' begins at byte 4 of the data, which overlaps the tensor before it (end 8)"));
  CHECK(contains(with_tensors(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
                 "leaves a gap after"));
}

TEST_CASE("SafetensorsFile: a damaged file is read or refused without a crash", "[safetensors]") {
  TempDirectory directory;
  const std::string valid = file_text(kReference);
  const std::size_t header_end =
      8 + static_cast<unsigned char>(valid[0]) + 256 * static_cast<unsigned char>(valid[1]);
  std::uint64_t draw = 0;
  int refused = 0, read = 0;
  const auto attempt = [&](const std::string& content) {
    const std::string path = directory.write("x.safetensors", content);
    try {
      const SafetensorsFile file(path);
      ++read;
      unsigned sum = 0;  // every byte that the file offers can be touched
      for (const StoredTensor& tensor : file.tensors()) {
        for (std::int64_t i = 0; i < tensor.bytes; ++i) sum += static_cast<unsigned>(tensor.data[i]);
      }
      CHECK(sum <= 255 * content.size());
    } catch (const InvalidInput&) {
      ++refused;
    }
  };
  for (std::size_t length = 0; length < valid.size(); ++length) attempt(valid.substr(0, length));
  CHECK(read == 0);  // no proper prefix is a valid file
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = valid;
    const std::uint64_t flips = 1 + mix64(draw++) % 4;
    for (std::uint64_t flip = 0; flip < flips; ++flip) {
      const std::size_t position = mix64(draw++) % header_end;
      damaged[position] = static_cast<char>(mix64(draw++));
    }
    attempt(damaged);
  }
  CHECK(refused > 3000);
  CHECK(read > 10);  // e.g. a changed letter of a name
}

TEST_CASE("write_safetensors: invalid tensors are refused and leave no file", "[safetensors]") {
  TempDirectory directory;
  const std::string path = directory / "out.safetensors";
  const float one = 1;
  const auto refused = [&](const std::vector<NamedTensor>& tensors) {
    return refusal_of([&] { write_safetensors(path, tensors); });
  };
  CHECK(
      contains(refused({{"a", "FP32", {1}, &one}}), "tensor 'a': unknown dtype 'FP32' (did you mean F32?)"));
  CHECK(contains(refused({{"a", "F32", {-1}, &one}}), "impossible shape [-1]"));
  CHECK(contains(refused({{"a", "F32", {1}, &one}, {"a", "BF16", {1}, &one}}), "two tensors named 'a'"));
  CHECK(contains(refused({{"__metadata__", "F32", {1}, &one}}), "reserves this name"));
  CHECK(contains(refused({{"\xff", "F32", {1}, &one}}), "not valid UTF-8"));
  CHECK(contains(refusal_of([&] { write_safetensors(directory / "no/such/x", {}); }),
                 "cannot be written (No such"));
  std::filesystem::create_directory(directory / "taken");
  CHECK(contains(refusal_of([&] { write_safetensors(directory / "taken", {}); }),
                 "cannot be written (Is a directory)"));
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("write_safetensors: a full disk is reported", "[safetensors]") {
  if (!std::filesystem::exists("/dev/full")) return;
  TempDirectory directory;
  // The temporary name is the path, the process id and .tmp. A link there sends the bytes to a full device.
  std::filesystem::create_symlink("/dev/full", directory / ("x." + std::to_string(::getpid()) + ".tmp"));
  CHECK(contains(refusal_of([&] { write_safetensors(directory / "x", {}); }),
                 "cannot be written (No space left"));
  CHECK(std::filesystem::is_empty(directory.path()));
}
