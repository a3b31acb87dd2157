#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <array>
#include <atomic>
#include <string>
#include <vector>

namespace headrace {
namespace {

using test::answer;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
namespace action = test::action;

const std::string object = test::content_of("checked", 100'003);

std::string base64(std::string_view bytes) {
  std::string encoded(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  encoded.resize(static_cast<std::size_t>(EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(encoded.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()))));
  return encoded;
}

std::string digest(std::string_view bytes, const EVP_MD* how) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
  unsigned size = 0;
  REQUIRE(EVP_Digest(bytes.data(), bytes.size(), value.data(), &size, how, nullptr) == 1);
  return base64({reinterpret_cast<const char*>(value.data()), size});
}

/// Bit by bit, as the definitions have it.
std::string crc(std::string_view bytes, std::uint64_t polynomial, int width) {
  std::uint64_t value = width == 64 ? ~std::uint64_t{0} : 0xffffffff;
  for (const char c : bytes) {
    value ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? polynomial : 0);
  }
  std::string big_endian;
  for (int shift = width - 8; shift >= 0; shift -= 8)
    big_endian += static_cast<char>(~value >> shift & 0xff);
  return base64(big_endian);
}

/// 206 for `request`, with `fields` on top.
std::string part(const seen_request& request, const http_fields& fields,
                 const std::string& from = object) {
  const auto range = request.range().value();
  const auto end = std::min<std::uint64_t>(range.end(), from.size());
  http_fields all = {
      {"ETag", "\"v1\""},
      {"Content-Range", "bytes " + std::to_string(range.begin) + "-" + std::to_string(end - 1) +
                            "/" + std::to_string(from.size())}};
  all.insert(all.end(), fields.begin(), fields.end());
  return answer(206, all, std::string_view(from).substr(range.begin, end - range.begin));
}

std::string of_part(const seen_request& request) {
  const auto range = request.range().value();
  return object.substr(range.begin, range.size);
}

std::string damaged() {
  std::string bytes = object;
  bytes[50'000] = static_cast<char>(bytes[50'000] ^ 1);
  return bytes;
}

/// Keeps every other piece of what it is given; the rest goes to one small place.
class scattering_sink final : public range_sink {
 public:
  explicit scattering_sink(std::size_t piece) : piece_(piece), gap_(piece, '\0') {}

  [[nodiscard]] buffer_sequence prepare(std::uint64_t most) override {
    buffers_.clear();
    kept_.resize(at_ + most);
    for (std::size_t at = at_; most > 0 && buffers_.size() < max_buffers;) {
      const auto size = std::min<std::size_t>(piece_ - at % piece_, most);
      char* const into = (at / piece_) % 2 == 0 ? kept_.data() + at : gap_.data();
      buffers_.push_back({into, size});
      at += size;
      most -= size;
    }
    return buffers_;
  }
  void commit(std::size_t size) override { at_ += size; }

  /// What it has kept, and what of `bytes` it should have.
  [[nodiscard]] std::string wanted() const { return of(kept_); }
  [[nodiscard]] std::string of(const std::string& bytes) const {
    std::string wanted;
    for (std::size_t at = 0; at < bytes.size(); at += 2 * piece_)
      wanted += bytes.substr(at, piece_);
    return wanted;
  }

 private:
  const std::size_t piece_;
  std::size_t at_ = 0;
  std::string kept_;
  std::string gap_;
  std::vector<iovec> buffers_;
};

TEST_SUITE("fault") {
  TEST_CASE("checksums of exactly the bytes are checked, whatever they are called") {
    const std::string check = "123456789";
    CHECK(crc(check, 0x82f63b78, 32) == base64("\xe3\x06\x92\x83"));
    CHECK(crc(check, 0xedb88320, 32) == base64("\xcb\xf4\x39\x26"));
    CHECK(crc(check, 0x9a6c9329ac4bc9b5, 64) == base64("\xae\x8b\x14\x86\x0a\x79\x98\x88"));
    const std::vector<http_fields> right = {
        {{"x-goog-hash", "crc32c=" + crc(object, 0x82f63b78, 32)},
         {"x-goog-hash", "md5=" + digest(object, EVP_md5())}},
        {{"x-goog-hash", "md5=" + digest(object, EVP_md5())}},
        {{"Content-MD5", digest(object, EVP_md5())}},
        {{"x-amz-checksum-crc32c", crc(object, 0x82f63b78, 32)}},
        {{"x-amz-checksum-crc32", crc(object, 0xedb88320, 32)}},
        {{"x-amz-checksum-crc64nvme", crc(object, 0x9a6c9329ac4bc9b5, 64)}},
        {{"x-amz-checksum-sha1", digest(object, EVP_sha1())}},
        {{"x-amz-checksum-sha256", digest(object, EVP_sha256())}},
        {{"Repr-Digest", "sha-256=:" + digest(object, EVP_sha256()) + ":"}},
        {{"Content-Digest", "unixsum=:AAA=:, sha-512=:" + digest(object, EVP_sha512()) + ":;x=y"}},
    };
    for (const auto& fields : right) {
      CAPTURE(fields.front().first);
      CAPTURE(fields.front().second);
      for (const bool whole : {false, true}) {  // 206 of everything, and 200
        scripted_server server([&](const seen_request& request) -> steps {
          const auto bytes = request.number == 0 ? damaged() : object;
          if (!whole) return {action::send{part(request, fields, bytes)}};
          auto all = fields;
          all.emplace_back("ETag", "\"v1\"");
          return {action::send{answer(200, all, bytes)}};
        });
        storage_client here;
        const auto source = storage_client::source(server.url("/x"), "x");
        const auto opened = here.open(*source, object.size());
        REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().what()));
        CHECK(*opened == object);
        CHECK(server.requests().size() == 2);
        CHECK(here.retries() == 1);
      }
    }
  }

  TEST_CASE("bytes that are wrong twice are an error, and nothing of them is delivered") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{
          part(request, {{"Content-Digest", "sha-256=:" + digest("other", EVP_sha256()) + ":"}})}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x"), "x");
    std::string first(1'000, '\0');
    buffer_sink sink(std::as_writable_bytes(std::span(first)));
    const auto opened = here.open(*source, 1'000);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::protocol_error);
    CHECK(says(opened.error(), "content-digest"));
    const auto read = here.run(source->read(here.services, here.terms, {10, 1'000}, sink));
    REQUIRE_FALSE(read);
    CHECK(read.error().kind() == errc::protocol_error);
    CHECK(sink.filled() == 0);
    CHECK(server.requests().size() == 4);
  }

  TEST_CASE("a digest of the content is that of the part, and each part is checked") {
    scripted_server server([](const seen_request& request) -> steps {
      const auto bytes = request.number == 1 ? damaged() : object;
      return {action::send{part(
          request, {{"Content-Digest", "sha-256=:" + digest(of_part(request), EVP_sha256()) + ":"}},
          bytes)}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x"), "x");
    REQUIRE(here.open(*source, 1'000));
    const auto read = here.read(*source, 49'000, 2'000);
    REQUIRE(read);
    CHECK(*read == object.substr(49'000, 2'000));
    CHECK(server.requests().size() == 3);
  }

  TEST_CASE("a checksum of the whole object says nothing of a part") {
    scripted_server server([](const seen_request& request) -> steps {
      return {action::send{
          part(request, {{"Content-MD5", digest(object, EVP_md5())},
                         {"x-goog-hash", "crc32c=" + crc(object, 0x82f63b78, 32)},
                         {"x-amz-checksum-crc32c", crc(object, 0x82f63b78, 32)},
                         {"Repr-Digest", "sha-256=:" + digest(object, EVP_sha256()) + ":"}})}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x"), "x");
    REQUIRE(here.open(*source, 1'000));
    CHECK(here.read(*source, 1'000, 1'000));
    CHECK(server.requests().size() == 2);
  }

  TEST_CASE("what is no checksum, or one of parts or of an encoding, is as if it were not there") {
    const std::vector<http_fields> unknown = {
        {{"x-amz-checksum-crc32c", crc("parts", 0x82f63b78, 32) + "-4"}},
        {{"x-goog-hash", "crc32c=" + crc("zip", 0x82f63b78, 32)},
         {"x-goog-stored-content-encoding", "gzip"}},
        {{"Content-MD5", "short"}},
        {{"Content-Digest", "sha-256=" + digest("x", EVP_sha256())}},
        {{"Content-Digest", "sha-256=:"}},
        {{"Content-Digest", ",,=,:::,sha-256"}},
        {{"x-amz-checksum-", "x"}},
    };
    for (const auto& fields : unknown) {
      CAPTURE(fields.front().second);
      scripted_server server([&fields](const seen_request& request) -> steps {
        return {action::send{part(request, fields)}};
      });
      storage_client here;
      const auto source = storage_client::source(server.url("/x"), "x");
      const auto opened = here.open(*source, object.size());
      REQUIRE(opened);
      CHECK(*opened == object);
      CHECK(server.requests().size() == 1);
    }
  }

  TEST_CASE(
      "a body that is damaged is received again into the places of its pieces, gaps included") {
    for (const std::size_t piece : {50U, 1'000U, 40'000U}) {
      scattering_sink sink(piece);
      std::atomic<int> parts{0};
      scripted_server server([&](const seen_request& request) -> steps {
        if (request.number == 0) return {action::send{part(request, {})}};
        const http_fields fields = {
            {"Content-Digest", "sha-256=:" + digest(of_part(request), EVP_sha256()) + ":"}};
        return {action::send{part(request, fields, ++parts > 1 ? object : damaged())}};
      });
      storage_client here;
      const auto source = storage_client::source(server.url("/x"), "x");
      REQUIRE(here.open(*source, 10));
      const auto read = here.run(source->read(here.services, here.terms, {20, 90'000}, sink));
      REQUIRE_MESSAGE(read, (read ? std::string() : std::string(read.error().what())));
      CHECK(server.requests().size() == 3);
      CHECK(sink.wanted() == sink.of(object.substr(20, 90'000)));
    }
  }

  TEST_CASE("a body with a checksum that is cut is resumed where it ended") {
    scripted_server server([](const seen_request& request) -> steps {
      const auto whole =
          part(request,
               {{"Content-Digest", "sha-256=:" + digest(of_part(request), EVP_sha256()) + ":"}});
      if (request.number > 0) return {action::send{whole}};
      return {action::send{whole.substr(0, whole.size() - 40'000)}, action::close{}};
    });
    storage_client here;
    const auto source = storage_client::source(server.url("/x"), "x");
    const auto opened = here.open(*source, object.size());
    REQUIRE(opened);
    CHECK(*opened == object);
    REQUIRE(server.requests().size() == 2);
    CHECK(server.requests()[1].range()->begin == object.size() - 40'000);
  }
}

}  // namespace
}  // namespace headrace
