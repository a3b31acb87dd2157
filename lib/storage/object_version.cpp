#include "storage/object_version.hpp"

namespace headrace {

object_version object_version::of(const http_response_head& head, std::uint64_t total) {
  object_version found;
  found.size = total;
  if (const auto tag = head.field("ETag")) found.etag = parse_entity_tag(*tag);
  if (const auto modified = head.field("Last-Modified")) found.last_modified = *modified;
  return found;
}

std::string object_version::difference(const object_version& answer) const {
  if (answer.size != size) {
    return "its size was " + std::to_string(size) + " bytes and is " + std::to_string(answer.size) +
           " now";
  }
  if (!generation.empty()) {
    if (answer.generation.empty())
      return "the server no longer sends the generation that it sent first";
    return answer.generation == generation
               ? ""
               : "its generation was " + generation + " and is " + answer.generation + " now";
  }
  if (strong_tag() != nullptr) {
    if (!answer.etag) return "the server no longer sends the ETag that it sent first";
    return *answer.etag == *etag
               ? ""
               : "its ETag was " + etag->text() + " and is " + answer.etag->text() + " now";
  }
  if (etag && answer.etag && *etag != *answer.etag) {
    return "its ETag was " + etag->text() + " and is " + answer.etag->text() + " now";
  }
  if (!last_modified.empty() && !answer.last_modified.empty() &&
      last_modified != answer.last_modified) {
    return "it was modified " + last_modified + " and is modified " + answer.last_modified + " now";
  }
  return "";
}

}  // namespace headrace
