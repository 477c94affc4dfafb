// Lion, Muon and Adafactor on any device, against FP64 and against the CPU device. Parts of a matrix must
// give the result of the whole.
#include <cstring>

#include "kernels/device/compare_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kMatrixRows = 37, kMatrixCols = 301, kMatrix = kMatrixRows * kMatrixCols;
constexpr StepScalars kStep{.lr = 0.01f, .bias_correction1 = 0.008f, .bias_correction2 = 0.3f, .seed = 5};
constexpr float kNorm = 3.0f;
constexpr double kClip = 1.0 / (3.0 + 1e-6);

Tensor scalars_of(HostMemory& host) {
  const Tensor scalars = host.tensor(DType::i32, 1, 4);
  std::memcpy(scalars.data, &kStep, sizeof kStep);
  return scalars;
}

Tensor norm_of(HostMemory& host) {
  const Tensor norm = host.tensor(DType::f32, 1, 1);
  norm.as<float>()[0] = kNorm * kNorm;
  return norm;
}

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

}  // namespace

PRECBENCH_OP_TEST(lion_on, "lion in every combination of types") {
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{4099}})
    for (const bool with_master : {false, true})
      for (const DType moments : {DType::f32, DType::bf16})
        for (const DType grads : {DType::f32, DType::bf16}) {
          INFO(size << (with_master ? ", master" : "") << ", m " << name_of(moments) << ", gradients "
                    << name_of(grads));
          b.start();
          HostMemory& host = b.host();
          const UpdateOptions o{.beta1 = 0.9f, .beta2 = 0.99f};
          const Tensor w = host.random(DType::bf16, size, 1, 0.1f);
          const Tensor master = with_master ? host.converted(w, DType::f32) : Tensor{};
          const Tensor m = host.random(moments, size, 1, 0.01f), g = host.random(grads, size, 1, 0.1f);
          const Tensor norm = norm_of(host), scalars = scalars_of(host);
          std::vector<double> true_w(size), true_m(size);
          for (std::int64_t i = 0; i < size; ++i) {
            const double grad = HostMemory::get(g, i) * kClip, m0 = HostMemory::get(m, i);
            const double w0 = HostMemory::get(w, i);
            true_m[i] = static_cast<double>(o.beta2) * m0 + (1.0 - o.beta2) * grad;
            const double direction = static_cast<double>(o.beta1) * m0 + (1.0 - o.beta1) * grad;
            true_w[i] = w0 - kStep.lr * (sign(direction) + o.weight_decay * w0);
          }
          const auto copy = [&](const Tensor& t) { return t.empty() ? Tensor{} : b.put(t); };
          const Tensor dev_w = copy(w), dev_master = copy(master), dev_m = copy(m);
          b.device().lion({dev_w, dev_master, dev_m, copy(g), copy(scalars), copy(norm), o});
          b.cpu().lion({w, master, m, g, scalars, norm, o});
          check_twice("weights", b.fetch(dev_w), w, true_w);
          check_twice("m", b.fetch(dev_m), m, true_m);
          if (with_master) check_twice("master", b.fetch(dev_master), master, true_w);
        }
}

PRECBENCH_OP_TEST(stochastic_lion_on, "lion rounds stochastically by the element's place in the model") {
  b.start();
  HostMemory& host = b.host();
  constexpr std::int64_t kSize = 4099, kFar = (std::int64_t{1} << 34) + 3;
  const Tensor before = host.random(DType::bf16, kSize, 1, 1.0f), norm = norm_of(host);
  const Tensor zeros = host.tensor(DType::f32, kSize, 1), scalars = host.tensor(DType::i32, 1, 4);
  b.cpu().zero({zeros});
  // An update of w * 2^-10 alone: exact in FP32 and below BF16's last place.
  const StepScalars step{.lr = 0x1p-10f, .seed = 11};
  std::memcpy(scalars.data, &step, sizeof step);
  Tensor other = before;  // rounded by another index
  for (const ElementMap& index : {ElementMap(kFar), ElementMap(kFar, 100, 300).from(7)}) {
    const UpdateOptions o{.weight_decay = 1.0f, .stochastic_rounding = true, .index = index};
    const Tensor w = host.converted(before, DType::bf16), dev_w = b.put(w);
    b.device().lion({dev_w, {}, b.put(zeros), b.put(zeros), b.put(scalars), b.put(norm), o});
    b.cpu().lion({w, {}, host.converted(zeros, DType::f32), zeros, scalars, norm, o});
    CHECK(same_bits(b.fetch(dev_w), w));
    CHECK(!same_bits(w, other));
    other = w;
  }
}

PRECBENCH_OP_TEST(muon_on, "momentum, to_unit_norm, combine and descend") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(name_of(dtype));
    b.start();
    HostMemory& host = b.host();
    constexpr std::int64_t kSize = 4099;
    constexpr float kMomentum = 0.95f, kFactor = 3.0f;
    const Tensor m = host.random(dtype, kSize, 1, 0.01f), g = host.random(dtype, kSize, 1, 0.1f);
    const Tensor update = host.tensor(DType::bf16, kSize, 1), norm = norm_of(host),
                 scalars = scalars_of(host);
    std::vector<double> true_m(kSize), true_update(kSize), unit(kSize), mixed(kSize), true_w(kSize);
    for (std::int64_t i = 0; i < kSize; ++i) {
      const double grad = HostMemory::get(g, i) * kClip, m0 = HostMemory::get(m, i);
      true_m[i] = m0 + (1.0 - kMomentum) * (grad - m0);
      true_update[i] = grad + static_cast<double>(kMomentum) * (true_m[i] - grad);
    }
    const Tensor dev_m = b.put(m), dev_update = b.put(update), dev_norm = b.put(norm);
    b.device().momentum({dev_update, dev_m, b.put(g), dev_norm, kMomentum, 1.0f});
    b.cpu().momentum({update, m, g, norm, kMomentum, 1.0f});
    check_twice("m", b.fetch(dev_m), m, true_m);
    check_twice("update", b.fetch(dev_update), update, true_update);

    // From here on the device continues with the CPU's numbers.
    const Tensor x = b.put(update), y = host.random(DType::f32, kSize, 1, 0.1f);
    for (std::int64_t i = 0; i < kSize; ++i) unit[i] = HostMemory::get(update, i) / kNorm;
    b.device().to_unit_norm({x, dev_norm, 1e-7f});
    b.cpu().to_unit_norm({update, norm, 1e-7f});
    check_twice("unit", b.fetch(x), update, unit);
    b.device().to_unit_norm({x, dev_norm, 6.0f});  // eps is the larger
    b.cpu().to_unit_norm({update, norm, 6.0f});
    for (std::int64_t i = 0; i < kSize; ++i) {
      unit[i] = HostMemory::get(update, i);
      mixed[i] = 3.5 * unit[i] - 2.25 * HostMemory::get(y, i);
    }
    CHECK(same_bits(b.fetch(x), update));
    b.device().combine({x, 3.5f, x, -2.25f, b.put(y)});
    b.cpu().combine({update, 3.5f, update, -2.25f, y});
    check_twice("combine", b.fetch(x), update, mixed);

    for (const bool with_master : {false, true}) {
      const UpdateOptions o{};
      const Tensor w = host.random(DType::bf16, kSize, 1, 0.1f);
      const Tensor master = with_master ? host.converted(w, DType::f32) : Tensor{};
      for (std::int64_t i = 0; i < kSize; ++i) {
        const double w0 = HostMemory::get(w, i);
        true_w[i] = w0 - kStep.lr * (kFactor * HostMemory::get(update, i) + o.weight_decay * w0);
      }
      const Tensor dev_w = b.put(w), dev_master = with_master ? b.put(master) : Tensor{};
      b.device().descend({dev_w, dev_master, b.put(update), b.put(scalars), kFactor, o});
      b.cpu().descend({w, master, update, scalars, kFactor, o});
      check_twice("weights", b.fetch(dev_w), w, true_w);
      if (with_master) check_twice("master", b.fetch(dev_master), master, true_w);
    }
  }
}

namespace {

/// Adafactor in FP64.
struct Exact {
  std::vector<double> row_sums, col_sums, rows, cols, weights;
  double row_mean = 0, norm = 0;
};

Exact exact_adafactor(const Tensor& g, const Tensor& w, std::vector<double> rows, std::vector<double> cols,
                      double weight_squares, const UpdateOptions& o) {
  const auto C = static_cast<std::int64_t>(cols.size()), R = g.size() / C;
  const bool matrix = !rows.empty();
  Exact e{std::vector<double>(R), std::vector<double>(C), std::move(rows), std::move(cols), {}};
  std::vector<double> update(g.size());
  for (std::int64_t i = 0; i < g.size(); ++i) {
    const double square = static_cast<double>(HostMemory::get(g, i)) * HostMemory::get(g, i);
    e.row_sums[i / C] += square;
    e.col_sums[i % C] += square;
  }
  const double part = kStep.bias_correction2;
  for (std::int64_t c = 0; c < C; ++c)
    e.cols[c] += part * (e.col_sums[c] * kClip * kClip / (matrix ? R : 1) - e.cols[c]);
  for (std::size_t r = 0; r < e.rows.size(); ++r) {
    e.rows[r] += part * (e.row_sums[r] * kClip * kClip / C - e.rows[r]);
    e.row_mean += e.rows[r] / R;
  }
  const double eps = o.eps, size = static_cast<double>(g.size());
  for (std::int64_t i = 0; i < g.size(); ++i) {
    const double second = matrix ? e.rows[i / C] * e.cols[i % C] / std::max(e.row_mean, eps) : e.cols[i % C];
    update[i] = HostMemory::get(g, i) * kClip / std::sqrt(std::max(second, eps * eps));
    e.norm += update[i] * update[i];
  }
  const double rate = std::max(1e-3, std::sqrt(weight_squares / size)) * kStep.bias_correction1 /
                      std::max(1.0, std::sqrt(e.norm / size));
  for (std::int64_t i = 0; i < g.size(); ++i)
    e.weights.push_back(HostMemory::get(w, i) * (1 - kStep.lr * static_cast<double>(o.weight_decay)) -
                        rate * update[i]);
  return e;
}

}  // namespace

PRECBENCH_OP_TEST(adafactor_on, "adafactor's four passes, of matrices and vectors") {
  for (const bool matrix : {true, false})
    for (const bool with_master : {true, false})
      for (const DType grads : {DType::f32, DType::bf16}) {
        INFO((matrix ? "matrix" : "vector")
             << (with_master ? ", master" : "") << ", gradients " << name_of(grads));
        b.start();
        HostMemory& host = b.host();
        const std::int64_t R = matrix ? kMatrixRows : 1, size = R * kMatrixCols;
        const UpdateOptions o{.eps = 0x1p-23f};
        const Tensor g = host.random(grads, size, 1, 0.1f), w = host.random(DType::bf16, size, 1, 0.1f);
        const Tensor master = with_master ? host.converted(w, DType::f32) : Tensor{};
        const auto squares = [&](std::int64_t count) {
          const Tensor t = host.random(DType::f32, 1, count, 0.03f);
          for (std::int64_t i = 0; i < count; ++i) t.as<float>()[i] *= t.as<float>()[i];
          return t;
        };
        const Tensor none{}, norm = norm_of(host), scalars = scalars_of(host);
        const FactoredMoment moment{matrix ? squares(R) : none, squares(kMatrixCols),
                                    host.converted(norm, DType::f32)};
        const Tensor row_sums = matrix ? host.tensor(DType::f32, 1, R) : none,
                     col_sums = host.tensor(DType::f32, 1, kMatrixCols);
        const Tensor weight_squares = host.tensor(DType::f32, 1, 1),
                     update_squares = host.tensor(DType::f32, 1, 1);
        b.cpu().sum_of_squares({weight_squares, w, false});
        const Exact exact =
            exact_adafactor(g, w, matrix ? HostMemory::values(moment.rows) : std::vector<double>{},
                            HostMemory::values(moment.cols), weight_squares.as<float>()[0], o);

        const auto put = [&](const Tensor& t) { return t.empty() ? Tensor{} : b.put(t); };
        const FactoredMoment dev_moment{put(moment.rows), put(moment.cols), put(moment.row_mean)};
        const Tensor dev_rows = put(row_sums), dev_cols = put(col_sums), dev_updates = put(update_squares);
        const Tensor dev_g = put(g), dev_w = put(w), dev_master = put(master), dev_norm = put(norm);
        const auto run = [&](Device& device, const FactoredMoment& f, const Tensor& rows, const Tensor& cols,
                             const Tensor& updates, const Tensor& weights, const Tensor& own,
                             const Tensor& gradient, const Tensor& clip, const Tensor& words,
                             const Tensor& before) {
          device.factored_sums({rows, cols, gradient, 0});
          device.factored_average({f, rows, cols, words, clip, o.max_norm});
          device.factored_norm({updates, f, gradient, 0, clip, o});
          device.factored_update({weights, own, f, gradient, 0, before, updates, words, clip, o});
        };
        run(b.device(), dev_moment, dev_rows, dev_cols, dev_updates, dev_w, dev_master, dev_g, dev_norm,
            put(scalars), put(weight_squares));
        run(b.cpu(), moment, row_sums, col_sums, update_squares, w, master, g, norm, scalars, weight_squares);
        check_twice("columns", b.fetch(dev_cols), col_sums, exact.col_sums);
        check_twice("column averages", b.fetch(dev_moment.cols), moment.cols, exact.cols);
        if (matrix) {
          check_twice("rows", b.fetch(dev_rows), row_sums, exact.row_sums);
          check_twice("row averages", b.fetch(dev_moment.rows), moment.rows, exact.rows);
          check_twice("row mean", b.fetch(dev_moment.row_mean), moment.row_mean, {exact.row_mean});
        }
        check_twice("update's squares", b.fetch(dev_updates), update_squares, {exact.norm});
        check_twice("weights", b.fetch(dev_w), w, exact.weights);
        if (with_master) check_twice("master", b.fetch(dev_master), master, exact.weights);
      }
}

PRECBENCH_OP_TEST(adafactor_parts_on, "what ranks have of a matrix adds up to it") {
  b.start();
  HostMemory& host = b.host();
  const Tensor g = host.random(DType::f32, kMatrix, 1, 0.1f);
  const FactoredMoment moment{b.put(host.random(DType::f32, 1, kMatrixRows, 0.1f)),
                              b.put(host.random(DType::f32, 1, kMatrixCols, 0.1f)), b.put(norm_of(host))};
  const Tensor dev_g = b.put(g), norm = b.put(norm_of(host));
  // Weights without a master, rounded by their index in the model, which starts at kPlace.
  constexpr std::int64_t kPlace = (std::int64_t{1} << 34) + 3;
  const Tensor w = host.random(DType::bf16, kMatrix, 1, 0.1f), squares = b.put(norm_of(host)),
               scalars = b.put(scalars_of(host)), in_parts = b.put(w), at_once = b.put(w);
  const auto update = [&](const Tensor& weights, std::int64_t first, std::int64_t count) {
    const UpdateOptions o{.stochastic_rounding = true, .index = kPlace + first};
    b.device().factored_update({weights.elements(first, count),
                                {},
                                moment,
                                dev_g.elements(first, count),
                                first,
                                squares,
                                squares,
                                scalars,
                                norm,
                                o});
  };
  std::vector<double> rows(kMatrixRows), cols(kMatrixCols), norms(1);
  // The second part begins and ends within a row, the third is empty.
  const std::int64_t cuts[] = {0, 128, 5 * kMatrixCols + 17, 5 * kMatrixCols + 17, kMatrix};
  for (int part = 0; part < 4; ++part) {
    const std::int64_t first = cuts[part], count = cuts[part + 1] - first;
    const Tensor row_sums = b.put(host.tensor(DType::f32, 1, kMatrixRows)),
                 col_sums = b.put(host.tensor(DType::f32, 1, kMatrixCols)), out = b.put(norm_of(host));
    b.device().factored_sums({row_sums, col_sums, dev_g.elements(first, count), first});
    b.device().factored_norm({out, moment, dev_g.elements(first, count), first, norm, {}});
    update(in_parts, first, count);
    const Tensor got_rows = b.fetch(row_sums), got_cols = b.fetch(col_sums), got_norm = b.fetch(out);
    for (std::int64_t r = 0; r < kMatrixRows; ++r) rows[r] += got_rows.as<float>()[r];
    for (std::int64_t c = 0; c < kMatrixCols; ++c) cols[c] += got_cols.as<float>()[c];
    norms[0] += got_norm.as<float>()[0];
  }
  const Tensor row_sums = b.put(host.tensor(DType::f32, 1, kMatrixRows)),
               col_sums = b.put(host.tensor(DType::f32, 1, kMatrixCols)), out = b.put(norm_of(host));
  b.device().factored_sums({row_sums, col_sums, dev_g, 0});
  b.device().factored_norm({out, moment, dev_g, 0, norm, {}});
  update(at_once, 0, kMatrix);
  CHECK(same_bits(b.fetch(in_parts), b.fetch(at_once)));
  CHECK_FALSE(same_bits(b.fetch(at_once), w));
  const auto check = [&](const Tensor& whole, const std::vector<double>& sum) {
    for (std::size_t i = 0; i < sum.size(); ++i) CHECK(std::fabs(whole.as<float>()[i] / sum[i] - 1) < 1e-6);
  };
  check(b.fetch(row_sums), rows);
  check(b.fetch(col_sums), cols);
  check(b.fetch(out), norms);
}
