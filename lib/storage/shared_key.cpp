#include "storage/shared_key.hpp"

#include "storage/text.hpp"

#include <headrace/base/assert.hpp>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>

namespace headrace {
namespace {

// Far above the 64 bytes that accounts have.
constexpr std::size_t longest_key = 1024;

// The fields that are signed by their place, in this order; the others by their prefix.
constexpr std::array<std::string_view, 11> placed{"content-encoding",
                                                  "content-language",
                                                  "content-length",
                                                  "content-md5",
                                                  "content-type",
                                                  "date",
                                                  "if-modified-since",
                                                  "if-match",
                                                  "if-none-match",
                                                  "if-unmodified-since",
                                                  "range"};

std::string base64(const unsigned char* bytes, std::size_t size) {
  std::string text(4 * ((size + 2) / 3) + 1, '\0');
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes, static_cast<int>(size));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::string_view field_of(const shared_key_request& request, std::string_view name) {
  for (const auto& [known, value] : request.fields) {
    if (detail::same_name(known, name)) return detail::trimmed(value);
  }
  return {};
}

// Values of one name, joined by commas; Azure wants those of the query sorted.
using joined = std::map<std::string, std::vector<std::string>>;

std::string join(const std::vector<std::string>& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

}  // namespace

std::string string_to_sign(const shared_key_request& request, std::string_view account) {
  std::string text(request.method);
  text += '\n';
  for (const auto name : placed) {
    text += field_of(request, name);
    text += '\n';
  }
  joined headers;
  for (const auto& [name, value] : request.fields) {
    auto lowered = detail::lower(name);
    if (lowered.starts_with("x-ms-"))
      headers[std::move(lowered)].emplace_back(detail::trimmed(value));
  }
  for (const auto& [name, values] : headers) text += name + ':' + join(values) + '\n';

  text += '/';
  text += account;
  text += request.path;
  joined parameters;
  for (const auto& [name, value] : request.query) parameters[detail::lower(name)].push_back(value);
  for (auto& [name, values] : parameters) {
    std::sort(values.begin(), values.end());
    text += '\n' + name + ':' + join(values);
  }
  return text;
}

std::optional<std::string> decode_account_key(std::string_view text) {
  if (text.empty() || text.size() > longest_key || text.size() % 4 != 0) return std::nullopt;
  std::string key(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(key.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
  key.resize(static_cast<std::size_t>(size) - padding);
  // OpenSSL skips blanks and takes padding in odd places.
  if (base64(reinterpret_cast<const unsigned char*>(key.data()), key.size()) != text)
    return std::nullopt;
  return key;
}

shared_key_signer::shared_key_signer(std::string account, std::string key)
    : account_(std::move(account)), key_(std::move(key)) {}

shared_key_signer::~shared_key_signer() { OPENSSL_cleanse(key_.data(), key_.size()); }

std::string shared_key_signer::authorize(const shared_key_request& request) const {
  const std::string text = string_to_sign(request, account_);
  std::array<unsigned char, 32> value{};
  unsigned size = 0;
  // Fails only where there is no memory: then no signature may leave.
  HEADRACE_ASSERT(HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                       value.data(), &size) != nullptr);
  HEADRACE_ASSERT(size == value.size());
  return "SharedKey " + account_ + ':' + base64(value.data(), value.size());
}

std::string ms_date(system_time now) {
  constexpr std::array<const char*, 7> days{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> months{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                               "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto day = std::chrono::floor<std::chrono::days>(seconds);
  const std::chrono::year_month_day date{day};
  const std::chrono::hh_mm_ss time{seconds - day};
  std::array<char, 48> text{};
  const int size = std::snprintf(
      text.data(), text.size(), "%s, %02u %s %04d %02d:%02d:%02d GMT",
      days[std::chrono::weekday(day).c_encoding()], static_cast<unsigned>(date.day()),
      months[static_cast<unsigned>(date.month()) - 1], static_cast<int>(date.year()),
      static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
      static_cast<int>(time.seconds().count()));
  return {text.data(), static_cast<std::size_t>(size)};
}

}  // namespace headrace
