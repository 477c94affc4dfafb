// Adafactor (Shazeer & Stern 2018) as in PyTorch: the second moment of a matrix from averages by row and
// column. All sums over many elements are made in FP64 or in lanes, in an order independent of the thread
// count.
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/weight_update.h"
#include "kernels/device/factored.h"

namespace precbench {
namespace {

// Columns that a thread sums at a time.
constexpr std::int64_t kColumns = 256;

/// Elements of the factored second moment, with the lower bound eps^2.
class SecondMoment {
 public:
  SecondMoment(const FactoredMoment& moment, float eps)
      : rows_(moment.rows.as<float>()), cols_(moment.cols.as<float>()), least_(eps * eps) {
    if (rows_) mean_ = std::max(*moment.row_mean.as<float>(), eps);
  }
  /// Returns the update for the gradient g.
  float update(std::int64_t row, std::int64_t col, float g) const {
    const float moment = rows_ ? rows_[row] * cols_[col] / mean_ : cols_[col];
    return g / std::sqrt(std::max(moment, least_));
  }

 private:
  const float *rows_, *cols_;
  float least_, mean_ = 1;
};

/// Moves each average towards its sum times `factor`, with weight `part`.
void move_average(const Tensor& average, const Tensor& sums, float factor, float part) {
  for (std::int64_t i = 0; i < average.size(); ++i) {
    float& value = average.as<float>()[i];
    value = moved_average(value, sums.as<float>()[i], factor, part);
  }
}

}  // namespace

void CpuDevice::do_factored_sums(const ops::FactoredSums& op) {
  const MatrixPart part{op.first, op.gradient.size(), op.cols.size()};
  if (!op.rows.empty()) {
    std::memset(op.rows.data, 0, op.rows.bytes());
    cpu::for_rows(threads_, part.rows(), part.cols, [&](std::int64_t r, float* buffer) {
      const std::int64_t row = part.first_row() + r, begin = part.begin(row), n = part.end(row) - begin;
      const float* g = cpu::load(op.gradient, part.at(row) + begin, n, buffer);
      op.rows.as<float>()[row] = cpu::lane_dot(n, g, g);
    });
  }
  const std::int64_t chunks = (part.cols + kColumns - 1) / kColumns;
  cpu::for_rows(threads_, chunks, kColumns, [&](std::int64_t chunk, float* buffer) {
    const std::int64_t left = chunk * kColumns, right = std::min(part.cols, left + kColumns);
    std::vector<double> sums(kColumns);
    for (std::int64_t row = part.first_row(); row < part.first_row() + part.rows(); ++row) {
      const std::int64_t begin = std::max(left, part.begin(row)), n = std::min(right, part.end(row)) - begin;
      if (n <= 0) continue;
      const float* g = cpu::load(op.gradient, part.at(row) + begin, n, buffer);
      for (std::int64_t i = 0; i < n; ++i) sums[begin - left + i] += static_cast<double>(g[i]) * g[i];
    }
    for (std::int64_t col = left; col < right; ++col)
      op.cols.as<float>()[col] = static_cast<float>(sums[col - left]);
  });
}

void CpuDevice::do_factored_average(const ops::FactoredAverage& op) {
  const float clip = cpu::clip_factor(op.norm_squared, op.max_norm);
  const float part = cpu::step_scalars(op.scalars).bias_correction2;
  const FactoredMoment& moment = op.moment;
  const auto over = [&](std::int64_t count) { return clip * clip / static_cast<float>(count); };
  move_average(moment.cols, op.col_sums, over(moment.rows.empty() ? 1 : moment.rows.size()), part);
  if (moment.rows.empty()) return;
  move_average(moment.rows, op.row_sums, over(moment.cols.size()), part);
  double sum = 0;
  for (std::int64_t i = 0; i < moment.rows.size(); ++i) sum += moment.rows.as<float>()[i];
  *moment.row_mean.as<float>() = static_cast<float>(sum / static_cast<double>(moment.rows.size()));
}

void CpuDevice::do_factored_norm(const ops::FactoredNorm& op) {
  const MatrixPart part{op.first, op.gradient.size(), op.moment.cols.size()};
  const float clip = cpu::clip_factor(op.norm_squared, op.options.max_norm);
  const SecondMoment second(op.moment, op.options.eps);
  std::vector<double> sums(part.rows());
  cpu::for_rows(threads_, part.rows(), part.cols, [&](std::int64_t r, float* buffer) {
    const std::int64_t row = part.first_row() + r, begin = part.begin(row), n = part.end(row) - begin;
    const float* g = cpu::load(op.gradient, part.at(row) + begin, n, buffer);
    sums[r] = cpu::lane_accumulate(n, [&](std::int64_t i, float sum) {
      const float update = second.update(row, begin + i, g[i] * clip);
      return multiply_add(update, update, sum);
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  *op.out.as<float>() = static_cast<float>(total);
}

void CpuDevice::do_factored_update(const ops::FactoredUpdate& op) {
  const Tensor& source = op.master.empty() ? op.weights : op.master;
  const UpdateOptions& o = op.options;
  const StepScalars step = cpu::step_scalars(op.scalars);
  const float clip = cpu::clip_factor(op.norm_squared, o.max_norm);
  const auto size = static_cast<float>(op.moment.size());
  const auto rms = [&](const Tensor& squares) { return std::sqrt(*squares.as<float>() / size); };
  const float rate = std::max(kLeastWeightScale, rms(op.weight_squares)) * step.bias_correction1 /
                     std::max(1.0f, rms(op.update_squares));
  const float kept = multiply_add(-step.lr, o.weight_decay, 1.0f);
  const std::int64_t cols = op.moment.cols.size();
  const SecondMoment second(op.moment, o.eps);
  cpu::for_update_chunks(threads_, source.size(), 2, [&](std::int64_t first, std::int64_t n, float* w) {
    const float* w0 = cpu::load(source, first, n, w);
    const float* g = cpu::load(op.gradient, first, n, w + cpu::kUpdateChunk);
    std::int64_t row = (op.first + first) / cols, col = (op.first + first) % cols;
    for (std::int64_t i = 0; i < n; ++i) {
      w[i] = multiply_add(-rate, second.update(row, col, g[i] * clip), w0[i] * kept);
      if (++col == cols) ++row, col = 0;
    }
    cpu::store_weights(op.weights, op.master, first, n, w, o, step.seed);
  });
}

}  // namespace precbench
