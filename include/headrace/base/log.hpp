#pragma once

#include <headrace/base/export.hpp>

#include <functional>
#include <string_view>

namespace headrace {

enum class log_level { debug, info, warning, error, off };

/// Receives every line at or above the level. Called from any thread, one call at a time; must not
/// block for long and must not call back into headrace. No line ever holds a secret.
using log_sink = std::function<void(log_level, std::string_view line)>;

/// Sets where lines go and from which level on. The default is no sink: a library does not write to
/// its host's stderr.
HEADRACE_API void set_log_sink(log_sink sink, log_level threshold = log_level::info);

/// Whether a line of this level would go anywhere. One relaxed load.
[[nodiscard]] HEADRACE_API bool log_enabled(log_level level) noexcept;

/// Hands a line to the sink, if the level passes.
HEADRACE_API void log(log_level level, std::string_view line);

}  // namespace headrace
