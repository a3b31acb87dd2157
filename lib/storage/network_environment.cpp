#include "storage/network_environment.hpp"

#include <initializer_list>
#include <string>
#include <utility>

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
  const auto take = [&variable](std::initializer_list<const char*> names, std::string& url,
                                std::string& named_by) {
    if (auto found = first_of(variable, names); !found.value.empty()) {
      url = std::move(found.value);
      named_by = found.name;
    }
  };
  take({"http_proxy", "all_proxy", "ALL_PROXY"}, settings.proxy.http, settings.proxy.http_named_by);
  take({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}, settings.proxy.https,
       settings.proxy.https_named_by);
  settings.proxy.bypass = first_of(variable, {"no_proxy", "NO_PROXY"}).value;
  return std::make_shared<const network_settings>(std::move(settings));
}

}  // namespace headrace
