#pragma once

#include "manual_clock.hpp"
#include "storage/aws_keys.hpp"
#include "storage_client.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::test {

/// A folder that is gone with the test.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "headrace-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path(std::string_view name = {}) const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }

  /// Writes a file and the folders above it; gives its path.
  std::string write(std::string_view name, std::string_view text) const {
    const auto whole = path_ / name;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole, std::ios::binary) << text;
    return whole.string();
  }

 private:
  std::filesystem::path path_;
};

/// What the links of the chain are given: an environment of the test's own, whose home is an empty
/// folder, and a clock that stands.
struct aws_client : storage_client {
  temporary_folder home;
  manual_clock time;
  std::map<std::string, std::string> variables{{"HOME", home.path()},
                                               {"AWS_EC2_METADATA_DISABLED", "true"}};
  variable_lookup lookup = [this](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };

  [[nodiscard]] aws_search search() {
    const auto sts = variables.find("AWS_ENDPOINT_URL_STS");
    const auto sso = variables.find("AWS_ENDPOINT_URL_SSO");
    return {.loop = services,
            .variable = lookup,
            .network = nullptr,
            .time = time,
            .region = "eu-west-1",
            .sts_endpoint = sts == variables.end() ? "" : sts->second,
            .sso_endpoint = sso == variables.end() ? "" : sso->second};
  }
};

/// The answer of STS to `action`, with keys that end with `mark`.
[[nodiscard]] inline std::string sts_keys(const std::string& action, const std::string& mark,
                                          const std::string& expires = "2026-01-01T01:00:00Z") {
  return "<" + action + "Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><" + action +
         "Result><Credentials><AccessKeyId>ASIA" + mark + "</AccessKeyId><SecretAccessKey>secret-" +
         mark + "</SecretAccessKey><SessionToken>token-" + mark + "</SessionToken><Expiration>" +
         expires + "</Expiration></Credentials></" + action + "Result></" + action + "Response>";
}

[[nodiscard]] inline std::string sts_refusal(const std::string& code, const std::string& message) {
  return "<ErrorResponse><Error><Type>Sender</Type><Code>" + code + "</Code><Message>" + message +
         "</Message></Error><RequestId>REQ-1</RequestId></ErrorResponse>";
}

/// Keys as containers and machines hand them out.
[[nodiscard]] inline std::string json_keys(const std::string& mark,
                                           const std::string& expires = "2026-01-01T01:00:00Z") {
  return R"({"Code":"Success","AccessKeyId":"ASIA)" + mark + R"(","SecretAccessKey":"secret-)" +
         mark + R"(","Token":"token-)" + mark + R"(","Expiration":")" + expires + R"("})";
}

}  // namespace headrace::test
