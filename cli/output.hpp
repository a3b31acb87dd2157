#pragma once

#include <string>
#include <string_view>

namespace headrace::cli {

/// Writes all of `text` to standard output. Throws `headrace::error` where it is closed, full or
/// gone.
void write_standard_output(std::string_view text);

/// Whether `write_file(path)` has a chance, asked before a long run: throws `headrace::error` where
/// the folder is not there or may not be written to.
void check_can_write(const std::string& path);

/// Writes a file so that nobody sees half of it: under another name, then renamed. What is not a
/// regular file (a device, a pipe) is written to directly. Throws `headrace::error`.
void write_file(const std::string& path, std::string_view text);

}  // namespace headrace::cli
