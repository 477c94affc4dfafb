// Names the limits behind EFBIG and EMFILE. See error_text.h.
#include "kernels/base/error_text.h"

#include <cerrno>

namespace precbench {
namespace {

std::string limit_of(int error) {
  if (error == EFBIG) return "; the limit is that of ulimit -f, or of the file system";
  return error == EMFILE ? "; the limit is that of ulimit -n" : "";
}

}  // namespace

std::string error_text(int error) { return std::generic_category().message(error) + limit_of(error); }

std::string error_text(const std::error_code& error) { return error.message() + limit_text(error); }

std::string limit_text(const std::error_code& error) {
  const bool of_system =
      error.category() == std::generic_category() || error.category() == std::system_category();
  return of_system ? limit_of(error.value()) : "";
}

}  // namespace precbench
