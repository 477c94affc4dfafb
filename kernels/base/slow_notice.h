// Tells the user what a call waits for if it takes long, since a library that blocks says nothing.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

namespace precbench {

inline constexpr std::chrono::seconds kSlowAfter(60);

/// Prints one line if its scope lasts longer than `after`.
class SlowNotice {
 public:
  /// `words`: returns the line, or null if there is nothing to say; called on another thread.
  explicit SlowNotice(std::function<std::optional<std::string>()> words,
                      std::chrono::milliseconds after = kSlowAfter);

 private:
  std::jthread thread_;
};

/// Replaces the receiver of the lines, which go to standard error by default. Call it before any notice exists.
void set_notice_sink(std::function<void(const std::string&)> sink);

}  // namespace precbench
