#pragma once

#include "storage/variables.hpp"

#include <headrace/http/network_settings.hpp>
#include <headrace/storage/storage_options.hpp>

#include <memory>

namespace headrace {

/// Proxies and certificates, from the options first, then from the environment as curl and the
/// clouds' tools read it: `http_proxy` (lower case alone: a CGI program gets the other one from
/// outside), `https_proxy`, `all_proxy`, `no_proxy` in either case, empty ones as if they were not
/// set; `AWS_CA_BUNDLE` for S3, `SSL_CERT_FILE`, `SSL_CERT_DIR`. Nothing is checked here: what is
/// wrong with a proxy's URL is an error of the requests that would go through it.
[[nodiscard]] std::shared_ptr<const network_settings> read_network_settings(
    const storage_options& options, const variable_lookup& variable);

}  // namespace headrace
