// Compiles fmt once into the program. Header-only, it would be compiled with every file that formats, 3 s
// each; as a shared library, the program would not run on systems without it. Explicit instantiations that
// only this file can provide follow.
#include <fmt/format-inl.h>

#include <locale>

FMT_BEGIN_NAMESPACE
namespace detail {

template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
