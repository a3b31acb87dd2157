#pragma once

#include "storage/aws_profiles.hpp"
#include "storage/variables.hpp"

#include <string>
#include <string_view>

namespace headrace {

/// The endpoint that the variables name for a service ("s3", "sts", "sso"): `AWS_ENDPOINT_URL_STS`,
/// then `AWS_ENDPOINT_URL`. Empty: none does.
[[nodiscard]] std::string variable_endpoint(const variable_lookup& variable,
                                            std::string_view service);

/// The one that a profile names: of the service in the section `services` that it refers to, then
/// `endpoint_url`. Empty: none. Errors are `invalid_request`: a section that is not there.
[[nodiscard]] result<std::string> profile_endpoint(const aws_profiles& files,
                                                   const aws_section& profile,
                                                   std::string_view service);

/// `sts.eu-west-1.amazonaws.com`, and what it is elsewhere.
[[nodiscard]] std::string aws_service_host(std::string_view service, std::string_view region);

}  // namespace headrace
