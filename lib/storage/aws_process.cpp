#include "storage/aws_process.hpp"

#include "storage/aws_key_answer.hpp"
#include "storage/child_process.hpp"
#include "storage/json_answer.hpp"
#include "storage/shell_words.hpp"
#include "storage/text.hpp"

#include <headrace/base/sizes.hpp>
#include <headrace/coro/environment.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <utility>

namespace headrace {

task<result<aws_keys>> keys_of_process(aws_search search, std::string command, std::string told_by,
                                       std::chrono::milliseconds limit) {
  const std::string what = told_by + ", credential_process";
  auto words = split_shell_words(command);
  if (!words || words->empty()) {
    co_return failure{
        error(errc::invalid_request, what + ": a quotation has no end, or no program is named")};
  }
  const std::string program = detail::printable(words->front(), 256);
  const environment given = co_await current_environment();
  auto running =
      search.loop.context.helpers()->run([words = std::move(*words), limit, stop = given.stop] {
        return run_child(words, limit, 64_KiB, stop);
      });
  auto outcome = co_await running;
  if (!outcome) {
    const error& failed = outcome.error();
    if (failed.kind() == errc::cancelled) co_return failure{failed};
    const errc kind = failed.kind() == errc::not_found ? errc::invalid_request : failed.kind();
    co_return failure{error(kind, what + ": " + failed.reason())};
  }
  if (outcome->exit_status != 0) {
    co_return failure{error(errc::access_denied, what + ": " + program + " has ended with status " +
                                                     std::to_string(outcome->exit_status) +
                                                     ": run it by hand to see why")};
  }
  const auto members = detail::parse_json_object(outcome->output);
  const auto version =
      members ? detail::integer_of(*members, "Version") : std::optional<std::uint64_t>();
  const std::string about = what + ": " + program;
  if (!version)
    co_return failure{error(errc::protocol_error, about + " has not written JSON with a Version")};
  if (*version != 1) {
    co_return failure{error(
        errc::unsupported,
        about + " has written version " + std::to_string(*version) + ", and 1 alone is known")};
  }
  auto keys = keys_of_json(*members, {.token = "SessionToken"}, about);
  if (!keys) co_return failure{keys.error()};
  if (keys->expires && *keys->expires <= search.time.wall()) {
    co_return failure{error(errc::access_denied,
                            about + " has written keys that have run out already: log in again as "
                                    "it wants it, and check this machine's clock")};
  }
  keys->source = what;
  co_return keys;
}

}  // namespace headrace
