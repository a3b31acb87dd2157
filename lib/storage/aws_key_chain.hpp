#pragma once

#include "storage/aws_container.hpp"
#include "storage/aws_environment.hpp"
#include "storage/aws_keys.hpp"
#include "storage/aws_profiles.hpp"
#include "storage/refreshed.hpp"

#include <memory>

namespace headrace {

/// What the chain goes by.
struct aws_chain_settings {
  aws_settings given;        ///< What the options and the environment say.
  variable_lookup variable;  ///< The environment as it was: see `remember_aws_variables`.
  std::shared_ptr<const network_settings> network;
  http_origin container_agent = aws_container_agent();
};

/// Looks for keys, one link after another; the first that has any is used, and one that is
/// configured and broken is an error:
///
/// 1. the options, 2. the variables (the caller has read both), 3. the profile in the shared files,
/// 4. a web identity, 5. the container, 6. the machine.
///
/// Where no link has any, requests go without a signature: public buckets take them. `aws_keys`
/// then says what was looked at. `time` outlives it.
[[nodiscard]] std::shared_ptr<expiring_source<aws_keys>> make_aws_key_chain(
    aws_chain_settings settings, const clock& time = real_clock());

}  // namespace headrace
