// A thread that waits for the end of a scope. See slow_notice.h.
#include "kernels/base/slow_notice.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>

namespace precbench {
namespace {

std::function<void(const std::string&)>& notice_sink() {
  static std::function<void(const std::string&)> sink = [](const std::string& line) {
    std::fputs(fmt::format("precbench: {}\n", line).c_str(), stderr);
  };
  return sink;
}

}  // namespace

SlowNotice::SlowNotice(std::function<std::optional<std::string>()> words, std::chrono::milliseconds after)
    : thread_([words = std::move(words), after](const std::stop_token& ended) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        if (wake.wait_for(lock, ended, after, [&] { return ended.stop_requested(); })) return;
        if (const std::optional<std::string> line = words()) notice_sink()(*line);
      }) {}

void set_notice_sink(std::function<void(const std::string&)> sink) { notice_sink() = std::move(sink); }

}  // namespace precbench
