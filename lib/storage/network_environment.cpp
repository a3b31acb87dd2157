#include "storage/network_environment.hpp"

namespace headrace {

std::shared_ptr<const network_settings> read_network_settings(const storage_options& options,
                                                              const variable_lookup& variable) {
  network_settings settings;
  settings.tls.ca_file = options.ca_file;
  if (settings.tls.ca_file.empty()) {
    settings.tls.ca_file = first_of(variable, {"AWS_CA_BUNDLE", "SSL_CERT_FILE"}).value;
    settings.tls.ca_directory = first_of(variable, {"SSL_CERT_DIR"}).value;
  }
  settings.tls.certificate_file = options.certificate_file;
  settings.tls.key_file = options.key_file;
  settings.tls.verify = options.verify_tls;
  settings.proxy.http = first_of(variable, {"http_proxy", "all_proxy", "ALL_PROXY"}).value;
  settings.proxy.https =
      first_of(variable, {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}).value;
  settings.proxy.bypass = first_of(variable, {"no_proxy", "NO_PROXY"}).value;
  return std::make_shared<const network_settings>(std::move(settings));
}

}  // namespace headrace
