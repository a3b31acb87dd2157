#pragma once

#include <headrace/base/export.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/storage/credential_report.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>

#include <string>

namespace headrace {

/// Says which credentials requests to `uri` would carry, and where they were found, without a
/// secret.
///
/// Fetches them, from files and services, and sends nothing to the store itself: whether it takes
/// them is not known. Runs on a loop of the runtime and resumes on the awaiter's executor; of
/// `options` the storage options and the deadline count. Throws `headrace::error`: `unsupported`
/// (an unknown scheme), `invalid_request` (half-set keys, a profile that is not there),
/// `access_denied` (a login that has run out), those of the services' connections, `cancelled`.
///
///     auto report = co_await headrace::describe_credentials(runtime, "s3://bucket/prefix");
///     std::puts(report.source.c_str());  // profile 'prod' in /home/me/.aws/credentials
[[nodiscard]] HEADRACE_API task<credential_report> describe_credentials(runtime& runtime,
                                                                        std::string uri,
                                                                        open_options options = {});

}  // namespace headrace
