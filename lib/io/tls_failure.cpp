#include "io/tls_failure.hpp"

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <memory>
#include <string_view>

namespace headrace::detail {
namespace {

// What is shown of a certificate that anybody can have made.
constexpr std::size_t longest_text = 120;
constexpr std::size_t most_names = 6;

std::string printable(std::string_view text) {
  std::string shown(text.substr(0, longest_text));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~' || c == '\''; }, '?');
  if (text.size() > longest_text) shown += "...";
  return shown;
}

std::string text_of(const X509_NAME* name) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(BIO_new(BIO_s_mem()), &BIO_free);
  if (memory == nullptr || X509_NAME_print_ex(memory.get(), name, 0, XN_FLAG_RFC2253) < 0)
    return {};
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return printable({data, static_cast<std::size_t>(std::max(size, 0L))});
}

std::string text_of(const ASN1_TIME* time) {
  std::tm parts{};
  std::array<char, 64> text{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "a date that cannot be read";
  const auto size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {text.data(), size};
}

std::string text_of(const GENERAL_NAME& name) {
  int type = 0;
  const void* const value = GENERAL_NAME_get0_value(&name, &type);
  if (type != GEN_DNS && type != GEN_IPADD) return {};
  const auto* const string = static_cast<const ASN1_STRING*>(value);
  const auto* const data = ASN1_STRING_get0_data(string);
  const auto size = static_cast<std::size_t>(ASN1_STRING_length(string));
  if (type == GEN_DNS) return printable({reinterpret_cast<const char*>(data), size});
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = size == 4 ? AF_INET : AF_INET6;
  if (size != 4 && size != 16) return {};
  ::inet_ntop(family, data, text.data(), text.size());
  return text.data();
}

std::vector<std::string> names_of(const X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> all(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  const int count = all != nullptr ? sk_GENERAL_NAME_num(all.get()) : 0;
  for (int at = 0; at < count; ++at) {
    auto name = text_of(*sk_GENERAL_NAME_value(all.get(), at));
    if (name.empty()) continue;
    if (names.size() == most_names) {
      names.emplace_back("...");
      break;
    }
    names.push_back("'" + name + "'");
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

/// For a certificate that was refused, what is wrong with it and what to do.
std::string explain(const std::string& host, const certificate_refusal& refused) {
  const std::string whose = refused.depth == 0
                                ? "the certificate of '" + host + "'"
                                : "the authority '" + refused.subject + "' behind '" + host + "'";
  switch (refused.reason) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return whose + " expired on " + refused.valid_until +
             ": the server needs a new one (or the clock of this machine is wrong)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return whose + " is valid only from " + refused.valid_from +
             " on: is the clock of this machine right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "the certificate of the server is not for '" + host + "' but for " +
             (refused.names.empty() ? "no host at all (" + refused.subject + ")"
                                    : joined(refused.names)) +
             ": use one of its names, or give the server a certificate for this one";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT: {
      const bool own = refused.reason == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT;
      return "the certificate of '" + host +
             "' comes from an authority that is not trusted here (" +
             (own ? "it signed itself: " : "") + refused.issuer +
             "): name a PEM file of that authority by --ca-file or SSL_CERT_FILE";
    }
    default:
      return whose + " is not accepted: " + X509_verify_cert_error_string(refused.reason);
  }
}

int alert_of(int reason) noexcept {
  return reason > SSL_AD_REASON_OFFSET ? reason - SSL_AD_REASON_OFFSET : 0;
}

std::string alert_text(int alert) {
  // "tlsv13 alert certificate required": OpenSSL's list of alerts itself lacks the newer ones.
  const auto code =
      ERR_PACK(ERR_LIB_SSL, 0, static_cast<unsigned long>(SSL_AD_REASON_OFFSET + alert));
  std::string text = openssl_reason(code);
  const auto known = text.find("alert ");
  if (known != std::string::npos) text.erase(0, known + 6);
  return "'" + text + "' (alert " + std::to_string(alert) + ")";
}

std::string explain(const std::string& host, unsigned long code) {
  const std::string failed = "the TLS handshake with '" + host + "' failed: ";
  if (ERR_GET_LIB(code) != ERR_LIB_SSL)
    return failed + (code != 0 ? openssl_reason(code) : "no reason is known");
  const int reason = ERR_GET_REASON(code);
  switch (alert_of(reason)) {
    case 0:
      break;
    case SSL_AD_PROTOCOL_VERSION:
      return failed + "the server speaks neither TLS 1.2 nor TLS 1.3";
    case SSL_AD_HANDSHAKE_FAILURE:
      return failed + "the server answers " + alert_text(alert_of(reason)) +
             ": no cipher in common, or it wants a client certificate";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return failed + "the server wants a client certificate: set certificate_file and key_file";
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
      return failed + "the server refuses our certificate (certificate_file) with " +
             alert_text(alert_of(reason));
    case SSL_AD_UNRECOGNIZED_NAME:
      return failed + "the server knows no host of this name";
    default:
      return failed + "the server answers " + alert_text(alert_of(reason));
  }
  switch (reason) {
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_WRONG_SSL_VERSION:
      return failed + "the server speaks neither TLS 1.2 nor TLS 1.3";
    case SSL_R_WRONG_VERSION_NUMBER:
      return failed + "what it answers is not TLS: is this the right port?";
    default:
      return failed + openssl_reason(code);
  }
}

class tls_error_category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "tls"; }

  [[nodiscard]] std::string message(int value) const override {
    switch (value) {
      case static_cast<int>(tls_fault::cut):
        return "the peer cut the TLS connection off without ending it (no close_notify)";
      case static_cast<int>(tls_fault::idle_messages):
        return "the peer sends TLS messages without end, and nothing in between";
      case static_cast<int>(tls_fault::broken):
        return "the TLS connection broke: what came is damaged";
      default:
        break;
    }
    if (alert_of(value) != 0)
      return "the peer ended the TLS connection with " + alert_text(alert_of(value));
    return "the TLS connection broke: " +
           openssl_reason(ERR_PACK(ERR_LIB_SSL, 0, static_cast<unsigned long>(value)));
  }

  [[nodiscard]] std::error_condition default_error_condition(int value) const noexcept override {
    if (value == static_cast<int>(tls_fault::cut)) return std::errc::connection_aborted;
    return {static_cast<int>(errc::tls_error), headrace::error_category()};
  }
};

}  // namespace

certificate_refusal describe_refusal(X509_STORE_CTX* verification) {
  certificate_refusal refused;
  refused.reason = X509_STORE_CTX_get_error(verification);
  refused.depth = X509_STORE_CTX_get_error_depth(verification);
  const X509* const certificate = X509_STORE_CTX_get_current_cert(verification);
  if (certificate == nullptr) return refused;
  refused.subject = text_of(X509_get_subject_name(certificate));
  refused.issuer = text_of(X509_get_issuer_name(certificate));
  refused.valid_from = text_of(X509_get0_notBefore(certificate));
  refused.valid_until = text_of(X509_get0_notAfter(certificate));
  refused.names = names_of(certificate);
  return refused;
}

error to_error(const handshake_failure& failed) {
  if (failed.refused.reason != X509_V_OK)
    return error(errc::tls_error, explain(failed.host, failed.refused));
  if (failed.first_bytes.starts_with("HTTP/")) {
    return error(errc::tls_error, "'" + failed.host +
                                      "' answers in plain HTTP where TLS was expected: use an "
                                      "http:// location, or the server's port for https");
  }
  return error(errc::tls_error, explain(failed.host, failed.code));
}

std::error_code make_tls_code(tls_fault fault) noexcept {
  static const tls_error_category category;
  return {static_cast<int>(fault), category};
}

std::error_code make_tls_code(unsigned long openssl_code) noexcept {
  if (ERR_GET_LIB(openssl_code) != ERR_LIB_SSL) return make_tls_code(tls_fault::broken);
  return make_tls_code(static_cast<tls_fault>(ERR_GET_REASON(openssl_code)));
}

unsigned long take_openssl_error() noexcept {
  const unsigned long first = ERR_get_error();
  ERR_clear_error();
  return first;
}

std::string openssl_reason(unsigned long openssl_code) {
  if (ERR_SYSTEM_ERROR(openssl_code)) {
    return std::error_code(ERR_GET_REASON(openssl_code), std::generic_category()).message();
  }
  const char* const reason = ERR_reason_error_string(openssl_code);
  return reason != nullptr ? reason : "error " + std::to_string(openssl_code) + " of OpenSSL";
}

}  // namespace headrace::detail
