#include "storage/aws_endpoints.hpp"

#include "storage/text.hpp"

namespace headrace {

std::string variable_endpoint(const variable_lookup& variable, std::string_view service) {
  std::string name = "AWS_ENDPOINT_URL_";
  for (const char c : service) name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return first_of(variable, {name.c_str(), "AWS_ENDPOINT_URL"}).value;
}

result<std::string> profile_endpoint(const aws_profiles& files, const aws_section& profile,
                                     std::string_view service) {
  if (const auto services = profile.value("services"); !services.empty()) {
    const auto found = files.services.find(services);
    if (found == files.services.end()) {
      return failure{
          error(errc::invalid_request, profile.file + ": a profile names the services '" +
                                           detail::printable(services, 64) +
                                           "', and there is no such section: add [services " +
                                           detail::printable(services, 64) + "]")};
    }
    auto own = found->second.value(std::string(service) + ".endpoint_url");
    if (!own.empty()) return own;
  }
  return profile.value("endpoint_url");
}

std::string aws_service_host(std::string_view service, std::string_view region) {
  std::string host(service);
  if (!region.empty()) host += '.' + std::string(region);
  return host + (region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com");
}

}  // namespace headrace
