#include <headrace/stream/describe_credentials.hpp>

#include "stream/hosted.hpp"

#include <headrace/storage/object_store.hpp>

#include <memory>
#include <utility>

namespace headrace {
namespace {

task<credential_report> ask_store(std::shared_ptr<object_store> store,
                                  detail::loop_services* services) {
  auto report = co_await store->credentials(services->storage());
  co_return std::move(report).value();
}

task<credential_report> describe(std::shared_ptr<detail::runtime_state> runtime, std::string uri,
                                 open_options options) {
  const auto store = open_store(uri, options.storage).value();
  const auto deadline = options.deadline;
  auto asking =
      detail::hosted<credential_report>(runtime, [store, deadline](detail::loop_services& loop) {
        return detail::within(deadline, ask_store(store, &loop));
      });
  auto report = co_await std::move(asking);
  co_return report;
}

}  // namespace

task<credential_report> describe_credentials(runtime& runtime, std::string uri,
                                             open_options options) {
  return describe(runtime.state(), std::move(uri), std::move(options));
}

}  // namespace headrace
