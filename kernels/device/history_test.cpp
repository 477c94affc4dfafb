// Delayed scaling's update, any device against the CPU device and against golden/history.txt, an independent
// implementation of TransformerEngine's rules (tools/goldens/make_history_goldens.py). Also scales that are
// known before the tensor.
#include <bit>
#include <sstream>

#include "kernels/device/compare_testing.h"
#include "kernels/numerics/golden_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

using Words = GoldenWords;

/// Expands a section's run-length coding, step by step.
Words unrolled(const Words& runs) {
  Words all;
  for (std::size_t i = 0; i < runs.size(); i += 2) all.insert(all.end(), runs[i], runs[i + 1]);
  return all;
}

/// Amaxes of slots on the host; a run begins with scales of 1 and an empty history.
struct Slots {
  Tensor known, history, staged;

  Slots(HostMemory& host, std::int64_t slots, std::int64_t kept, float first)
      : known(host.tensor(DType::f32, 1, slots)),
        history(kept ? host.tensor(DType::f32, slots, kept) : Tensor{}),
        staged(host.tensor(DType::f32, 1, slots)) {
    std::fill_n(known.as<float>(), slots, first);
    std::fill_n(staged.as<float>(), slots, 0.0f);
    if (kept) std::fill_n(history.as<float>(), slots * kept, 0.0f);
  }
};

}  // namespace

TEST_CASE("update_history: scales and histories match TransformerEngine bit for bit", "[cpu][history]") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/device/golden/history.txt");
  const auto device = make_cpu_device(1);
  int copies = 0, dumps = 0;
  for (const auto& [name, runs] : sections) {
    if (name.starts_with("history.") || name.ends_with("amaxes")) continue;
    INFO(name);
    const std::string prefix = name.starts_with("wild.") ? "wild." : "";
    std::istringstream fields(name.substr(prefix.size()));
    std::string format, length, algorithm, margin;
    std::getline(fields, format, '.'), std::getline(fields, length, '.');
    std::getline(fields, algorithm, '.'), std::getline(fields, margin, '.');
    const float max = format_max(format == "e4m3" ? DType::e4m3 : DType::e5m2, 0);
    const int powers = std::stoi(margin), kept = std::stoi(length) - 1;
    const Words &amaxes = sections.at(prefix + "amaxes"), want = unrolled(runs);
    REQUIRE(want.size() == amaxes.size());
    HostMemory host;
    const Slots slots(host, 1, kept, std::ldexp(max, -powers));
    CHECK(delayed_scale(slots.known.as<float>()[0], max, powers) == 1);
    std::size_t wrong = 0;
    for (std::size_t step = 0; step < want.size(); ++step) {
      slots.staged.as<float>()[0] = std::bit_cast<float>(static_cast<std::uint32_t>(amaxes[step]));
      device->update_history({slots.known, slots.history, slots.staged, algorithm == "most_recent"});
      wrong += float_to_bits(delayed_scale(slots.known.as<float>()[0], max, powers)) != want[step];
      REQUIRE(slots.staged.as<float>()[0] == 0);
      const auto dump = sections.find("history." + std::to_string(step) + "." + name);
      if (dump == sections.end()) continue;
      // TransformerEngine's history begins with the staged entry, which is stored separately here.
      REQUIRE(dump->second.size() == static_cast<std::size_t>(kept) + 1);
      CHECK(dump->second[0] == 0);
      std::int64_t differ = 0;
      for (int i = 0; i < kept; ++i)
        differ += float_to_bits(slots.history.as<float>()[i]) != dump->second[i + 1];
      INFO("step " << step);
      CHECK(differ == 0);
      ++dumps;
    }
    CHECK(wrong == 0);
    ++copies;
  }
  CHECK(copies == 8);
  CHECK(dumps == 40);
}

TEST_CASE("update_history: an amax that is zero or not finite leaves its slot unchanged", "[cpu][history]") {
  const auto device = make_cpu_device(1);
  HostMemory host;
  for (const bool recent : {false, true}) {
    const Slots slots(host, 4, 2, 448);
    const float staged[] = {INFINITY, NAN, 0, 3};
    std::copy(staged, staged + 4, slots.staged.as<float>());
    device->update_history({slots.known, slots.history, slots.staged, recent});
    for (int slot = 0; slot < 3; ++slot) {
      CHECK(slots.known.as<float>()[slot] == 448);
      CHECK((slots.history.as<float>()[2 * slot] == 0 && slots.history.as<float>()[2 * slot + 1] == 0));
      CHECK(slots.staged.as<float>()[slot] == 0);
    }
    CHECK(slots.known.as<float>()[3] == 3);
    CHECK((slots.history.as<float>()[6] == 0 && slots.history.as<float>()[7] == 3));
  }
}

TEST_CASE("delayed scale: finite and positive for every finite amax", "[formats]") {
  for (const float max : {448.0f, 57344.0f, 384.0f})
    for (const float amax : {0.0f, 1e-45f, 1e-38f, 1.0f, 3.4e38f}) {
      const float scale = delayed_scale(amax, max, 0);
      CHECK((std::isfinite(scale) && scale > 0));
    }
  CHECK(delayed_scale(1e-45f, 448, 0) == std::bit_cast<float>(0x7F7FFFFFu));
  CHECK(std::isnan(delayed_scale(NAN, 448, 0)));
  CHECK(delayed_scale(2, 448, 3) == 28);
}

PRECBENCH_OP_TEST(update_history_on, "update_history is bit-exact") {
  for (const std::int64_t kept : {0, 1, 15, 255, 256, 300, 1023})
    for (const bool recent : {false, true}) {
      INFO(kept << " kept" << (recent ? ", most recent" : ""));
      b.start();
      HostMemory& host = b.host();
      constexpr std::int64_t kSlots = 37;
      const Slots slots(host, kSlots, kept, 448);
      const Tensor known = b.put(slots.known), history = kept ? b.put(slots.history) : Tensor{};
      for (int step = 0; step < 6; ++step) {
        for (std::int64_t i = 0; i < kSlots; ++i) {
          const std::uint32_t bits = random_bits(static_cast<std::uint64_t>(step), i);
          const float special[] = {0, INFINITY, NAN, 1e-45f};
          slots.staged.as<float>()[i] =
              bits % 4 == 0 ? special[bits / 4 % 4] : std::ldexp(1.0f, static_cast<int>(bits % 60) - 30);
        }
        const Tensor staged = b.put(slots.staged);
        b.device().update_history({known, history, staged, recent});
        b.cpu().update_history({slots.known, slots.history, slots.staged, recent});
        CHECK(same_bits(b.fetch(staged), slots.staged));
      }
      CHECK(same_bits(b.fetch(known), slots.known));
      if (kept) CHECK(same_bits(b.fetch(history), slots.history));
    }
}

PRECBENCH_OP_TEST(delayed_on, "a delayed scale comes from another amax, and the tensor's own is raised") {
  QuantFormat x = kTensorE4m3, dy = kTensorE5m2, margin = kTensorE4m3;
  x.history.length = dy.history.length = margin.history.length = 16;
  margin.history.margin = 3;
  for (const OutputFormats& formats :
       {OutputFormats{x, x}, OutputFormats{x, {}}, OutputFormats{{}, dy}, OutputFormats{margin, dy}})
    for (const auto& [rows, cols] :
         {std::pair<std::int64_t, std::int64_t>{256, 384}, {133, 101}, {7, 3}, {1, 16}})
      for (const float before : {0.0f, 1000.0f, NAN})
        for (const float amax : {1e-44f, 0.01f, 4.0f, 1e30f}) {
          INFO(describe(formats.rowwise) << " and " << describe(formats.columnwise) << ", " << rows << " x "
                                         << cols << ", amax " << amax << ", staged " << before);
          b.start();
          const Tensor value = b.host().random(DType::bf16, rows, cols, 1.0f);
          const Tensor known = b.host().tensor(DType::f32, 1, 1), staged = b.host().tensor(DType::f32, 1, 1);
          known.as<float>()[0] = amax, staged.as<float>()[0] = before;
          QuantizedTensor out = b.operand(formats, rows, cols), expected = b.host_operand(formats, value);
          out.value = b.put(value);
          out.amax_in = b.put(known), expected.amax_in = known;
          out.amax_out = b.put(staged), expected.amax_out = staged;
          b.device().quantize({out});
          b.cpu().quantize({expected});
          for (const auto& [got, want] :
               {std::pair{out.rowwise, expected.rowwise}, std::pair{out.columnwise, expected.columnwise}}) {
            if (!want.format.quantized()) continue;
            CHECK(same_bits(b.fetch(got.data), want.data));
            CHECK(same_bits(b.fetch(got.scale), want.scale));
          }
          CHECK(same_scales(b.fetch(out.amax_out), staged));
          CHECK(same_bits(b.fetch(out.amax_in), known));
        }
}

TEST_CASE("update_history: with most_recent a lasting jump saturates one step only", "[cpu][history]") {
  const auto device = make_cpu_device(1);
  HostMemory host;
  QuantFormat format = kTensorE4m3;
  format.history = {.length = 1, .algorithm = HistoryAlgorithm::most_recent};
  const Slots slots(host, 1, 0, 448);
  const Tensor data = host.tensor(DType::e4m3, 16, 16), scale = host.tensor(DType::f32, 1, 1),
               error = host.tensor(DType::f32, 1, 5);
  std::vector<float> saturated;
  for (const float size : {1.0f, 1.0f, 100.0f, 100.0f, 100.0f}) {
    const Tensor value = host.random(DType::bf16, 16, 16, size);
    device->quantize({{.value = value,
                       .rowwise = {format, data, scale},
                       .amax_out = slots.staged,
                       .amax_in = slots.known}});
    device->quantization_error({error, value, {format, data, scale}, false});
    device->update_history({slots.known, slots.history, slots.staged, true});
    saturated.push_back(error.as<float>()[4]);
  }
  CHECK(saturated[2] > 0.5 * 16 * 16);
  for (const int step : {0, 3, 4}) CHECK(saturated[step] < 8);
}
