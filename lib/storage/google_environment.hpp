#pragma once

#include "storage/service_place.hpp"
#include "storage/variables.hpp"

#include <headrace/base/result.hpp>
#include <headrace/storage/storage_options.hpp>

#include <string>

namespace headrace {

/// What the options and the environment say about Google Cloud Storage, options first. An empty
/// variable counts as not set.
struct google_settings {
  service_place endpoint;
  std::string token;             ///< To use as it is; empty: look further. A secret.
  bool anonymous = false;        ///< No credentials are wanted.
  std::string anonymous_reason;  ///< Who said so, for reports.

  std::string named_file;       ///< Of `GOOGLE_APPLICATION_CREDENTIALS`; empty: not set.
  std::string well_known_file;  ///< Where `gcloud auth application-default login` writes; may not
                                ///< be there; empty: nobody knows where that would be.
  bool asks_metadata = true;
  bool metadata_named = false;  ///< Somebody said where the metadata server is: it has to answer.
  http_origin metadata;

  std::string project;  ///< Who pays for requests where the requester does; may be empty.
};

/// Reads the options `token`, `anonymous` and `endpoint`; `STORAGE_EMULATOR_HOST`, which leads to
/// an emulator and means no credentials; `GOOGLE_APPLICATION_CREDENTIALS`; `CLOUDSDK_CONFIG` and
/// `HOME` for the well-known file; `NO_GCE_CHECK` and `GCE_METADATA_HOST`;
/// `GOOGLE_CLOUD_QUOTA_PROJECT` and `GOOGLE_CLOUD_PROJECT`. Asks and reads nothing else. Errors are
/// `invalid_request` and name the option or variable, never its value.
[[nodiscard]] result<google_settings> read_google_settings(const storage_options& options,
                                                           const variable_lookup& variable);

}  // namespace headrace
