#include <headrace/safetensors/header.hpp>

#include <boost/json.hpp>
#include <doctest/doctest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::atomic<std::size_t> allocated{0};

}  // namespace

#if defined(__has_feature)
#define HEADRACE_HAS_FEATURE(name) __has_feature(name)
#else
#define HEADRACE_HAS_FEATURE(name) 0
#endif

// ThreadSanitizer brings its own; there nothing is counted and the bounds hold by themselves.
#if !defined(__SANITIZE_THREAD__) && !HEADRACE_HAS_FEATURE(thread_sanitizer)
// Counts what the program asks for, so that a test can say how much that was. Not inlined: GCC
// would see malloc meet operator delete.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocated.fetch_add(size, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

using namespace headrace;

namespace {

using bytes = std::vector<std::byte>;

bytes to_bytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// A file: the length field, `json`, and `data` bytes of zeros.
bytes file_of(std::string_view json, std::size_t data = 0) {
  bytes file;
  for (unsigned at = 0; at < 8; ++at)
    file.push_back(static_cast<std::byte>(json.size() >> (8 * at)));
  const auto text = to_bytes(json);
  file.insert(file.end(), text.begin(), text.end());
  file.resize(file.size() + data);
  return file;
}

bytes length_field(std::uint64_t length) {
  bytes field;
  for (unsigned at = 0; at < 8; ++at) field.push_back(static_cast<std::byte>(length >> (8 * at)));
  return field;
}

result<header> parse(const bytes& file) { return parse_header(file, file.size()); }

// The reference's name of the fault, which ends the message; "accept" where there is no fault.
std::string verdict(const result<header>& parsed) {
  if (parsed) return "accept";
  CHECK(parsed.error().kind() == errc::invalid_safetensors);
  const auto& message = parsed.error().message();
  const auto open = message.rfind('(');
  REQUIRE(open != std::string::npos);
  REQUIRE(message.back() == ')');
  return message.substr(open + 1, message.size() - open - 2);
}

std::string verdict(const bytes& file) { return verdict(parse(file)); }

std::string message_of(const bytes& file) {
  const auto parsed = parse(file);
  REQUIRE_FALSE(parsed);
  return parsed.error().message();
}

// One F32 tensor "a" of shape [1], with `more` in front of the closing brace of its entry.
bytes one_tensor(const std::string& more) {
  return file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4])" + more + "}}", 4);
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t at = 0; at < times; ++at) all += text;
  return all;
}

std::string sha256(std::span<const std::byte> data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  REQUIRE(EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (unsigned at = 0; at < size; ++at) {
    text += digits[digest[at] >> 4];
    text += digits[digest[at] & 15];
  }
  return text;
}

bytes from_base64(std::string_view text) {
  bytes data(text.size() / 4 * 3);
  if (data.empty()) return data;
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(data.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  REQUIRE(size >= 0);
  data.resize(static_cast<std::size_t>(size) -
              static_cast<std::size_t>(std::ranges::count(text, '=')));
  return data;
}

struct format_case {
  std::string id;
  std::string verdict;
  bytes file;
  std::vector<tensor_info> tensors;
  std::vector<std::string> digests;
};

std::string_view text_of(const boost::json::value& value) {
  const auto& text = value.as_string();
  return {text.data(), text.size()};
}

const std::vector<format_case>& cases() {
  static const auto all = [] {
    std::ifstream input(HEADRACE_TEST_DATA "/safetensors/cases.json", std::ios::binary);
    REQUIRE(input);
    const std::string text{std::istreambuf_iterator<char>(input), {}};
    const auto document = boost::json::parse(text);
    std::vector<format_case> list;
    for (const auto& item : document.as_array()) {
      const auto& fields = item.as_object();
      format_case one;
      one.id = text_of(fields.at("id"));
      one.file = from_base64(text_of(fields.at("bytes")));
      one.verdict =
          text_of(fields.at("expect")) == "accept" ? "accept" : text_of(fields.at("reason"));
      if (const auto* tensors = fields.if_contains("tensors")) {
        for (const auto& entry : tensors->as_array()) {
          const auto& tensor = entry.as_object();
          tensor_info info;
          info.name = text_of(tensor.at("name"));
          const auto type = parse_dtype(text_of(tensor.at("dtype")));
          REQUIRE(type);
          info.dtype = *type;
          for (const auto& extent : tensor.at("shape").as_array()) {
            info.shape.push_back(extent.to_number<std::uint64_t>());
          }
          info.begin = tensor.at("begin").to_number<std::uint64_t>();
          info.end = tensor.at("end").to_number<std::uint64_t>();
          one.tensors.push_back(std::move(info));
          one.digests.emplace_back(text_of(tensor.at("sha256")));
        }
      }
      list.push_back(std::move(one));
    }
    return list;
  }();
  return all;
}

// What holds for every header that is accepted.
void check_invariants(const header& parsed, std::uint64_t file_size) {
  std::uint64_t end = 0;
  std::set<std::string_view> names;
  const tensor_info* previous = nullptr;
  for (const auto& tensor : parsed.tensors) {
    CHECK(tensor.begin == end);
    CHECK(tensor.end >= tensor.begin);
    CHECK(tensor.file == 0);
    CHECK(names.insert(tensor.name).second);
    if (previous != nullptr && previous->begin == tensor.begin && previous->end == tensor.end) {
      CHECK(previous->name < tensor.name);
    }
    previous = &tensor;
    end = tensor.end;
  }
  CHECK(parsed.size + end == file_size);
  CHECK(std::ranges::is_sorted(parsed.metadata));
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("each of the format's cases gets its verdict, its tensors and their bytes") {
    REQUIRE(cases().size() == 100);
    for (const auto& each : cases()) {
      CAPTURE(each.id);
      const auto parsed = parse(each.file);
      if (!parsed) CAPTURE(parsed.error().message());
      CHECK(verdict(parsed) == each.verdict);
      if (!parsed) continue;
      check_invariants(*parsed, each.file.size());
      REQUIRE(parsed->tensors.size() == each.tensors.size());
      for (std::size_t at = 0; at < each.tensors.size(); ++at) {
        const auto& tensor = parsed->tensors[at];
        CAPTURE(each.tensors[at].name);
        CHECK(tensor == each.tensors[at]);
        const std::span<const std::byte> file(each.file);
        CHECK(sha256(file.subspan(parsed->size + tensor.begin, tensor.size())) == each.digests[at]);
      }
    }
  }

  TEST_CASE("the size of a header is known from the first 8 bytes and the size of the file") {
    auto first = length_field(1000);
    CHECK(*header_size(first, 5000) == 1008);
    CHECK(*header_size(first, 1008) == 1008);
    CHECK_FALSE(header_size(first, 1007));
    first.resize(64);
    CHECK(*header_size(first, 5000) == 1008);
    CHECK(*header_size(length_field(header_limit), header_limit + 8) == header_limit + 8);
    CHECK_FALSE(header_size(length_field(header_limit + 1), header_limit + 9));
    CHECK(*header_size(length_field(0), 8) == 8);
  }

  TEST_CASE("bytes past the header are neither needed nor looked at") {
    const auto file = one_tensor("");
    const std::span<const std::byte> all(file);
    CHECK(parse_header(all.first(file.size() - 4), file.size()));
    CHECK(parse_header(all, file.size()));
    auto longer = file;
    longer.resize(file.size() + 100, std::byte{0xff});
    CHECK(parse_header(longer, file.size()));
  }

  TEST_CASE("fewer bytes than demanded are the caller's mistake, not the file's") {
    const auto file = one_tensor("");
    const std::span<const std::byte> all(file);
    for (const std::size_t given :
         {std::size_t{0}, std::size_t{7}, std::size_t{8}, file.size() - 5}) {
      const auto parsed = parse_header(all.first(given), file.size());
      REQUIRE_FALSE(parsed);
      CHECK(parsed.error().kind() == errc::invalid_request);
    }
    CHECK(header_size(all.first(7), file.size()).error().kind() == errc::invalid_request);
    CHECK(header_size(all.first(7), 7).error().kind() == errc::invalid_safetensors);
  }

  TEST_CASE("a claim of 2^63 bytes costs nothing but its error message") {
    for (const std::uint64_t claim :
         {std::uint64_t{1} << 63, ~std::uint64_t{0}, header_limit, header_limit + 1}) {
      const auto file = length_field(claim);
      const auto before = allocated.load();
      const auto parsed = parse_header(file, file.size());
      const auto cost = allocated.load() - before;
      CHECK_FALSE(parsed);
      CHECK(cost < 4096);
    }
  }

  TEST_CASE("a header that is long enough costs nothing to measure") {
    const auto field = length_field(1000);
    const auto before = allocated.load();
    const auto size = header_size(field, 5000);
    CHECK(allocated.load() == before);
    CHECK(size);
  }

  TEST_CASE("shapes and offsets that claim exabytes cost nothing") {
    const auto file = file_of(
        R"({"a":{"dtype":"U8","shape":[2305843009213693951],"data_offsets":[0,2305843009213693951]}})",
        2);
    const auto before = allocated.load();
    const auto parsed = parse_header(file, file.size());
    CHECK(allocated.load() - before < 8192);
    CHECK(verdict(parsed) == "MetadataIncompleteBuffer");
  }

  TEST_CASE("memory stays within a small multiple of the header, also for the tersest entries") {
    std::string json = "{";
    for (int at = 0; at < 20'000; ++at) {
      if (at > 0) json += ',';
      json += '"' + std::to_string(at) + R"(":["U8",[0],[0,0]])";
    }
    json += '}';
    const auto file = file_of(json);
    const auto before = allocated.load();
    const auto parsed = parse(file);
    CHECK(allocated.load() - before < 32 * file.size());
    REQUIRE(parsed);
    CHECK(parsed->tensors.size() == 20'000);
  }

  TEST_CASE("deep nesting is refused without using up the stack") {
    CHECK(verdict(file_of(repeated("[", 1'000'000))) == "InvalidHeaderDeserialization");
    CHECK(verdict(file_of(repeated(R"({"a":)", 1'000'000))) == "InvalidHeaderDeserialization");
    CHECK(verdict(one_tensor(R"(,"x":)" + repeated("[", 1'000'000))) ==
          "InvalidHeaderDeserialization");
  }

  TEST_CASE("127 levels of nesting are taken, 128 are not, arrays and objects alike") {
    const auto nested = [](std::string_view open, std::string_view close, std::size_t levels) {
      return one_tensor(R"(,"x":)" + repeated(open, levels) + "0" + repeated(close, levels));
    };
    // The header and the entry are two of the levels.
    CHECK(verdict(nested("[", "]", 125)) == "accept");
    CHECK(verdict(nested("[", "]", 126)) == "InvalidHeaderDeserialization");
    CHECK(verdict(nested(R"({"a":)", "}", 125)) == "accept");
    CHECK(verdict(nested(R"({"a":)", "}", 126)) == "InvalidHeaderDeserialization");
    CHECK(verdict(one_tensor(R"(,"x":)" + repeated("[", 125) + repeated("]", 125))) == "accept");
    CHECK(verdict(one_tensor(R"(,"x":)" + repeated("[", 126) + repeated("]", 126))) ==
          "InvalidHeaderDeserialization");
  }

  TEST_CASE("a header of 100,000 tensors is read") {
    std::string json = "{";
    for (std::uint64_t at = 0; at < 100'000; ++at) {
      if (at > 0) json += ',';
      json += R"("model.layers.)" + std::to_string(at) +
              R"(.weight":{"dtype":"BF16","shape":[64,64],"data_offsets":[)" +
              std::to_string(at * 8192) + ',' + std::to_string((at + 1) * 8192) + "]}";
    }
    json += '}';
    const auto file = file_of(json);
    const auto parsed = parse_header(file, file.size() + 819'200'000);
    REQUIRE(parsed);
    REQUIRE(parsed->tensors.size() == 100'000);
    CHECK(parsed->tensors[99'999].name == "model.layers.99999.weight");
    CHECK(parsed->tensors[99'999].end == 819'200'000);
  }

  TEST_CASE("a name that is there twice is found among thousands") {
    std::string json = "{";
    for (int at = 0; at < 5'000; ++at) json += '"' + std::to_string(at) + R"(":["U8",[0],[0,0]],)";
    CHECK(verdict(file_of(json + R"("5000":["U8",[0],[0,0]]})")) == "accept");
    CHECK(verdict(file_of(json + R"("2500":["U8",[0],[0,0]]})")) == "DuplicateName");
  }

  TEST_CASE("two tensors of one name are refused before their offsets are looked at") {
    CHECK(verdict(file_of(R"({"a":["U8",[1],[0,1]],"a":["U8",[1],[1,2]]})", 2)) == "DuplicateName");
    CHECK(verdict(file_of(R"({"a":["U8",[1],[7,8]],"a":["U8",[9],[1,2]]})", 2)) == "DuplicateName");
    CHECK(verdict(file_of(R"({"a":["U8",[1],[0,1]],"\u0061":["U8",[1],[0,1]]})", 1)) ==
          "DuplicateName");
    // JSON comes first, and so do the types of all entries.
    CHECK(verdict(file_of(R"({"a":["U8",[1],[0,1]],"a":["U8",[1],[0,1]],"b":1})", 1)) ==
          "InvalidHeaderDeserialization");
  }

  TEST_CASE(
      "an entry may be the array of its three values, as serde writes a struct without names") {
    const auto parsed = parse(file_of(R"({"a":["F32",[1],[0,4]]})", 4));
    REQUIRE(parsed);
    CHECK(parsed->tensors[0].dtype == dtype::f32);
    CHECK(parsed->tensors[0].shape == std::vector<std::uint64_t>{1});
    CHECK(parsed->tensors[0].end == 4);
    for (const auto* entry :
         {R"([])", R"(["F32"])", R"(["F32",[1]])", R"(["F32",[1],[0,4],null])",
          R"([[1],"F32",[0,4]])", R"(["F32",[0,4]])", R"(["F32",[1],[0,4],[0,4]])"}) {
      CAPTURE(entry);
      CHECK(verdict(file_of(std::string(R"({"a":)") + entry + '}', 4)) ==
            "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("a dtype may be an object of one null, as serde writes an enum") {
    CHECK(verdict(file_of(R"({"a":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}})", 4)) ==
          "accept");
    CHECK(verdict(file_of(R"({"a":[{"F32":null},[1],[0,4]]})", 4)) == "accept");
    for (const auto* type :
         {"{}", R"({"F32":{}})", R"({"F32":[]})", R"({"F32":0})", R"({"F32":""})",
          R"({"F32":false})", R"({"F32":null,"F32":null})", R"({"f32":null})",
          R"({"F32":null,"x":null})", "null", "7", "true", R"(["F32"])", R"("F33")", R"("")"}) {
      CAPTURE(type);
      CHECK(verdict(file_of(
                std::string(R"({"a":{"dtype":)") + type + R"(,"shape":[1],"data_offsets":[0,4]}})",
                4)) == "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("extents and offsets are plain integers of 64 bits and nothing else") {
    for (const auto* number : {"-1",
                               "-0",
                               "1.0",
                               "1e0",
                               "1E0",
                               "0.1e1",
                               "18446744073709551616",
                               "1e-99999999999",
                               "\"1\"",
                               "null",
                               "true",
                               "[1]",
                               "[]",
                               "{}",
                               "+1",
                               "01",
                               "00",
                               ".1",
                               "1.",
                               "0x1",
                               "1_0",
                               "NaN",
                               "Infinity",
                               "-Infinity",
                               ""}) {
      CAPTURE(number);
      CHECK(verdict(file_of(std::string(R"({"a":["U8",[)") + number + R"(,0],[0,0]]})")) ==
            "InvalidHeaderDeserialization");
      CHECK(verdict(file_of(std::string(R"({"a":["U8",[0],[0,)") + number + R"(]]})")) ==
            "InvalidHeaderDeserialization");
    }
    const auto parsed = parse(file_of(R"({"a":["U8",[0,18446744073709551615],[0,0]]})"));
    REQUIRE(parsed);
    CHECK(parsed->tensors[0].shape[1] == ~std::uint64_t{0});
  }

  TEST_CASE("a number that is not used may have any form that a double holds, and no other") {
    for (const auto* number : {"0",
                               "-0",
                               "-0.0",
                               "1e308",
                               "-1e308",
                               "1E+2",
                               "1e-999",
                               "0e999",
                               "0.0e99999999999",
                               "0e99999999999",
                               "-0e99999999999",
                               "1e-99999999999",
                               "1e-2147483648",
                               "1e0000000000001",
                               "123456789012345678901234567890",
                               "0.000000000000000000000000000000000000000000001",
                               "18446744073709551615",
                               "18446744073709551616",
                               "-9223372036854775809",
                               "1.7976931348623157e308"}) {
      CAPTURE(number);
      CHECK(verdict(one_tensor(std::string(R"(,"x":)") + number)) == "accept");
      CHECK(verdict(one_tensor(std::string(R"(,"x":[)") + number + "]" + std::string(40, ' '))) ==
            "accept");
    }
    // 1.7976931348623158e308 rounds to the largest double; serde_json multiplies instead and finds
    // infinity.
    for (const auto* number :
         {"1e309", "-1e309", "1e99999999999", "1e2147483648", "1.7976931348623158e308", "1.8e308",
          "1e", "1e+", "1.e1", ".1", "-", "+1", "01", "-01", "1.2.3", "1e1.5", "0x10"}) {
      CAPTURE(number);
      CHECK(verdict(one_tensor(std::string(R"(,"x":)") + number)) ==
            "InvalidHeaderDeserialization");
      CHECK(verdict(one_tensor(std::string(R"(,"x":[)") + number + "]" + std::string(40, ' '))) ==
            "InvalidHeaderDeserialization");
    }
    const auto digits = [](std::size_t zeros) { return "1" + std::string(zeros, '0'); };
    CHECK(verdict(one_tensor(R"(,"x":)" + digits(308))) == "accept");
    CHECK(verdict(one_tensor(R"(,"x":)" + digits(309))) == "InvalidHeaderDeserialization");
    CHECK(verdict(one_tensor(R"(,"x":)" + digits(700) + "e-700")) == "accept");
    CHECK(verdict(one_tensor(R"(,"x":0.)" + std::string(700, '0') + "1e700")) == "accept");
  }

  TEST_CASE("a long exponent changes no verdict and no name elsewhere in the header") {
    const auto parsed = parse(file_of(
        R"({"1e99999999999":["U8",[1],[0,1]],"b\"2e99999999999":{"dtype":"U8","x":0e99999999999,)"
        R"("shape":[1],"data_offsets":[1,2]},"__metadata__":{"k":"3e99999999999"}})",
        2));
    REQUIRE(parsed);
    CHECK(parsed->tensors[0].name == "1e99999999999");
    CHECK(parsed->tensors[1].name == "b\"2e99999999999");
    REQUIRE(parsed->metadata.size() == 1);
    CHECK(parsed->metadata[0].second == "3e99999999999");
    CHECK(verdict(one_tensor(R"(,"x":0e99999999999,"y":1e99999999999)")) ==
          "InvalidHeaderDeserialization");
  }

  TEST_CASE("a field of an entry may not be there twice, in whatever spelling, or be missing") {
    for (const auto* more : {R"(,"dtype":"F32")", R"(,"shape":[1])", R"(,"data_offsets":[0,4])",
                             R"(,"\u0073hape":[1])", R"(,"dtype":null)"}) {
      CAPTURE(more);
      CHECK(verdict(one_tensor(more)) == "InvalidHeaderDeserialization");
    }
    for (const auto* entry :
         {R"({})", R"({"dtype":"F32"})", R"({"dtype":"F32","shape":[1]})",
          R"({"shape":[1],"data_offsets":[0,4]})", R"({"dtype":"F32","data_offsets":[0,4]})"}) {
      CAPTURE(entry);
      CHECK(verdict(file_of(std::string(R"({"a":)") + entry + '}', 4)) ==
            "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("fields that the format does not know are skipped, whatever they hold") {
    for (const auto* more :
         {R"(,"x":null)", R"(,"x":1,"x":2)", R"(,"x":{"dtype":1,"dtype":2,"a":[[],{},[{}]]})",
          R"(,"":"")", R"(,"Dtype":7)", R"(,"x":["\ud83d\ude00",true,false,-1.5e-3])",
          R"(,"x":{"x":{"x":{"x":{}}}})"}) {
      CAPTURE(more);
      CHECK(verdict(one_tensor(more)) == "accept");
    }
    // … but they must be JSON.
    for (const auto* more :
         {R"(,"x":"\ud83d")", R"(,"x":nul)", R"(,"x":[1,])", R"(,"x":{1:2})", R"(,"x":'a')",
          R"(,"x":/**/1)", R"(,"x")", R"(,)", R"(,"x":{"\q":1})"}) {
      CAPTURE(more);
      CHECK(verdict(one_tensor(more)) == "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("an entry that is neither an object nor an array is refused") {
    for (const auto* entry : {"null", "true", "0", "1.5", R"("F32")", R"("")"}) {
      CAPTURE(entry);
      CHECK(verdict(file_of(std::string(R"({"a":)") + entry + '}')) ==
            "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("the header is an object, with blanks around it and nothing else") {
    CHECK(verdict(file_of(" \t\r\n{ } \t\r\n")) == "accept");
    for (const auto* json : {"",
                             " ",
                             "null",
                             "[]",
                             "[null,{}]",
                             "0",
                             R"("")",
                             "{",
                             "}",
                             "{}{}",
                             "{},",
                             "{} x",
                             "{}\f",
                             "\v{}",
                             "{}//",
                             "/**/{}",
                             "\xef\xbb\xbf{}",
                             "{\xc2\xa0}",
                             "{,}",
                             R"({"a"})",
                             R"({"a":})",
                             R"({"a" 1})",
                             R"({a:1})",
                             R"({'a':1})"}) {
      CAPTURE(json);
      CHECK(verdict(file_of(json)) == "InvalidHeaderDeserialization");
    }
    CHECK(verdict(file_of(std::string("{}\0", 3))) == "InvalidHeaderDeserialization");
    CHECK(verdict(file_of(std::string("\0{}", 3))) == "InvalidHeaderDeserialization");
  }

  TEST_CASE("metadata is an object of strings or null, there at most once") {
    const auto metadata = [](std::string_view value) {
      return file_of(std::string(R"({"__metadata__":)") + std::string(value) + '}');
    };
    CHECK(parse(metadata("null"))->metadata.empty());
    CHECK(parse(metadata("{}"))->metadata.empty());
    using pairs = std::vector<std::pair<std::string, std::string>>;
    CHECK(parse(metadata(R"({"format":"pt","b":"\u00e9","":"","a":"1"})"))->metadata ==
          pairs{{"", ""}, {"a", "1"}, {"b", "é"}, {"format", "pt"}});
    CHECK(parse(metadata(R"({"b":"1","a":"2","b":"3","b":"4","a":"5"})"))->metadata ==
          pairs{{"a", "5"}, {"b", "4"}});
    for (const auto* value :
         {"[]", "0", R"("")", "true", R"({"a":1})", R"({"a":null})", R"({"a":{}})",
          R"({"a":["b"]})", R"({"a":true})", R"({"a":"b",})", R"(null,"__metadata__":null)",
          R"({},"__metadata__":{})", R"(null,"__\u006detadata__":{})", R"(["F32",[1],[0,4]])"}) {
      CAPTURE(value);
      CHECK(verdict(metadata(value)) == "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("names are unescaped, however long they are and wherever an escape falls") {
    // Long enough to cross every buffer of the parser, with an escape at each distance from its
    // end.
    for (const std::size_t size : {0, 1, 15, 16, 17, 31, 4000, 4090, 4091, 4092, 4093, 4094, 4095,
                                   4096, 4097, 8192, 70000}) {
      const std::string plain(size, 'n');
      std::string json = R"({")";
      json.append(plain)
          .append(R"(\u00e9)")
          .append(plain)
          .append(R"(\ud83d\ude00\n":["U8",[0],[0,0]]})");
      std::string name = plain;
      name.append("é").append(plain).append("😀\n");
      const auto parsed = parse(file_of(json));
      REQUIRE(parsed);
      CHECK(parsed->tensors[0].name == name);
    }
    for (const auto* name :
         {R"(\ud83d)", R"(\ude00)", R"(\ude00\ud83d)", R"(\ud83d\u0041)", R"(\ud83d\n)",
          R"(\ud83dx)", R"(\ud83d\ud83d\ude00)", R"(\x41)", R"(\u12)", R"(\u12g4)", R"(\U0041)",
          R"(\)", R"(\')", "\x1f", "\n", "\t"}) {
      CAPTURE(name);
      CHECK(verdict(file_of(std::string(R"({")") + name + R"(":["U8",[0],[0,0]]})")) ==
            "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("bytes that are not UTF-8 are found wherever they are, before anything else") {
    for (const std::string_view bad : {"\x80",
                                       "\xbf",
                                       "\xc0\x80",
                                       "\xc1\xbf",
                                       "\xc2",
                                       "\xc2\x41",
                                       "\xe0\x80\x80",
                                       "\xe0\x9f\xbf",
                                       "\xed\xa0\x80",
                                       "\xed\xbf\xbf",
                                       "\xe2\x82",
                                       "\xef\xbf\x7f",
                                       "\xf0\x80\x80\x80",
                                       "\xf0\x8f\xbf\xbf",
                                       "\xf4\x90\x80\x80",
                                       "\xf5\x80\x80\x80",
                                       "\xf0\x9f\x98",
                                       "\xf8\x88\x80\x80\x80",
                                       "\xfe",
                                       "\xff"}) {
      for (std::size_t offset = 0; offset < 20; ++offset) {
        const std::string blanks(offset, ' ');
        CHECK(verdict(file_of(blanks + std::string(bad))) == "InvalidHeader");
        CHECK(verdict(file_of(blanks + std::string(bad) + "{}")) == "InvalidHeader");
        CHECK(verdict(file_of("{\"" + blanks + std::string(bad) + "\":1}")) == "InvalidHeader");
      }
    }
    for (const std::string_view good :
         {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
          "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
      for (std::size_t offset = 0; offset < 20; ++offset) {
        const std::string name = std::string(offset, 'n') + std::string(good);
        const auto parsed = parse(file_of("{\"" + name + R"(":["U8",[0],[0,0]]})"));
        REQUIRE(parsed);
        CHECK(parsed->tensors[0].name == name);
      }
    }
  }

  TEST_CASE("the offsets of tensors must follow one another from 0 to the end of the file") {
    CHECK(verdict(file_of(R"({"a":["U8",[2],[0,2]],"b":["U8",[1],[2,3]]})", 3)) == "accept");
    CHECK(verdict(file_of(R"({"b":["U8",[1],[2,3]],"a":["U8",[2],[0,2]]})", 3)) == "accept");
    CHECK(verdict(file_of(R"({"a":["U8",[2],[0,2]],"b":["U8",[2],[0,2]]})", 2)) == "InvalidOffset");
    CHECK(verdict(file_of(R"({"a":["U8",[2],[0,2]],"b":["U8",[0],[2,1]]})", 2)) == "InvalidOffset");
    CHECK(verdict(file_of(R"({"a":["U8",[2],[0,2]]})", 0)) == "MetadataIncompleteBuffer");
    CHECK(verdict(file_of("{}", 1)) == "MetadataIncompleteBuffer");
    const auto last = std::to_string(~std::uint64_t{0});
    CHECK(verdict(file_of(R"({"a":["U8",[)" + last + "],[0," + last + "]]}", 0)) ==
          "ValidationOverflow");
    // Seven tensors of 2^61 - 1 bytes: their sum and the header's size stay clear of 2^64.
    std::string json = "{";
    constexpr std::uint64_t most = (std::uint64_t{1} << 61) - 1;
    for (std::uint64_t at = 0; at < 8; ++at) {
      json += (at > 0 ? ",\"" : "\"") + std::to_string(at) + R"(":["U8",[)" + std::to_string(most) +
              "],[" + std::to_string(at * most) + ',' + std::to_string((at + 1) * most) + "]]";
    }
    CHECK(verdict(file_of(json + "}", 0)) == "MetadataIncompleteBuffer");
  }

  TEST_CASE("messages say which tensor, what it says and what was expected") {
    CHECK(
        message_of(file_of(R"({"a":["F32",[2,2],[0,12]]})", 12)) ==
        R"(tensor "a": shape [2, 2] of F32 takes 16 bytes, but data_offsets [0, 12] span 12 (TensorInvalidInfo))");
    CHECK(
        message_of(file_of(R"({"a":["U8",[1],[0,1]],"b":["U8",[1],[2,3]]})", 3)) ==
        R"(tensor "b": data_offsets [2, 3] must begin at 1, where the tensor before it ends (InvalidOffset))");
    CHECK(
        message_of(file_of(R"({"a":["U8",[1],[1,2]]})", 2)) ==
        R"(tensor "a": data_offsets [1, 2] must begin at 0, the start of the data (InvalidOffset))");
    CHECK(message_of(file_of(R"({"a":["U8",[1],[0,1]],"b":["U8",[1],[1,0]]})", 3)) ==
          R"(tensor "b": data_offsets [1, 0] must not end before they begin (InvalidOffset))");
    CHECK(
        message_of(file_of(R"({"a":["F4",[3],[0,2]]})", 2)) ==
        R"(tensor "a": shape [3] of F4 takes 12 bits, which must be a multiple of 8 (MisalignedSlice))");
    CHECK(
        message_of(file_of(R"({"a":["U8",[2],[0,2]]})", 1)) ==
        "the tensors take 2 bytes, but 1 follow the header: the file is cut short (MetadataIncompleteBuffer)");
    CHECK(
        message_of(file_of(R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]}})", 4)) ==
        R"(tensor "a": "dtype" is "F33", which is no dtype of the format (InvalidHeaderDeserialization))");
    CHECK(
        message_of(file_of(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8)) ==
        R"(tensor "a": "shape" must be an array of integers from 0 to 2^64 - 1, not 2.0 (InvalidHeaderDeserialization))");
    CHECK(
        message_of(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8)) ==
        R"(tensor "a": "data_offsets" must be an array of two integers, not of 1 (InvalidHeaderDeserialization))");
    CHECK(
        message_of(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,16]}})", 8)) ==
        R"(tensor "a": "data_offsets" must be an array of two integers, not more (InvalidHeaderDeserialization))");
    CHECK(message_of(file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8)) ==
          R"(tensor "a": "data_offsets" is missing (InvalidHeaderDeserialization))");
    CHECK(
        message_of(file_of(R"({"a":null})")) ==
        R"(tensor "a" must be an object with "dtype", "shape" and "data_offsets", not null (InvalidHeaderDeserialization))");
    CHECK(message_of(file_of(R"({"a":1)")).starts_with(R"(tensor "a" must be an object)"));
    CHECK(message_of(file_of("{}x")) ==
          "the header is not JSON at byte 10 of the file: something follows the end of the value "
          "(InvalidHeaderDeserialization)");
    CHECK(message_of(file_of("{")) ==
          "the header is not JSON at byte 9 of the file: it ends before its last value is complete "
          "(InvalidHeaderDeserialization)");
  }

  TEST_CASE("a message stays one short line, whatever the names in the file") {
    const std::string name(50'000, 'n');
    const auto long_name = message_of(file_of(R"({")" + name + R"(":["U8",[1],[1,2]]})", 2));
    CHECK(long_name.size() < 400);
    CHECK(long_name.ends_with("(InvalidOffset)"));
    const auto newline = message_of(file_of(R"({"a\nb\u001b":["U8",[1],[1,2]]})", 2));
    CHECK(newline.find('\n') == std::string::npos);
    CHECK(newline.find('\x1b') == std::string::npos);
    const auto extents = "[" + repeated("1,", 10'000) + "2]";
    CHECK(message_of(file_of(R"({"a":["U8",)" + extents + ",[0,1]]}", 1)).size() < 400);
    CHECK(message_of(file_of(R"({"a":["U8",[)" + std::string(300, '9') + "],[0,1]]}", 1)).size() <
          400);
  }

  TEST_CASE("a file cut anywhere is refused") {
    const auto file = file_of(
        R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
    for (std::size_t size = 0; size < file.size(); ++size) {
      const bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      CHECK(verdict(cut) != "accept");
    }
    const std::string json =
        R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    for (std::size_t size = 0; size < json.size(); ++size) {
      CHECK(verdict(file_of(json.substr(0, size), 4)) == "InvalidHeaderDeserialization");
    }
  }

  TEST_CASE("mutated files are refused with a known fault or hold what every header holds") {
    static const std::set<std::string> faults = {"accept",
                                                 "HeaderTooSmall",
                                                 "HeaderTooLarge",
                                                 "InvalidHeaderLength",
                                                 "InvalidHeader",
                                                 "InvalidHeaderDeserialization",
                                                 "InvalidOffset",
                                                 "ValidationOverflow",
                                                 "MisalignedSlice",
                                                 "TensorInvalidInfo",
                                                 "MetadataIncompleteBuffer",
                                                 "DuplicateName"};
    static constexpr std::array<std::string_view, 24> pieces = {"{",
                                                                "}",
                                                                "[",
                                                                "]",
                                                                ",",
                                                                ":",
                                                                "\"",
                                                                "\\",
                                                                "0",
                                                                "1",
                                                                "-0",
                                                                "1e9",
                                                                "18446744073709551615",
                                                                "18446744073709551616",
                                                                "null",
                                                                "\"dtype\"",
                                                                "\"shape\"",
                                                                "\"data_offsets\"",
                                                                "\"__metadata__\"",
                                                                "\"F32\"",
                                                                "\\ud83d",
                                                                "\xff",
                                                                "0e99999999999",
                                                                " "};
    std::mt19937_64 random(20240607);
    const auto below = [&random](std::size_t limit) {
      return static_cast<std::size_t>(random() % limit);
    };
    for (const auto& each : cases()) {
      if (each.file.size() < 9 || each.file.size() > 4000) continue;
      for (int round = 0; round < 150; ++round) {
        bytes file = each.file;
        const auto length = file.size();
        const auto at = 8 + below(file.size() - 8);
        const auto position = file.begin() + static_cast<std::ptrdiff_t>(at);
        switch (below(4)) {
          case 0:
            file[below(file.size())] = static_cast<std::byte>(below(256));
            break;
          case 1: {
            const auto piece = to_bytes(pieces[below(pieces.size())]);
            file.insert(position, piece.begin(), piece.end());
            break;
          }
          case 2:
            file.erase(position,
                       position + static_cast<std::ptrdiff_t>(
                                      1 + below(std::min<std::size_t>(file.size() - at, 8))));
            break;
          default: {
            const auto from = static_cast<std::ptrdiff_t>(below(file.size()));
            const auto size =
                static_cast<std::ptrdiff_t>(below(file.size() - static_cast<std::size_t>(from)));
            const bytes copy(file.begin() + from, file.begin() + from + size);
            file.insert(position, copy.begin(), copy.end());
            break;
          }
        }
        // Mostly keep the length right, so that the mutation reaches the JSON.
        if (below(10) > 0) {
          std::uint64_t size = 0;
          for (unsigned byte = 0; byte < 8; ++byte)
            size |= std::to_integer<std::uint64_t>(file[byte]) << (8 * byte);
          const auto field = length_field(size + file.size() - length);
          std::ranges::copy(field, file.begin());
        }
        file.shrink_to_fit();
        const auto parsed = parse(file);
        CHECK(faults.contains(verdict(parsed)));
        if (parsed) check_invariants(*parsed, file.size());
      }
    }
  }
}
