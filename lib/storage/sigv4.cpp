#include "storage/sigv4.hpp"

#include "storage/percent.hpp"
#include "storage/text.hpp"

#include <headrace/base/assert.hpp>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>

namespace headrace {
namespace {

using digest = std::array<unsigned char, 32>;
using fields = std::vector<std::pair<std::string, std::string>>;

// A key is valid for a day and a region; one bucket moving between two regions at midnight needs
// four.
constexpr std::size_t remembered_keys = 8;

std::string hexadecimal(const digest& bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const auto byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

// Hashing memory with a fixed algorithm fails only where there is no memory for the context: then
// no signature may leave.
digest sha256(std::string_view text) {
  digest value{};
  unsigned size = 0;
  HEADRACE_ASSERT(
      EVP_Digest(text.data(), text.size(), value.data(), &size, EVP_sha256(), nullptr) == 1);
  HEADRACE_ASSERT(size == value.size());
  return value;
}

digest hmac(const void* key, std::size_t key_size, std::string_view text) {
  digest value{};
  unsigned size = 0;
  HEADRACE_ASSERT(HMAC(EVP_sha256(), key, static_cast<int>(key_size),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                       value.data(), &size) != nullptr);
  HEADRACE_ASSERT(size == value.size());
  return value;
}

digest hmac(const digest& key, std::string_view text) { return hmac(key.data(), key.size(), text); }

// As the rules want it: no spaces around, one where there are several.
std::string canonical_value(std::string_view text) {
  std::string value;
  value.reserve(text.size());
  bool space = false;
  for (const char c : text) {
    if (c == ' ' || c == '\t') {
      space = !value.empty();
      continue;
    }
    if (space) value += ' ';
    space = false;
    value += c;
  }
  return value;
}

// 20130524T000000Z
std::string basic_time(system_time now) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto day = std::chrono::floor<std::chrono::days>(seconds);
  const std::chrono::year_month_day date{day};
  const std::chrono::hh_mm_ss time{seconds - day};
  std::array<char, 32> text{};
  const int size = std::snprintf(
      text.data(), text.size(), "%04d%02u%02uT%02d%02d%02dZ", static_cast<int>(date.year()),
      static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
      static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
      static_cast<int>(time.seconds().count()));
  return {text.data(), static_cast<std::size_t>(size)};
}

struct canonical_headers {
  std::string lines;  // `name:value\n` each
  std::string names;  // joined by `;`
};

canonical_headers canonicalise(const fields& headers) {
  std::map<std::string, std::string> sorted;
  for (const auto& [name, value] : headers) {
    auto [known, first] = sorted.try_emplace(detail::lower(name));
    if (!first) known->second += ',';  // of one name: in the order in which they are sent
    known->second += canonical_value(value);
  }
  canonical_headers canonical;
  for (const auto& [name, value] : sorted) {
    canonical.lines += name + ':' + value + '\n';
    if (!canonical.names.empty()) canonical.names += ';';
    canonical.names += name;
  }
  return canonical;
}

}  // namespace

std::string sha256_of(std::string_view text) { return hexadecimal(sha256(text)); }

std::string canonical_query(std::span<const std::pair<std::string, std::string>> parameters) {
  fields encoded;
  encoded.reserve(parameters.size());
  for (const auto& [name, value] : parameters) {
    encoded.emplace_back(percent_encode(name, slash::encoded),
                         percent_encode(value, slash::encoded));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string query;
  for (const auto& [name, value] : encoded) {
    if (!query.empty()) query += '&';
    query += name + '=' + value;
  }
  return query;
}

sigv4_signer::~sigv4_signer() {
  for (auto& known : keys_) {
    OPENSSL_cleanse(known.secret.data(), known.secret.size());
    OPENSSL_cleanse(known.value.data(), known.value.size());
  }
}

sigv4_signer::key sigv4_signer::signing_key(std::string_view secret, std::string_view date,
                                            std::string_view region, std::string_view service) {
  const std::scoped_lock lock(mutex_);
  for (const auto& known : keys_) {
    if (known.date == date && known.region == region && known.service == service &&
        known.secret == secret) {
      return known.value;
    }
  }
  std::string start = "AWS4" + std::string(secret);
  const auto of_date = hmac(start.data(), start.size(), date);
  OPENSSL_cleanse(start.data(), start.size());
  const auto of_region = hmac(of_date, region);
  const auto of_service = hmac(of_region, service);
  const auto derived = hmac(of_service, "aws4_request");
  keys_.reserve(remembered_keys);  // growing would leave copies of secrets behind
  if (keys_.size() == remembered_keys) {
    auto& oldest = keys_.front();
    OPENSSL_cleanse(oldest.secret.data(), oldest.secret.size());
    OPENSSL_cleanse(oldest.value.data(), oldest.value.size());
    keys_.erase(keys_.begin());
  }
  keys_.push_back(
      {std::string(date), std::string(region), std::string(service), std::string(secret), derived});
  return derived;
}

fields sigv4_signer::sign(const signable_request& request, const aws_credentials& credentials,
                          system_time now) {
  const std::string time = basic_time(now);
  const std::string date = time.substr(0, 8);

  fields added;
  added.emplace_back("x-amz-date", time);
  if (request.service == "s3") added.emplace_back("x-amz-content-sha256", request.payload_hash);
  if (!credentials.session_token.empty())
    added.emplace_back("x-amz-security-token", credentials.session_token);

  fields covered(request.headers.begin(), request.headers.end());
  covered.emplace_back("host", request.host);
  covered.insert(covered.end(), added.begin(), added.end());
  const auto headers = canonicalise(covered);

  std::string canonical(request.method);
  canonical += '\n';
  canonical += request.path;
  canonical += '\n';
  canonical += canonical_query(request.query);
  canonical += '\n';
  canonical += headers.lines;
  canonical += '\n';
  canonical += headers.names;
  canonical += '\n';
  canonical += request.payload_hash;

  const std::string scope = date + '/' + std::string(request.region) + '/' +
                            std::string(request.service) + "/aws4_request";
  const std::string to_sign =
      "AWS4-HMAC-SHA256\n" + time + '\n' + scope + '\n' + hexadecimal(sha256(canonical));
  auto derived = signing_key(credentials.secret_access_key, date, request.region, request.service);
  const std::string signature = hexadecimal(hmac(derived, to_sign));
  OPENSSL_cleanse(derived.data(), derived.size());

  added.emplace_back("Authorization", "AWS4-HMAC-SHA256 Credential=" + credentials.access_key_id +
                                          '/' + scope + ", SignedHeaders=" + headers.names +
                                          ", Signature=" + signature);
  return added;
}

}  // namespace headrace
