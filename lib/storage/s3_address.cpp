#include "storage/s3_address.hpp"

#include "storage/percent.hpp"
#include "storage/text.hpp"

#include <headrace/http/http_origin.hpp>

#include <charconv>
#include <optional>
#include <utility>

namespace headrace {
namespace {

failure<error> refused(const std::string& message) {
  return failure{error(errc::invalid_request, message)};
}

std::string aws_host(std::string_view region) {
  const bool china = region.substr(0, 3) == "cn-";
  return "s3." + std::string(region) + (china ? ".amazonaws.com.cn" : ".amazonaws.com");
}

bool is_aws_host(std::string_view host) noexcept {
  return host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn");
}

bool is_address(std::string_view host) noexcept {
  return host.find(':') != std::string_view::npos ||
         (!host.empty() &&
          detail::all(host, [](char c) { return detail::is_digit(c) || c == '.'; }));
}

// `s3.eu-west-1.amazonaws.com`, `s3.dualstack.eu-west-1.amazonaws.com`,
// `….s3.eu-west-1.vpce.amazonaws.com`
std::string region_of_aws_host(std::string_view host) {
  bool after_service = false;
  while (!host.empty()) {
    const auto dot = host.find('.');
    const auto label = host.substr(0, dot);
    host = dot == std::string_view::npos ? std::string_view() : host.substr(dot + 1);
    if (label == "s3" || label == "s3-fips") {
      after_service = true;
    } else if (after_service && label != "dualstack") {
      return label != "amazonaws" && detail::is_region_label(label) ? std::string(label)
                                                                    : std::string();
    }
  }
  return {};
}

// What stands in the path has to survive there; stores other than AWS allow names that AWS does
// not.
bool is_bucket(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         detail::all(name, [](char c) {
           return detail::is_alphanumeric(c) || c == '.' || c == '-' || c == '_';
         });
}

// A label of a host name. A dot would be legal, but no certificate of the form *.s3.amazonaws.com
// covers it.
bool is_label(std::string_view bucket) noexcept {
  return bucket.size() <= 63 && bucket.front() != '-' && bucket.back() != '-' &&
         detail::all(bucket, [](char c) {
           return detail::is_digit(c) || (c >= 'a' && c <= 'z') || c == '-';
         });
}

// With dots as well: for those who insist on virtual hosts.
bool is_host_name(std::string_view bucket) noexcept {
  while (true) {
    const auto dot = bucket.find('.');
    const auto label = bucket.substr(0, dot);
    if (label.empty() || !is_label(label)) return false;
    if (dot == std::string_view::npos) return true;
    bucket.remove_prefix(dot + 1);
  }
}

result<void> take_endpoint(s3_address& address, std::string_view endpoint) {
  constexpr auto expected =
      "the S3 endpoint is no URL of a server: expected http://host:port or https://host";
  // Without its own message: a password in it must not be repeated, and `host:9000` would be taken
  // for a path.
  auto location = uri::parse(endpoint);
  if (!location || (location->scheme != "http" && location->scheme != "https"))
    return refused(expected);
  if (!location->user_info.empty()) {
    return refused(
        "the S3 endpoint holds a user or a password: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead");
  }
  if (!location->query.empty()) return refused("the S3 endpoint must not have a query");

  address.scheme = location->scheme;
  address.port = default_port(address.scheme);
  std::string_view authority = location->authority;
  const auto bracket = authority.rfind(']');
  const auto colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    const auto port = authority.substr(colon + 1);
    if (std::from_chars(port.data(), port.data() + port.size(), address.port).ec != std::errc{})
      return refused(expected);
    authority = authority.substr(0, colon);
  }
  if (authority.front() == '[') authority = authority.substr(1, authority.size() - 2);
  address.host = authority;
  address.base_path = location->path;
  while (address.base_path.ends_with('/')) address.base_path.pop_back();
  return {};
}

void split_version(s3_address& address) {
  constexpr std::string_view mark = "?versionId=";
  const auto at = address.key.rfind(mark);
  if (at == std::string::npos) return;
  const auto version = std::string_view(address.key).substr(at + mark.size());
  if (version.empty() || version.find_first_of("/&?") != std::string_view::npos) return;
  address.version_id = version;
  address.key.resize(at);
}

}  // namespace

std::string s3_address::host_field() const {
  std::string field = host.find(':') == std::string::npos ? host : '[' + host + ']';
  if (port != default_port(scheme)) field += ':' + std::to_string(port);
  return field;
}

std::string s3_address::object_path(std::string_view object_key) const {
  return base_path + '/' + percent_encode(object_key);
}

std::string s3_address::bucket_path() const { return path_style ? base_path : base_path + '/'; }

result<s3_address> s3_address::in_region(std::string_view other) const {
  if (!detail::is_region(other) || (is_aws && !detail::is_region_label(other))) {
    return failure{
        error(errc::protocol_error, "the store names a region for the bucket whose name is none")};
  }
  s3_address moved = *this;
  moved.region = other;
  moved.region_known = true;
  if (is_aws) moved.host = path_style ? aws_host(other) : bucket + '.' + aws_host(other);
  return moved;
}

result<s3_address> make_s3_address(const uri& location, const aws_settings& settings) {
  s3_address address;
  address.bucket = location.authority;
  address.key = location.path;
  if (location.scheme != "s3") return refused("not an S3 URI: expected s3://bucket/prefix");
  if (!location.user_info.empty()) {
    return refused(
        "an S3 URI holds no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and write s3://bucket/prefix");
  }
  if (address.bucket.starts_with("arn:")) {
    return failure{error(
        errc::unsupported,
        "access points are not supported by their ARN: use the access point's alias as the bucket")};
  }
  if (!is_bucket(address.bucket)) {
    return refused(
        "the bucket's name holds a character that bucket names do not have: expected letters, digits, '.', '-' and '_'");
  }
  // They take sessions of their own instead of keys.
  if (settings.endpoint.empty() && address.bucket.ends_with("--x-s3")) {
    return failure{error(errc::unsupported,
                         "directory buckets (S3 Express One Zone) are not supported: copy the "
                         "model to a general purpose bucket")};
  }
  split_version(address);

  address.region = settings.region;
  if (settings.endpoint.empty()) {
    address.is_aws = true;
    address.scheme = "https";
    address.port = 443;
  } else {
    if (auto taken = take_endpoint(address, settings.endpoint); !taken)
      return failure{taken.error()};
    if (address.region.empty() && is_aws_host(address.host))
      address.region = region_of_aws_host(address.host);
  }
  address.region_known = !address.region.empty();
  if (address.region.empty()) address.region = "us-east-1";
  if (!detail::is_region(address.region) ||
      (address.is_aws && !detail::is_region_label(address.region))) {
    return refused("the region is none of AWS: expected one such as eu-west-1");
  }
  if (address.is_aws) address.host = aws_host(address.region);

  address.path_style =
      settings.path_style.value_or(!is_aws_host(address.host) || !is_label(address.bucket));
  if (address.path_style) {
    address.base_path += '/' + address.bucket;
    return address;
  }
  if (is_address(address.host)) {
    return refused(
        "an endpoint that is an address has no virtual hosts: unset path_style, or give the endpoint's name");
  }
  if (!is_host_name(address.bucket)) {
    return refused("the bucket's name cannot stand in a host name: unset path_style");
  }
  address.host = address.bucket + '.' + address.host;
  return address;
}

}  // namespace headrace
