#include "storage/s3_answers.hpp"

#include "storage/content_range.hpp"
#include "storage/percent.hpp"
#include "storage/text.hpp"
#include "storage/xml_answer.hpp"

#include <utility>

namespace headrace {
namespace {

using detail::child_of;
using detail::child_text;
using detail::for_message;
using detail::if_visible;
using detail::local_name;
using detail::root_of;
using detail::text_of;

failure<error> broken(const std::string& what) {
  return failure{
      error(errc::protocol_error, "the store's listing is not what S3 answers: " + what)};
}

}  // namespace

result<s3_listing> parse_s3_listing(std::string_view body) {
  if (body.size() > max_listing_body) return broken("it is longer than 8 MiB");
  pugi::xml_document document;
  const auto root = root_of(document, body);
  if (!root) return broken("not well-formed XML");
  if (local_name(root) == "Error") {
    error_context context;
    context.server_code = if_visible(child_of(root, "Code").text, 64);
    return failure{error(errc::protocol_error,
                         "the store answered a listing with success and an error inside", context)};
  }
  if (local_name(root) != "ListBucketResult") return broken("not a ListBucketResult");

  const auto encoding = child_of(root, "EncodingType");
  if (!encoding.right || (encoding.present && !encoding.text.empty() && encoding.text != "url")) {
    return broken("unknown EncodingType");
  }
  const bool encoded = encoding.text == "url";
  const auto decoded = [encoded](const child_text& name) -> std::optional<std::string> {
    if (!name.present || !name.right || name.text.empty()) return std::nullopt;
    return encoded ? percent_decode(name.text, plus::space) : name.text;
  };

  s3_listing listing;
  for (const auto& child : root) {
    if (child.type() != pugi::node_element) continue;
    const auto name = local_name(child);
    if (name == "Contents") {
      s3_object object;
      auto key = decoded(child_of(child, "Key"));
      const auto size = child_of(child, "Size");
      const auto bytes = parse_decimal(size.text);
      auto etag = child_of(child, "ETag");
      if (!key) return broken("an object without a readable Key");
      if (!size.right || !bytes) return broken("an object without a readable Size");
      if (!etag.right) return broken("an object with two ETags");
      listing.objects.push_back({*std::move(key), *bytes, std::move(etag.text)});
    } else if (name == "CommonPrefixes") {
      for (const auto& grandchild : child) {
        if (grandchild.type() != pugi::node_element || local_name(grandchild) != "Prefix") continue;
        auto text = text_of(grandchild);
        auto prefix = decoded({true, text.has_value(), text.value_or("")});
        if (!prefix) return broken("a common prefix that is not readable");
        listing.common_prefixes.push_back(*std::move(prefix));
      }
    }
    if (listing.objects.size() + listing.common_prefixes.size() > max_listing_keys)
      return broken("more than 10,000 keys in one page");
  }

  const auto truncated = child_of(root, "IsTruncated");
  if (!truncated.right ||
      (truncated.present && truncated.text != "true" && truncated.text != "false")) {
    return broken("IsTruncated is neither true nor false");
  }
  listing.is_truncated = truncated.text == "true";
  if (listing.is_truncated) {
    auto token = child_of(root, "NextContinuationToken");
    // Without one the same page would come again and again.
    if (!token.right || token.text.empty())
      return broken("truncated, and no NextContinuationToken");
    listing.next_continuation_token = std::move(token.text);
  }
  return listing;
}

result<listing_page> parse_s3_page(std::string_view body) {
  auto listing = parse_s3_listing(body);
  if (!listing) return failure{listing.error()};
  listing_page page;
  for (auto& object : listing->objects)
    page.objects.push_back({std::move(object.key), object.size});
  if (listing->is_truncated) page.next = std::move(listing->next_continuation_token);
  return page;
}

std::optional<s3_error> parse_s3_error(std::string_view body) {
  if (body.empty() || body.size() > max_error_body) return std::nullopt;
  pugi::xml_document document;
  const auto root = root_of(document, body);
  if (!root) return std::nullopt;
  auto inside = root;
  if (local_name(root) == "ErrorResponse") {
    for (const auto& child : root) {
      if (local_name(child) == "Error") inside = child;
    }
  }
  if (local_name(inside) != "Error") return std::nullopt;

  s3_error parsed;
  parsed.code = if_visible(child_of(inside, "Code").text, 64);
  parsed.message = for_message(child_of(inside, "Message").text, 512);
  parsed.request_id = if_visible(child_of(inside, "RequestId").text, 128);
  if (parsed.request_id.empty() && inside != root)
    parsed.request_id = if_visible(child_of(root, "RequestId").text, 128);
  if (auto region = child_of(inside, "Region").text; detail::is_region(region))
    parsed.region = std::move(region);
  if (auto endpoint = child_of(inside, "Endpoint").text; detail::is_host(endpoint))
    parsed.endpoint = std::move(endpoint);
  if (parsed.code.empty() && parsed.message.empty()) return std::nullopt;
  return parsed;
}

}  // namespace headrace
