// Fuzzes a file of published points (`predict --published`): every point that is read is predicted and judged.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/predict/published_prediction.h"
#include "kernels/base/untrusted_input.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(published) {
  constexpr std::size_t kMostPoints = 3;  // each takes a dry run
  taken([&] {
    std::vector<PublishedPoint> points =
        points_from_json(parse_description<nlohmann::json>(text_of(data, size)), "points");
    points.resize(std::min(points.size(), kMostPoints));
    const std::vector<PointPrediction> predictions = predict_points(points);
    const std::vector<Judgement> judgements = judge(points, predictions);
    for (std::size_t i = 0; i < points.size(); ++i) {
      prediction_json(points[i], predictions[i], judgements).dump();
      const PointPrediction& p = predictions[i];
      if (!p.reason.empty()) continue;
      expect(p.tokens_per_s_per_gpu > 0 && std::isfinite(p.high) && p.memory_gb > 0);
      expect(p.low <= p.tokens_per_s_per_gpu && p.tokens_per_s_per_gpu <= p.high);
    }
    groups_json(judgements).dump();
  });
  return 0;
}
