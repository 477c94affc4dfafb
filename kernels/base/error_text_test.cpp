// Errors of the system name the limit that a user can raise.
#include "kernels/base/error_text.h"

#include <cerrno>
#include <cstring>

#include "kernels/testing/catch.h"

namespace precbench {

TEST_CASE("error_text: limits of the process are named with their command", "[errors]") {
  CHECK(error_text(ENOSPC) == std::strerror(ENOSPC));
  CHECK(error_text(EFBIG) ==
        std::string(std::strerror(EFBIG)) + "; the limit is that of ulimit -f, or of the file system");
  CHECK(error_text(EMFILE) == std::string(std::strerror(EMFILE)) + "; the limit is that of ulimit -n");
  CHECK(error_text(std::make_error_code(std::errc::too_many_files_open)) == error_text(EMFILE));
  CHECK(limit_text(std::make_error_code(std::errc::no_space_on_device)).empty());
  CHECK(limit_text(std::error_code(EFBIG, std::system_category())) ==
        "; the limit is that of ulimit -f, or of the file system");
}

}  // namespace precbench
