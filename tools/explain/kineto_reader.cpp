// Parses Kineto's events one at a time. See kineto_reader.h.
#include "tools/explain/kineto_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>
#include <optional>
#include <streambuf>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

constexpr double kMostMicroseconds = static_cast<double>(kMostTraceNs) / 1e3;
/// Elements of a list of tensors, at most: a sum of two is within 64 bits.
constexpr double kMostElements = 1e18;
constexpr std::size_t kMostOpInputs = 256, kMostDims = 16;

/// Passes bytes on while it checks the limits of JSON that the parser itself does not have.
class LimitedBuffer : public std::streambuf {
 public:
  LimitedBuffer(std::string name, const ByteSource& source) : name_(std::move(name)), source_(source) {}

 protected:
  int_type underflow() override {
    const std::size_t got = source_(buffer_.data(), buffer_.size());
    if (got == 0) return traits_type::eof();
    for (std::size_t i = 0; i < got; ++i) check(buffer_[i]);
    setg(buffer_.data(), buffer_.data(), buffer_.data() + got);
    return traits_type::to_int_type(buffer_[0]);
  }

 private:
  void check(char c) {
    if (in_string_) {
      if (++string_bytes_ > kMostTraceString)
        throw InvalidInput(
            fmt::format("{}: a text of more than {} bytes; not a trace", name_, kMostTraceString));
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
    } else if (c == '"') {
      in_string_ = true;
      string_bytes_ = 0;
    } else if (c == '{' || c == '[') {
      if (++depth_ > kMostTraceDepth)
        throw InvalidInput(fmt::format("{}: nested more than {} deep; not a trace", name_, kMostTraceDepth));
    } else if (c == '}' || c == ']') {
      --depth_;
    }
  }

  std::string name_;
  const ByteSource& source_;
  std::array<char, std::size_t{1} << 16> buffer_;
  bool in_string_ = false, escaped_ = false;
  std::size_t string_bytes_ = 0;
  int depth_ = 0;
};

/// An event while it is parsed.
struct KinetoEvent {
  std::string phase, category, name;
  std::optional<double> start, duration;  ///< microseconds
  std::int64_t thread = 0;
  std::uint64_t correlation = 0, external = 0;
  std::int32_t stream = 0, device = 0;
  OpInputs inputs;
};

/// Returns the nearest integer in range, else 0.
template <class T>
T whole(double value) {
  return std::isfinite(value) && std::abs(value) < 2e9 ? static_cast<T>(std::llround(value)) : T{0};
}
std::uint64_t id_of(double value) {
  return std::isfinite(value) && value > 0 && value < 9e15 ? static_cast<std::uint64_t>(value) : 0;
}

/// Follows the parser through the file: events are objects in the array "traceEvents", or in an array that is the whole
/// file.
class KinetoHandler {
 public:
  KinetoHandler(TrainingTrace& trace, TraceBuilder& builder) : trace_(trace), builder_(builder) {}

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(std::int64_t x) { return number(static_cast<double>(x)); }
  bool number_unsigned(std::uint64_t x) { return number(static_cast<double>(x)); }
  bool number_float(double x, const std::string&) { return number(x); }
  bool binary(nlohmann::json::binary_t&) { return value(); }

  bool string(std::string& text) {
    if (in_list(Part::types)) {
      if (event_.inputs.types.size() < kMostOpInputs) event_.inputs.types.push_back(text.substr(0, 40));
    } else if (part_ == Part::event && depth_ == event_depth_) {
      if (key_ == "ph") event_.phase = text.substr(0, 4);
      if (key_ == "cat") event_.category = text.substr(0, 40);
      if (key_ == "name") event_.name = text.substr(0, kMostNameBytes);
      if (key_ == "tid") event_.thread = static_cast<std::int64_t>(std::hash<std::string>()(text) >> 1);
    } else if (part_ == Part::arguments && depth_ == event_depth_ + 1) {
      // Some versions write ids as text.
      if (const auto x = parse_number<double>(text)) argument(*x);
    } else if (part_ == Part::properties && key_ == "name" && trace_.gpu_name.empty()) {
      trace_.gpu_name = text.substr(0, kMostNameBytes);
    }
    return value();
  }

  bool start_object(std::size_t) {
    ++depth_;
    if (part_ == Part::none && depth_ == 2 && key_ == "distributedInfo") {
      part_ = Part::distributed;
    } else if (part_ == Part::events && depth_ == events_depth_ + 1) {
      part_ = Part::event;
      event_depth_ = depth_;
      event_ = {};
    } else if (part_ == Part::event && depth_ == event_depth_ + 1 && key_ == "args") {
      part_ = Part::arguments;
    }
    return true;
  }

  bool end_object() {
    if (part_ == Part::arguments && depth_ == event_depth_ + 1) {
      part_ = Part::event;
    } else if (part_ == Part::event && depth_ == event_depth_) {
      part_ = Part::events;
      finish_event();
    } else if (part_ == Part::distributed && depth_ == 2) {
      part_ = Part::none;
    }
    --depth_;
    return value();
  }

  bool start_array(std::size_t) {
    ++depth_;
    if (part_ == Part::none && ((depth_ == 2 && key_ == "traceEvents") || depth_ == 1)) {
      part_ = Part::events;
      events_depth_ = depth_;
      found_ = true;
    } else if (part_ == Part::none && depth_ == 2 && key_ == "deviceProperties") {
      part_ = Part::properties;
      events_depth_ = depth_;
    } else if (part_ == Part::arguments && depth_ == event_depth_ + 2) {
      if (key_ == "Input Dims" || key_ == "Input dims") part_ = Part::dims;
      if (key_ == "Input type") part_ = Part::types;
      list_depth_ = depth_;
    } else if (part_ == Part::dims && depth_ == list_depth_ + 1) {
      if (event_.inputs.dims.size() < kMostOpInputs) {
        event_.inputs.dims.emplace_back();
        event_.inputs.elements.push_back(0);
      }
      list_of_tensors_ = false;
    } else if (part_ == Part::dims && depth_ == list_depth_ + 2) {
      list_of_tensors_ = true;
      product_ = 1;
    }
    return true;
  }

  bool end_array() {
    if (in_list(Part::dims) && depth_ == list_depth_ + 2 && !event_.inputs.elements.empty())
      event_.inputs.elements.back() = static_cast<std::int64_t>(
          std::min(kMostElements, static_cast<double>(event_.inputs.elements.back()) + product_));
    if ((part_ == Part::dims || part_ == Part::types) && depth_ == list_depth_) part_ = Part::arguments;
    if ((part_ == Part::events || part_ == Part::properties) && depth_ == events_depth_) part_ = Part::none;
    --depth_;
    return value();
  }

  bool key(std::string& name) {
    if (part_ != Part::event || depth_ == event_depth_) key_ = name.substr(0, 60);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    error_position_ = position;
    // An error at the end of the input names "unexpected end of input".
    truncated_ = std::string_view(error.what()).find("end of input") != std::string_view::npos;
    return false;
  }

  bool found() const { return found_; }
  std::size_t error_position() const { return error_position_; }
  bool truncated() const { return truncated_; }

 private:
  enum class Part : std::uint8_t { none, properties, distributed, events, event, arguments, dims, types };

  bool in_list(Part part) const { return part_ == part; }
  bool value() { return true; }

  bool number(double x) {
    if (part_ == Part::event && depth_ == event_depth_) {
      if (key_ == "ts" && std::abs(x) < kMostMicroseconds) event_.start = x;
      if (key_ == "dur" && x >= 0 && x < kMostMicroseconds) event_.duration = x;
      if (key_ == "tid" && std::abs(x) < 9e15) event_.thread = static_cast<std::int64_t>(x);
    } else if (part_ == Part::arguments && depth_ == event_depth_ + 1) {
      argument(x);
    } else if (part_ == Part::distributed && depth_ == 2 && x >= 0) {
      if (key_ == "rank") trace_.rank = whole<int>(x);
      if (key_ == "world_size") trace_.ranks = whole<int>(x);
    } else if (part_ == Part::dims) {
      const double size = x >= 0 && x < 1e12 ? x : 0;
      if (depth_ == list_depth_ + 2)
        product_ *= size;
      else if (depth_ == list_depth_ + 1 && !event_.inputs.dims.empty() &&
               event_.inputs.dims.back().size() < kMostDims)
        event_.inputs.dims.back().push_back(static_cast<std::int64_t>(size));
    }
    return true;
  }

  void argument(double x) {
    if (key_ == "External id" || key_ == "external id") event_.external = id_of(x);
    if (key_ == "correlation") event_.correlation = id_of(x);
    if (key_ == "stream") event_.stream = whole<std::int32_t>(x);
    if (key_ == "device") event_.device = whole<std::int32_t>(x);
  }

  void finish_event();

  TrainingTrace& trace_;
  TraceBuilder& builder_;
  Part part_ = Part::none;
  int depth_ = 0, events_depth_ = 0, event_depth_ = 0, list_depth_ = 0;
  bool found_ = false, list_of_tensors_ = false, truncated_ = false;
  double product_ = 1;
  std::string key_;
  KinetoEvent event_;
  std::size_t error_position_ = 0;
};

void KinetoHandler::finish_event() {
  if (event_.phase != "X") return;  // metadata, flows, instants
  const std::string& category = event_.category;
  const bool kernel = category == "kernel" || category == "Kernel";
  const bool copy = category == "gpu_memcpy" || category == "Memcpy";
  const bool set = category == "gpu_memset" || category == "Memset";
  const bool call = category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime";
  const bool op = category == "cpu_op" || category == "Operator" || category == "user_annotation";
  if (!kernel && !copy && !set && !call && !op) {
    if (trace_.skipped.size() < 64 || trace_.skipped.contains(category)) ++trace_.skipped[category];
    return;
  }
  if (!event_.start || !event_.duration || event_.name.empty()) {
    ++trace_.malformed;
    return;
  }
  const auto start = static_cast<std::int64_t>(std::llround(*event_.start * 1e3));
  const auto duration = static_cast<std::int64_t>(std::llround(*event_.duration * 1e3));
  if ((kernel || copy || set) && duration > kMostGpuEventNs) {
    ++trace_.malformed;
    return;
  }
  const std::uint32_t name = builder_.name(event_.name);
  if (kernel || copy || set) {
    GpuEvent gpu;
    gpu.start = start, gpu.duration = duration, gpu.name = name;
    gpu.stream = event_.stream, gpu.device = event_.device;
    gpu.work = kernel ? GpuWork::kernel : copy ? GpuWork::copy : GpuWork::set;
    builder_.add_gpu(gpu, event_.correlation, event_.external);
    return;
  }
  HostEvent host;
  host.start = start, host.duration = duration, host.name = name, host.thread = event_.thread;
  if (call) {
    builder_.add_call(host, event_.correlation, event_.external);
  } else {
    host.inputs = builder_.inputs(std::move(event_.inputs));
    builder_.add_op(host, event_.external);
  }
}

}  // namespace

TrainingTrace read_kineto(const std::string& name, const ByteSource& source) {
  TrainingTrace trace;
  trace.file = name;
  trace.format = "Kineto";
  TraceBuilder builder(trace);
  builder.name("(names beyond the limit)");
  KinetoHandler handler(trace, builder);
  LimitedBuffer buffer(name, source);
  std::istream stream(&buffer);
  if (!nlohmann::json::sax_parse(stream, &handler)) {
    if (handler.truncated())
      throw InvalidInput(
          fmt::format("{}: ends after {} bytes in the middle of its JSON: incomplete, or still being written",
                      name, handler.error_position()));
    throw InvalidInput(fmt::format("{}: not JSON at byte {}", name, handler.error_position()));
  }
  if (!handler.found())
    throw InvalidInput(fmt::format("{}: no \"traceEvents\" in it; name a trace of torch.profiler", name));
  builder.finish();
  return trace;
}

}  // namespace precbench
