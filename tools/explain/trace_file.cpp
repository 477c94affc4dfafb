// Tells formats by their first bytes. See trace_file.h.
#include "tools/explain/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/base/xz.h"
#include "tools/explain/gzip.h"
#include "tools/explain/kineto_reader.h"
#include "tools/explain/nsys_reader.h"

namespace precbench {

TrainingTrace read_trace(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw InvalidInput(fmt::format("cannot read {}: {}", path, error_text(errno)));
  std::string begin(16, '\0');
  begin.resize(std::fread(begin.data(), 1, begin.size(), file.get()));
  if (std::ferror(file.get())) throw InvalidInput(fmt::format("cannot read {}: {}", path, error_text(errno)));
  if (begin.empty()) throw InvalidInput(fmt::format("{}: empty", path));
  TrainingTrace trace;
  if (is_sqlite(begin)) {
    trace = read_nsys(path);
  } else {
    // The first bytes are returned again, then the file's.
    std::size_t passed = 0;
    const ByteSource bytes = [&](char* to, std::size_t most) {
      if (passed < begin.size()) {
        const std::size_t count = std::min(most, begin.size() - passed);
        std::memcpy(to, begin.data() + passed, count);
        passed += count;
        return count;
      }
      const std::size_t got = std::fread(to, 1, most, file.get());
      if (got == 0 && std::ferror(file.get()))
        throw InvalidInput(fmt::format("cannot read {}: {}", path, error_text(errno)));
      return got;
    };
    if (is_gzip(begin)) {
      GzipReader reader(path, bytes);
      trace = read_kineto(path, [&](char* to, std::size_t most) { return reader.read(to, most); });
    } else if (is_xz(begin)) {
      XzReader reader(path, "", bytes);
      trace = read_kineto(path, [&](char* to, std::size_t most) { return reader.read(to, most); });
    } else {
      const std::size_t text = begin.find_first_not_of(" \t\r\n");
      if (text == std::string::npos || (begin[text] != '{' && begin[text] != '['))
        throw InvalidInput(
            fmt::format("{}: neither JSON of torch.profiler (.json, .json.gz) nor an SQLite export of "
                        "Nsight Systems",
                        path));
      trace = read_kineto(path, bytes);
    }
  }
  if (trace.gpu.empty())
    throw InvalidInput(fmt::format(
        "{}: no GPU work in it{}: profile with ProfilerActivity.CUDA, on a GPU", path,
        trace.malformed
            ? fmt::format(" beside {} without a name or a possible time", plural(trace.malformed, "event"))
            : ""));
  return trace;
}

}  // namespace precbench
