#include "storage/azure_answers.hpp"

#include "storage/content_range.hpp"
#include "storage/percent.hpp"
#include "storage/text.hpp"
#include "storage/xml_answer.hpp"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

using detail::child_of;
using detail::if_visible;
using detail::local_name;
using detail::root_of;

failure<error> broken(const std::string& what) {
  return failure{
      error(errc::protocol_error, "the store's listing is not what Azure answers: " + what)};
}

pugi::xml_node element_of(const pugi::xml_node& parent, std::string_view name) {
  for (const auto& child : parent) {
    if (child.type() == pugi::node_element && local_name(child) == name) return child;
  }
  return {};
}

// Names that XML cannot hold come percent-encoded, and say so.
std::optional<std::string> name_of(const pugi::xml_node& parent) {
  auto name = child_of(parent, "Name");
  if (!name.present || !name.right || name.text.empty()) return std::nullopt;
  const std::string_view encoded = element_of(parent, "Name").attribute("Encoded").value();
  if (encoded.empty() || detail::same_name(encoded, "false")) return std::move(name.text);
  if (!detail::same_name(encoded, "true")) return std::nullopt;
  return percent_decode(name.text);
}

// What stands for a directory: the namespace's own, or the empty blob that older tools leave.
bool is_directory(const pugi::xml_node& blob) {
  if (detail::same_name(child_of(element_of(blob, "Properties"), "ResourceType").text, "directory"))
    return true;
  for (const auto& entry : element_of(blob, "Metadata")) {
    if (detail::same_name(local_name(entry), "hdi_isfolder")) {
      const auto text = detail::text_of(entry);
      return text && detail::same_name(*text, "true");
    }
  }
  return false;
}

}  // namespace

result<azure_listing> parse_azure_listing(std::string_view body) {
  if (body.size() > max_azure_listing_body) return broken("it is longer than 32 MiB");
  // Azure begins its documents with a byte order mark.
  if (body.starts_with("\xEF\xBB\xBF")) body.remove_prefix(3);
  pugi::xml_document document;
  const auto root = root_of(document, body);
  if (!root) return broken("not well-formed XML");
  if (local_name(root) == "Error") {
    error_context context;
    context.server_code = if_visible(child_of(root, "Code").text, 64);
    return failure{error(errc::protocol_error,
                         "the store answered a listing with success and an error inside", context)};
  }
  if (local_name(root) != "EnumerationResults") return broken("not an EnumerationResults");

  azure_listing listing;
  const auto blobs = element_of(root, "Blobs");
  if (!blobs) return broken("no Blobs in it");
  for (const auto& child : blobs) {
    if (child.type() != pugi::node_element) continue;
    const bool is_prefix = local_name(child) == "BlobPrefix";
    if (!is_prefix && local_name(child) != "Blob") continue;
    auto name = name_of(child);
    if (!name) return broken("a blob without a readable Name");
    if (is_prefix) {
      listing.prefixes.push_back(*std::move(name));
    } else if (!is_directory(child)) {
      const auto size = child_of(element_of(child, "Properties"), "Content-Length");
      const auto bytes = parse_decimal(size.text);
      if (!size.right || !bytes) return broken("a blob without a readable Content-Length");
      listing.blobs.push_back({*std::move(name), *bytes});
    }
    if (listing.blobs.size() + listing.prefixes.size() > max_azure_page)
      return broken("more than 5,000 blobs in one page");
  }
  auto marker = child_of(root, "NextMarker");
  if (!marker.right) return broken("a NextMarker that is not readable");
  listing.next_marker = std::move(marker.text);
  return listing;
}

result<listing_page> parse_azure_page(std::string_view body) {
  auto listing = parse_azure_listing(body);
  if (!listing) return failure{listing.error()};
  listing_page page{.objects = {}, .next = std::move(listing->next_marker)};
  for (auto& blob : listing->blobs) page.objects.push_back({std::move(blob.name), blob.size});
  return page;
}

std::optional<azure_error> parse_azure_error(std::string_view body) {
  if (body.empty() || body.size() > max_azure_error_body) return std::nullopt;
  if (body.starts_with("\xEF\xBB\xBF")) body.remove_prefix(3);
  pugi::xml_document document;
  const auto root = root_of(document, body);
  if (!root || local_name(root) != "Error") return std::nullopt;
  azure_error parsed;
  parsed.code = if_visible(child_of(root, "Code").text, 64);
  auto message = child_of(root, "Message").text;
  message.resize(std::min(message.find("\nRequestId:"), message.size()));
  parsed.message = detail::for_message(std::move(message), 512);
  if (parsed.code.empty() && parsed.message.empty()) return std::nullopt;
  return parsed;
}

}  // namespace headrace
