#include "storage/body_checksum.hpp"

#include "storage/text.hpp"

#include <headrace/base/assert.hpp>

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace headrace {
namespace {

using table = std::array<std::array<std::uint64_t, 256>, 8>;

/// Tables to take eight bytes at a time, for a polynomial whose lowest bit is the highest power.
constexpr table make_table(std::uint64_t polynomial) {
  table made{};
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? polynomial : 0);
    made[0][byte] = value;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    for (std::size_t step = 1; step < made.size(); ++step) {
      const auto before = made[step - 1][byte];
      made[step][byte] = before >> 8 ^ made[0][before & 0xff];
    }
  }
  return made;
}

constexpr table crc32_table = make_table(0xedb88320);
constexpr table crc32c_table = make_table(0x82f63b78);
constexpr table crc64nvme_table = make_table(0x9a6c9329ac4bc9b5);

std::uint64_t add(const table& by, std::uint64_t crc, std::span<const std::byte> bytes) {
  if constexpr (std::endian::native == std::endian::little) {
    while (bytes.size() >= 8) {
      std::uint64_t next = 0;
      std::memcpy(&next, bytes.data(), sizeof next);
      next ^= crc;
      crc = 0;
      for (std::size_t i = 0; i < 8; ++i) crc ^= by[7 - i][next >> (8 * i) & 0xff];
      bytes = bytes.subspan(8);
    }
  }
  for (const std::byte byte : bytes)
    crc = crc >> 8 ^ by[0][(crc ^ std::to_integer<std::uint64_t>(byte)) & 0xff];
  return crc;
}

std::string base64(std::span<const unsigned char> bytes) {
  std::string encoded(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()), bytes.data(),
                                   static_cast<int>(bytes.size()));
  encoded.resize(static_cast<std::size_t>(size));
  return encoded;
}

/// Calls `take(name, value)` for each `name=value` of a list, without the blanks around.
template <class Take>
void for_each_member(std::string_view list, Take take) {
  while (!list.empty()) {
    const auto end = list.find(',');
    const auto member = detail::trimmed(list.substr(0, end));
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
    const auto mark = member.find('=');
    if (mark != std::string_view::npos) take(member.substr(0, mark), member.substr(mark + 1));
  }
}

}  // namespace

/// Either a CRC of so many bytes or a digest of OpenSSL's.
struct body_checksum::algorithm {
  std::string_view name;
  std::size_t size;
  const table* by = nullptr;
  const EVP_MD* (*digest)() = nullptr;
};

// What costs least first.
const body_checksum::algorithm* body_checksum::known_algorithm(std::string_view name) noexcept {
  static constexpr std::array<algorithm, 7> known{{{"crc32c", 4, &crc32c_table},
                                                   {"crc64nvme", 8, &crc64nvme_table},
                                                   {"crc32", 4, &crc32_table},
                                                   {"sha1", 20, nullptr, &EVP_sha1},
                                                   {"md5", 16, nullptr, &EVP_md5},
                                                   {"sha256", 32, nullptr, &EVP_sha256},
                                                   {"sha512", 64, nullptr, &EVP_sha512}}};
  for (const auto& one : known) {
    if (detail::same_name(one.name, name)) return &one;
  }
  return nullptr;
}

void body_checksum::free_context::operator()(EVP_MD_CTX* context) const noexcept {
  EVP_MD_CTX_free(context);
}

body_checksum::body_checksum(const algorithm& how, std::string expected, std::string name)
    : how_(&how), expected_(std::move(expected)), name_(std::move(name)) {
  if (how.by != nullptr) {
    crc_ = how.size == 8 ? ~std::uint64_t{0} : 0xffffffff;
    return;
  }
  digest_.reset(EVP_MD_CTX_new());
  HEADRACE_ASSERT(digest_ && EVP_DigestInit_ex(digest_.get(), how.digest(), nullptr) == 1);
}

std::optional<body_checksum> body_checksum::of(const http_response_head& head, bool whole) {
  const algorithm* best = nullptr;
  std::string_view expected;
  std::string name;
  const auto offer = [&](std::string_view how, std::string_view value, std::string_view field) {
    const algorithm* const found = known_algorithm(how);
    if (found == nullptr || value.size() != 4 * ((found->size + 2) / 3)) return;
    if (best != nullptr && best <= found) return;
    best = found;
    expected = value;
    name = "the " + std::string(found->name) + " in " + std::string(field);
  };
  const auto offer_digests = [&](std::string_view list, std::string_view field) {
    for_each_member(list, [&](std::string_view how, std::string_view value) {
      const auto parameters = value.find(';');
      value = value.substr(0, parameters);
      if (value.size() < 2 || value.front() != ':' || value.back() != ':') return;
      value = value.substr(1, value.size() - 2);
      if (how == "sha-256") offer("sha256", value, field);
      if (how == "sha-512") offer("sha512", value, field);
    });
  };
  constexpr std::string_view amazon = "x-amz-checksum-";
  const auto stored = head.field("x-goog-stored-content-encoding");
  for (std::size_t i = 0; i < head.field_count(); ++i) {
    const auto [given, value] = head.field_at(i);
    const std::string field = detail::lower(given);
    if (field == "content-digest") offer_digests(value, field);
    if (!whole) continue;
    if (field == "repr-digest") offer_digests(value, field);
    if (field == "content-md5") offer("md5", value, field);
    if (field == "x-goog-hash" && (!stored || *stored == "identity")) {
      for_each_member(
          value, [&](std::string_view how, std::string_view text) { offer(how, text, field); });
    }
    // One of parts' checksums ends with their number, and is of another size.
    if (field.starts_with(amazon)) offer(field.substr(amazon.size()), value, field);
  }
  if (best == nullptr) return std::nullopt;
  return body_checksum(*best, std::string(expected), std::move(name));
}

void body_checksum::update(std::span<const std::byte> bytes) {
  if (how_->by != nullptr) {
    crc_ = add(*how_->by, crc_, bytes);
  } else {
    HEADRACE_ASSERT(EVP_DigestUpdate(digest_.get(), bytes.data(), bytes.size()) == 1);
  }
}

bool body_checksum::matches() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
  if (how_->by != nullptr) {
    const std::uint64_t crc = ~crc_;
    for (std::size_t i = 0; i < how_->size; ++i)
      value.at(i) = static_cast<unsigned char>(crc >> (8 * (how_->size - 1 - i)));
  } else {
    unsigned size = 0;
    HEADRACE_ASSERT(EVP_DigestFinal_ex(digest_.get(), value.data(), &size) == 1);
    HEADRACE_ASSERT(size == how_->size);
  }
  return base64(std::span(value).first(how_->size)) == expected_;
}

}  // namespace headrace
