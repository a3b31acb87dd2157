#include "commands.hpp"
#include "output.hpp"
#include "text.hpp"

#include <headrace/headrace.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cli {
namespace {

// A name longer than this does not push the columns of all others aside.
constexpr std::size_t widest_padding = 64;

std::string shape_of(const tensor_info& of, const char* separator) {
  std::string shape = "[";
  for (const std::uint64_t extent : of.shape) {
    if (shape.size() > 1) shape += separator;
    shape += std::to_string(extent);
  }
  return shape + "]";
}

std::string as_json(const model& opened) {
  std::string json = "{\"files\":[";
  const char* separator = "";
  for (const file_info& file : opened.files()) {
    json += separator;
    json += "{\"name\":" + json_string(file.name) + ",\"bytes\":" + std::to_string(file.bytes) +
            ",\"header_bytes\":" + std::to_string(file.header_bytes) + ",\"metadata\":{";
    separator = "";
    for (const auto& [key, value] : file.metadata) {
      json += separator + json_string(key) + ":" + json_string(value);
      separator = ",";
    }
    json += "}}";
    separator = ",";
  }
  json += "],\"tensors\":[";
  separator = "";
  for (const tensor_info& tensor : opened.tensors()) {
    json += separator;
    json += "{\"name\":" + json_string(tensor.name) +
            ",\"dtype\":" + json_string(to_string(tensor.dtype)) +
            ",\"shape\":" + shape_of(tensor, ",") +
            ",\"file\":" + json_string(opened.files()[tensor.file].name) +
            ",\"begin\":" + std::to_string(tensor.begin) +
            ",\"end\":" + std::to_string(tensor.end) + "}";
    separator = ",";
  }
  return json + "],\"total_bytes\":" + std::to_string(opened.total_bytes()) + "}\n";
}

using row = std::array<std::string, 5>;

std::string as_table(const model& opened) {
  std::vector<row> rows = {{"NAME", "DTYPE", "SHAPE", "BYTES", "FILE"}};
  for (const tensor_info& tensor : opened.tensors()) {
    rows.push_back({printable_name(tensor.name), std::string(to_string(tensor.dtype)),
                    shape_of(tensor, ", "), std::to_string(tensor.size()),
                    printable_name(opened.files()[tensor.file].name)});
  }
  std::array<std::size_t, 5> widths{};
  for (const row& cells : rows) {
    for (std::size_t at = 0; at < cells.size(); ++at) {
      widths[at] = std::max(widths[at], std::min(width(cells[at]), widest_padding));
    }
  }
  constexpr std::size_t numbers = 3;  // right-aligned: the bytes
  std::string table;
  for (const row& cells : rows) {
    std::string line;
    for (std::size_t at = 0; at < cells.size(); ++at) {
      const std::string padding(widths[at] - std::min(width(cells[at]), widths[at]), ' ');
      if (at > 0) line += "  ";
      if (at == numbers) line += padding;
      line += cells[at];
      if (at != numbers && at + 1 < cells.size()) line += padding;
    }
    table += line + "\n";
  }
  return table;
}

std::string count(std::size_t number, const std::string& what) {
  return grouped(number) + " " + what + (number == 1 ? "" : "s");
}

std::string as_text(const model& opened) {
  std::string text = as_table(opened) + "\n";
  text += count(opened.tensors().size(), "tensor") + " in " + count(opened.files().size(), "file") +
          ", " + grouped(opened.total_bytes()) + " bytes (" + format_size(opened.total_bytes()) +
          ")\n";
  for (const file_info& file : opened.files()) {
    text += printable_name(file.name) + ": " + grouped(file.bytes) + " bytes, " +
            grouped(file.header_bytes) + " of them header\n";
    for (const auto& [key, value] : file.metadata) {
      text += "  " + printable_name(key) + ": " + printable_name(value) + "\n";
    }
  }
  return text;
}

}  // namespace

void run_inspect(const inspect_arguments& arguments, std::stop_token stop) {
  runtime engine({.threads = arguments.source.threads});
  const model opened =
      sync_wait(open(engine, arguments.source.uri, arguments.source.opening), std::move(stop));
  write_standard_output(arguments.json ? as_json(opened) : as_text(opened));
}

}  // namespace headrace::cli
