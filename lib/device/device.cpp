#include <headrace/device/device.hpp>

#include <charconv>

namespace headrace {

std::string device::to_string() const {
  return kind == type::cpu ? "cpu" : "cuda:" + std::to_string(index);
}

result<device> parse_device(std::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda(0);
  constexpr std::string_view prefix = "cuda:";
  if (text.starts_with(prefix)) {
    const char* const end = text.data() + text.size();
    std::uint32_t index = 0;
    const auto read = std::from_chars(text.data() + prefix.size(), end, index);
    if (read.ec == std::errc() && read.ptr == end) return cuda(index);
  }
  return failure{error(errc::invalid_request,
                       "'" + std::string(text) + "' is not a device: use cpu, cuda or cuda:N")};
}

}  // namespace headrace
