#include "storage/aws_instance.hpp"

#include "storage/aws_environment.hpp"
#include "storage/aws_key_answer.hpp"
#include "storage/json_answer.hpp"
#include "storage/percent.hpp"
#include "storage/service_place.hpp"
#include "storage/service_request.hpp"
#include "storage/text.hpp"

#include <chrono>
#include <utility>

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr const char* endpoint_variable = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
constexpr const char* mode_variable = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE";
constexpr std::string_view roles = "/latest/meta-data/iam/security-credentials/";

struct metadata_place {
  service_place place;
  bool named = false;  ///< By the user: somebody has to be there.
};

result<metadata_place> place_of(const aws_search& search) {
  const auto endpoint = first_of(search.variable, {endpoint_variable});
  if (!endpoint.value.empty()) {
    auto place = parse_service_place(endpoint.value, endpoint_variable);
    if (!place) return failure{place.error()};
    return metadata_place{std::move(*place), true};
  }
  metadata_place usual;
  usual.place.origin = {"http", "169.254.169.254", 80};
  const auto mode = first_of(search.variable, {mode_variable});
  if (mode.value.empty() || detail::same_name(mode.value, "ipv4")) return usual;
  if (!detail::same_name(mode.value, "ipv6")) {
    return failure{
        error(errc::invalid_request, std::string(mode_variable) + " is neither IPv4 nor IPv6")};
  }
  usual.place.origin.host = "fd00:ec2::254";
  return usual;
}

/// One request to the service; no proxy stands between.
service_request request_to(const metadata_place& to, std::string path, const std::string& about) {
  service_request wanted{.asked = {.route = {to.place.origin, nullptr}, .request = {}},
                         .about = about,
                         .connect_limit = 1s,
                         .answer_limit = 5s};
  wanted.asked.request.target = to.place.path + std::move(path);
  wanted.asked.request.host = to.place.origin.host_field();
  return wanted;
}

aws_instance_keys nothing(std::string why) { return {std::nullopt, std::move(why)}; }

}  // namespace

task<result<aws_instance_keys>> keys_of_instance(aws_search search) {
  const auto disabled = read_switch(first_of(search.variable, {"AWS_EC2_METADATA_DISABLED"}));
  if (!disabled) co_return failure{disabled.error()};
  if (*disabled) co_return nothing("switched off by AWS_EC2_METADATA_DISABLED");
  auto place = place_of(search);
  if (!place) co_return failure{place.error()};
  const std::string service =
      "the instance metadata service" +
      (place->named ? " (" + std::string(endpoint_variable) + ")" : std::string());

  service_request first = request_to(*place, "/latest/api/token", service);
  first.asked.request.method = "PUT";
  first.asked.request.fields = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  if (!place->named) {
    // Mostly nobody is there. In a container behind one hop more than the service allows, the
    // answer never comes.
    first.answer_limit = 1s;
    first.retries = 0;
  }
  auto granted = co_await ask_service(search.loop, std::move(first));
  if (!granted) {
    if (place->named || granted.error().kind() == errc::cancelled)
      co_return failure{granted.error()};
    co_return nothing("nobody answers");
  }
  const std::string token(detail::trimmed(granted->body));
  if (granted->head.status() != 200 || token.empty() || token.size() > 1024 ||
      !detail::all(token, detail::is_visible)) {
    if (!place->named) co_return nothing("what answers is none");
    co_return failure{refused_keys(*granted, service + " gives no token (IMDSv2)", {}, {},
                                   std::string("check ") + endpoint_variable)};
  }
  const http_fields fields = {{"x-aws-ec2-metadata-token", token}};

  service_request second = request_to(*place, std::string(roles), service);
  second.asked.request.fields = fields;
  auto listed = co_await ask_service(search.loop, std::move(second));
  if (!listed) co_return failure{listed.error()};
  if (listed->head.status() == 404) co_return nothing("the machine has no role");
  const auto line = std::string_view(listed->body).substr(0, listed->body.find_first_of("\r\n"));
  const std::string role(detail::trimmed(line));
  if (listed->head.status() != 200 || role.empty() || role.size() > 256 ||
      !detail::all(role, detail::is_visible)) {
    co_return failure{refused_keys(*listed, service + " names no role", {}, {},
                                   "check the machine's instance profile")};
  }

  service_request third =
      request_to(*place, std::string(roles) + percent_encode(role, slash::encoded), service);
  third.asked.request.fields = fields;
  auto answer = co_await ask_service(search.loop, std::move(third));
  if (!answer) co_return failure{answer.error()};
  const std::string about = service + ", role " + role;
  const auto members = detail::parse_json_object(answer->body);
  const auto code = members ? detail::string_of(*members, "Code") : std::string();
  if (answer->head.status() != 200 || (!code.empty() && code != "Success")) {
    co_return failure{refused_keys(*answer, about + ": no keys", detail::printable(code, 64), {},
                                   "check the trust policy of the machine's role")};
  }
  if (!members) co_return failure{error(errc::protocol_error, about + ": the answer is no JSON")};
  auto keys = keys_of_json(*members, {}, about);
  if (!keys) co_return failure{keys.error()};
  co_return aws_instance_keys{std::move(*keys), {}};
}

}  // namespace headrace
