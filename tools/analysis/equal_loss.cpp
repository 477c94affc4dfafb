// Propagates intervals through the tokens that make up for a gap. See equal_loss.h.
#include "tools/analysis/equal_loss.h"

#include <algorithm>

#include "tools/analysis/token_cost.h"

namespace precbench {

MeanWithInterval exactly(double value) { return {value, value, value}; }

MeanWithInterval equal_loss_speedup(const MeanWithInterval& speedup, const MeanWithInterval& gap,
                                    const MeanWithInterval& slope) {
  // The factor is monotonic in gap / S, and that in both, so its extremes lie in the corners.
  const auto [least, most] =
      std::minmax({token_factor(gap.low, slope.low), token_factor(gap.low, slope.high),
                   token_factor(gap.high, slope.low), token_factor(gap.high, slope.high)});
  return {speedup.mean / token_factor(gap.mean, slope.mean), speedup.low / most, speedup.high / least};
}

MeanWithInterval break_even_interval(const MeanWithInterval& speedup, const MeanWithInterval& slope) {
  const auto [low, high] =
      std::minmax({break_even_gap(slope.low, speedup.low), break_even_gap(slope.low, speedup.high),
                   break_even_gap(slope.high, speedup.low), break_even_gap(slope.high, speedup.high)});
  return {break_even_gap(slope.mean, speedup.mean), low, high};
}

Pays pays(const MeanWithInterval& equal_loss) {
  return equal_loss.low > 1 ? Pays::yes : equal_loss.high < 1 ? Pays::no : Pays::open;
}

}  // namespace precbench
