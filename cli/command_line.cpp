#include "command_line.hpp"

#include "duration.hpp"

#include <headrace/base/sizes.hpp>
#include <headrace/base/uri.hpp>

#include <CLI/CLI.hpp>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <sstream>
#include <utility>

namespace headrace::cli {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t smallest_chunk = 64_KiB;
constexpr std::size_t smallest_slot = 64_KiB;
constexpr std::size_t slot_step = 4_KiB;

// `--chunk-size` → `HEADRACE_CHUNK_SIZE`.
std::string environment_name(std::string_view option) {
  std::string name = "HEADRACE_";
  for (const char letter : option.substr(option.find_first_not_of('-'))) {
    name += letter == '-'                    ? '_'
            : letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A')
                                             : letter;
  }
  return name;
}

// What the user has to correct: the option, or the variable that it came from.
std::string source_of(const std::string& option, const std::string& text) {
  const std::string variable = environment_name(option);
  const char* const value = std::getenv(variable.c_str());
  return value != nullptr && text == value ? variable : option;
}

// An option with one value; of several the last counts, so that a wrapper's may be overridden.
CLI::Option* add_value(CLI::App& command, const std::string& option, const std::string& type,
                       const std::string& text,
                       std::function<result<void>(const std::string&)> take) {
  const auto taken = [option, take = std::move(take)](const std::string& value) {
    const result<void> outcome = take(value);
    if (!outcome) throw CLI::ValidationError(source_of(option, value), outcome.error().reason());
  };
  return command.add_option_function<std::string>(option, taken, text)
      ->type_name(type)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

failure<error> refused(std::string reason) {
  return failure{error(errc::invalid_request, std::move(reason))};
}

CLI::Option* add_text(CLI::App& command, const std::string& option, const std::string& type,
                      std::string& into, const std::string& text) {
  return add_value(command, option, type, text, [&into](const std::string& value) -> result<void> {
    if (value.empty()) return refused("must not be empty");
    into = value;
    return {};
  });
}

CLI::Option* add_size(CLI::App& command, const std::string& option, std::size_t& into,
                      const std::string& text) {
  return add_value(command, option, "SIZE", text,
                   [&into](const std::string& value) -> result<void> {
                     const auto size = parse_size(value);
                     if (!size) return failure{size.error()};
                     into = *size;
                     return {};
                   });
}

CLI::Option* add_duration(CLI::App& command, const std::string& option,
                          std::chrono::milliseconds shortest, std::chrono::milliseconds& into,
                          const std::string& text) {
  return add_value(command, option, "TIME", text,
                   [shortest, &into](const std::string& value) -> result<void> {
                     const auto duration = parse_duration(value);
                     if (!duration) return failure{duration.error()};
                     if (*duration < shortest) return refused("must be more than 0");
                     into = *duration;
                     return {};
                   });
}

CLI::Option* add_count(CLI::App& command, const std::string& option, unsigned least, unsigned& into,
                       const std::string& text) {
  return add_value(
      command, option, "N", text, [least, &into](const std::string& value) -> result<void> {
        unsigned count = 0;
        const char* const end = value.data() + value.size();
        const auto parsed = std::from_chars(value.data(), end, count);
        if (parsed.ec != std::errc{} || parsed.ptr != end || count < least) {
          return refused("'" + value + "' is not a whole number from " + std::to_string(least) +
                         " to " + std::to_string(std::numeric_limits<unsigned>::max()));
        }
        into = count;
        return {};
      });
}

// One glob an option: without this, CLI11 would take the URI for another, and `[ab]` for a list.
CLI::Option* add_globs(CLI::App& command, const std::string& option, std::vector<std::string>& into,
                       const std::string& text) {
  return command.add_option(option, into, text)->type_name("GLOB")->allow_extra_args(false);
}

struct common_flags {
  int verbose = 0;
  bool quiet = false;
  bool path_style = false;
  CLI::Option* path_style_option = nullptr;
};

void add_common(CLI::App& command, source_arguments& into, common_flags& flags) {
  command
      .add_option("URI", into.uri,
                  "s3://bucket/prefix, http://host/directory, a directory, one .safetensors object")
      ->required()
      ->type_name("");
  open_options& opening = into.opening;
  add_count(command, "--threads", 0, into.threads,
            "Threads that receive; 0: half the cores, 1 to 8")
      ->default_str("0");
  add_count(command, "--max-concurrency", 1, opening.max_concurrency, "The most connections")
      ->default_str("32");
  add_duration(command, "--connect-timeout", 1ms, opening.connect_limit,
               "Until a connection stands")
      ->default_str("5s");
  add_duration(command, "--stall-timeout", 1ms, opening.stall_limit,
               "Of almost no bytes, then the rest is asked for again")
      ->default_str("20s");
  add_duration(command, "--deadline", 0ms, opening.deadline,
               "For opening, and for each stream; 0: none")
      ->default_str("0");
  add_count(command, "--retries", 0, opening.retries, "Of one request without progress in between")
      ->default_str("5");
  command.add_flag("--direct-io", opening.direct_io,
                   "Read local files past the page cache (O_DIRECT)");
  add_text(command, "--ca-file", "FILE", opening.storage.ca_file,
           "Certificate authorities to trust (PEM)");
  add_text(command, "--endpoint", "URL", opening.storage.endpoint,
           "Of an S3 store that is not AWS");
  add_text(command, "--region", "NAME", opening.storage.region, "That requests are signed for");
  command.add_flag("--anonymous", opening.storage.anonymous, "Send no credentials");
  add_text(command, "--profile", "NAME", opening.storage.profile, "Of AWS, to take keys from");
  command.add_flag("--requester-pays", opening.storage.requester_pays,
                   "Pay for requests to a bucket whose owner does not");
  flags.path_style_option =
      command.add_flag("--path-style", flags.path_style,
                       "The bucket stands in the path of a URL; =false: in the host name");
  command.add_flag("-q,--quiet", flags.quiet, "Nothing but errors");
  command.add_flag("-v,--verbose", flags.verbose, "Log lines; twice: all of them");
}

void add_stream(CLI::App& command, stream_arguments& into) {
  command.add_flag("--digest", into.digest, "Print the SHA-256 of each tensor");
  add_text(command, "--stats", "FILE", into.stats_file,
           "Write figures as JSON; -: to standard output");
  add_text(command, "--trace", "FILE", into.trace_file,
           "Write Chrome trace events: open the file in Perfetto");
  add_count(command, "--repeat", 1, into.repeat,
            "Open and stream N times; figures are an array then");
  add_value(command, "--device", "DEVICE", "Where tensors land: cpu, cuda, cuda:1",
            [&into](const std::string& value) -> result<void> {
              const auto device = parse_device(value);
              if (!device) return failure{device.error()};
              into.device = *device;
              return {};
            })
      ->default_str("cpu");
  add_count(command, "--staging-slots", 1, into.staging.slots,
            "Pinned buffers of the host on the way to a CUDA device")
      ->default_str("32");
  add_size(command, "--staging-slot-size", into.staging.slot_size, "Bytes of each of them")
      ->default_str("8MiB");
  add_size(command, "--chunk-size", into.source.opening.chunk_size, "The most bytes of one request")
      ->default_str("16MiB");
  add_size(command, "--memory-limit", into.memory_limit, "Bytes that the stream may hold")
      ->default_str("1GiB");
  add_globs(command, "--include", into.include, "Only tensors whose names match (repeatable)");
  add_globs(command, "--exclude", into.exclude, "No tensors whose names match (repeatable)");
}

// The variables are the options' names: there is none that lacks one.
void add_environment(CLI::App& command) {
  for (CLI::Option* const option : command.get_options()) {
    if (option == command.get_help_ptr() || option->get_lnames().empty()) continue;
    option->envname(environment_name(option->get_lnames().front()));
  }
}

// A URI without what may be secret in it. Keys may hold a `?`, but so may a signed URL that was
// taken for one.
std::string without_secrets(const std::string& argument) {
  if (argument.find("://") == std::string::npos) return argument;
  const auto parsed = uri::parse(argument);
  if (!parsed) return "a URI";
  const std::string shown = parsed->display();
  return shown.substr(0, shown.find('?'));
}

void finish(source_arguments& into, const common_flags& flags) {
  into.verbosity = flags.quiet ? -1 : flags.verbose;
  if (flags.path_style_option->count() > 0) into.opening.storage.path_style = flags.path_style;
}

// What the library would refuse as well, said before any I/O as the misuse that it is.
void check_sizes(const stream_arguments& given) {
  const std::size_t chunk = given.source.opening.chunk_size;
  if (chunk < smallest_chunk) {
    throw usage_error("--chunk-size is " + format_size(chunk) + " and must be at least " +
                      format_size(smallest_chunk));
  }
  const std::size_t slot = given.staging.slot_size;
  if (slot < smallest_slot || slot % slot_step != 0) {
    throw usage_error("--staging-slot-size is " + format_size(slot) + " and must be at least " +
                      format_size(smallest_slot) + ", in whole pages of " + format_size(slot_step));
  }
  if (given.memory_limit < chunk) {
    throw usage_error("--memory-limit is " + format_size(given.memory_limit) +
                      " and must be at least one chunk, " + format_size(chunk) +
                      ": raise it or lower --chunk-size");
  }
}

}  // namespace

std::variant<shown_text, stream_arguments, inspect_arguments, ls_arguments, credentials_arguments>
parse_command_line(int argc, const char* const* argv) {
  CLI::App app("Streams safetensors model weights from object storage.", "headrace");
  app.set_version_flag("--version", "headrace " HEADRACE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Every option of a command has an environment variable; the command line wins. HEADRACE_IO=uring|epoll|auto\n"
      "chooses what talks to the kernel. Sizes: 16MiB, 16M, bytes. Times: 500ms, 20s, 2m, seconds.");

  stream_arguments streaming;
  inspect_arguments inspecting;
  ls_arguments listing;
  credentials_arguments asking;
  common_flags stream_flags;
  common_flags inspect_flags;
  common_flags ls_flags;
  common_flags credentials_flags;

  CLI::App& stream =
      *app.add_subcommand("stream", "Stream all tensors of a model and drop each on arrival");
  add_common(stream, streaming.source, stream_flags);
  add_stream(stream, streaming);

  CLI::App& inspect = *app.add_subcommand("inspect", "Show the files and tensors of a model");
  add_common(inspect, inspecting.source, inspect_flags);
  inspect.add_flag("--json", inspecting.json, "As JSON");

  CLI::App& ls = *app.add_subcommand("ls", "List the files of a model, with their bytes");
  add_common(ls, listing.source, ls_flags);

  CLI::App& credentials = *app.add_subcommand(
      "credentials", "Say which credentials a store would get, and where they were found");
  add_common(credentials, asking.source, credentials_flags);
  credentials.add_flag("--json", asking.json, "As JSON");

  for (CLI::App* const command : {&stream, &inspect, &ls, &credentials}) {
    command->get_formatter()->column_width(32);
    add_environment(*command);
    // CLI11 otherwise reads, and complains about, the variables of commands that were not asked
    // for.
    command->parse_complete_callback([] {});
  }

  const auto fail = [&app](const std::string& message) {
    std::string help = "headrace";
    for (const CLI::App* const chosen : app.get_subcommands()) help += " " + chosen->get_name();
    return usage_error(message + " (" + help + " --help explains)");
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    app.exit(asked, text, text);
    return shown_text{text.str()};
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> unexpected = app.remaining(true);
    throw fail("unexpected argument " +
               (unexpected.empty() ? "" : without_secrets(unexpected.front())));
  } catch (const CLI::ParseError& wrong) {
    if (!app.get_subcommands().empty()) throw fail(wrong.what());
    const std::vector<std::string> unknown = app.remaining(true);
    throw fail((unknown.empty() ? "a command is missing"
                                : "unknown command " + without_secrets(unknown.front())) +
               ": stream, inspect, ls or credentials");
  }

  if (stream.parsed()) {
    finish(streaming.source, stream_flags);
    check_sizes(streaming);
    if (streaming.trace_file == "-") throw fail("--trace needs the name of a file");
    return streaming;
  }
  if (inspect.parsed()) {
    finish(inspecting.source, inspect_flags);
    return inspecting;
  }
  if (credentials.parsed()) {
    finish(asking.source, credentials_flags);
    return asking;
  }
  finish(listing.source, ls_flags);
  return listing;
}

}  // namespace headrace::cli
