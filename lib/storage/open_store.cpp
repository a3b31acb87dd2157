#include "storage/http_object_store.hpp"

#include <headrace/storage/object_store.hpp>

#include <array>

namespace headrace {
namespace {

using make_store = result<std::shared_ptr<object_store>>(const uri&, const storage_options&);

struct known_scheme {
  std::string_view name;
  make_store* make;
};

constexpr std::array<known_scheme, 9> known_schemes = {{
    {"s3", &make_s3_store},
    {"gs", &make_gcs_store},
    {"az", &make_azure_store},
    {"abfs", &make_azure_store},
    {"abfss", &make_azure_store},
    {"hf", &make_hub_store},
    {"http", &make_http_store},
    {"https", &make_http_store},
    {"file", &make_file_store},
}};

}  // namespace

result<std::shared_ptr<object_store>> open_store(std::string_view location,
                                                 const storage_options& options) {
  auto parsed = uri::parse(location);
  if (!parsed) return failure{parsed.error()};
  if (auto checked = check(options); !checked) return failure{checked.error()};
  for (const auto& scheme : known_schemes) {
    if (scheme.name == parsed->scheme) return scheme.make(*parsed, options);
  }
  std::string names;
  for (const auto& scheme : known_schemes)
    names += (names.empty() ? "" : ", ") + std::string(scheme.name) + "://";
  return failure{
      error(errc::unsupported,
            "the scheme '" + parsed->scheme + "' is not known: use " + names + " or a path",
            {.uri = parsed->display()})};
}

}  // namespace headrace
