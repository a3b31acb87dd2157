#pragma once

#include "storage/variables.hpp"

#include <headrace/base/result.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/storage/transfer.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

/// A profile, an SSO session or a list of services, as the files hold it.
struct aws_section {
  /// What lies deeper is named with a dot: `s3.addressing_style`. May hold secrets.
  std::map<std::string, std::string, std::less<>> values;
  std::string file;  ///< Where it stands; both files, where both have it.

  /// Empty where it is not there.
  [[nodiscard]] std::string value(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return !value(name).empty(); }
};

/// What the AWS tools' shared files hold.
struct aws_profiles {
  using sections = std::map<std::string, aws_section, std::less<>>;

  sections profiles;
  sections sso_sessions;
  sections services;
  std::string config_file;       ///< Empty: nobody says where, and there is no home.
  std::string credentials_file;  ///< The same.
  bool config_found = false;
  bool credentials_found = false;

  /// Null where there is none.
  [[nodiscard]] const aws_section* profile(std::string_view name) const;

  /// For messages: which files were looked at.
  [[nodiscard]] std::string files() const;
};

/// Which profile is meant, and who says so.
struct aws_profile_choice {
  std::string name = "default";
  std::string named_by;  ///< "AWS_PROFILE", "storage.profile"; empty: nobody.
};

/// Puts the files together: in the credentials file each section is a profile, in the config file
/// `[default]`, `[profile name]`, `[sso-session name]` and `[services name]` count; where both know
/// a value of a profile, the credentials file wins. Errors: those of `parse_ini`.
[[nodiscard]] result<void> add_aws_config(aws_profiles& into, std::string_view text);
[[nodiscard]] result<void> add_aws_credentials(aws_profiles& into, std::string_view text);

/// Reads the files that `AWS_CONFIG_FILE` and `AWS_SHARED_CREDENTIALS_FILE` name, `~/.aws/config`
/// and `~/.aws/credentials` otherwise. One that is not there holds nothing, as the AWS tools see
/// it. Errors name the file: those of reading and of `parse_ini`.
[[nodiscard]] task<result<aws_profiles>> read_aws_profiles(storage_loop& loop,
                                                           variable_lookup variable);

/// The profile that is meant; null where nobody names one and there is no `default`. Errors are
/// `invalid_request`: one that somebody names and that no file has.
[[nodiscard]] result<const aws_section*> choose_profile(const aws_profiles& from,
                                                        const aws_profile_choice& wanted);

/// `path` with `~` as the home that `HOME` names. Empty where that is not set.
[[nodiscard]] std::string expand_home(std::string path, const variable_lookup& variable);

}  // namespace headrace
