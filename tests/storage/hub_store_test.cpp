#include "storage/hub_store.hpp"

#include "given_variables.hpp"
#include "storage/hub_token.hpp"
#include "storage_client.hpp"

#include <headrace/coro/when.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace headrace {
namespace {

using test::answer;
using test::answer_with;
using test::given;
using test::says;
using test::scripted_server;
using test::seen_request;
using test::steps;
using test::storage_client;
using test::temporary_directory;
namespace action = test::action;

const std::string object = test::content_of("object", 300'000);
const std::string commit = "0123456789abcdef0123456789abcdef01234567";
const std::string linked_tag = "\"sha256-of-it\"";

std::string revision_answer() {
  return answer(200, {}, R"({"id":"org/repo","sha":")" + commit + R"(","siblings":[]})");
}

std::string redirect_to(const std::string& place, std::uint64_t size = object.size(),
                        const std::string& tag = linked_tag) {
  return answer(302,
                {{"Location", place},
                 {"X-Linked-Size", std::to_string(size)},
                 {"X-Linked-Etag", tag},
                 {"X-Repo-Commit", commit}},
                "Found. Redirecting");
}

std::shared_ptr<object_store> store_of(const std::string& location, const storage_options& options,
                                       std::map<std::string, std::string> variables = {}) {
  const auto parsed = uri::parse(location);
  REQUIRE(parsed);
  auto made = make_hub_store(*parsed, options, given(std::move(variables)));
  REQUIRE_MESSAGE(made, (made ? "" : made.error().what()));
  return *made;
}

storage_options options_for(const scripted_server& hub) {
  storage_options options;
  options.endpoint = hub.url("");
  options.token = "hf_secret-token";
  return options;
}

/// A Hub whose one large file, `x.safetensors`, lies elsewhere.
std::function<steps(const seen_request&)> hub_with(std::function<std::string()> place) {
  return [place = std::move(place)](const seen_request& request) -> steps {
    if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
    return {action::send{redirect_to(place())}};
  };
}

TEST_SUITE("fault") {
  TEST_CASE("the revision is resolved once, and everything else names the commit") {
    scripted_server hub([](const seen_request& request) -> steps {
      if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
      return {action::send{answer_with(object, request, "\"blob\"")}};
    });
    storage_client here;
    const auto store = store_of("hf://org/repo@refs%2Fpr%2F1/sub dir", options_for(hub));
    const auto source = store->source("config+1.json");
    CHECK(source->uri() == "hf://org/repo@refs%2Fpr%2F1/sub dir/config+1.json");
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    REQUIRE(here.open(*store->source("other.json")));
    const auto requests = hub.requests();
    REQUIRE(requests.size() == 4);
    CHECK(requests[0].target == "/api/models/org/repo/revision/refs%2Fpr%2F1");
    CHECK(requests[1].target == "/org/repo/resolve/" + commit + "/sub%20dir/config%2B1.json");
    CHECK(requests[2].target == requests[1].target);
    CHECK(requests[3].target == "/org/repo/resolve/" + commit + "/sub%20dir/other.json");
    for (const auto& request : requests) {
      CHECK(request.field("Authorization") == "Bearer hf_secret-token");
      CHECK_FALSE(request.field("If-Match"));
    }
  }

  TEST_CASE("a full commit needs no resolving") {
    scripted_server hub([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request, "\"blob\"")}};
    });
    storage_client here;
    const auto store = store_of("hf://org/repo@" + commit, options_for(hub));
    REQUIRE(here.open(*store->source("config.json")));
    CHECK(hub.requests().size() == 1);
  }

  TEST_CASE("a small file that changes under the commit is noticed by its tag") {
    scripted_server hub([](const seen_request& request) -> steps {
      if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
      return {action::send{
          answer_with(object, request, request.number == 1 ? "\"blob\"" : "\"other\"")}};
    });
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("config.json");
    REQUIRE(here.open(*source));
    CHECK(here.read(*source, 100'000, 1'000).error().kind() == errc::object_changed);
  }

  TEST_CASE("a large file comes from where the Hub redirects to, without token and condition") {
    scripted_server cdn([](const seen_request& request) -> steps {
      return {action::send{answer_with(object, request, "\"cdn\"")}};
    });
    scripted_server hub(hub_with([&cdn] { return cdn.url("/repos/x?Signature=sign-secret"); }));
    storage_client here;
    auto options = options_for(hub);
    options.headers = {{"X-Mine", "hunter2"}};
    const auto source = store_of("hf://org/repo", options)->source("x.safetensors");
    const auto first = here.open(*source);
    REQUIRE_MESSAGE(first, (first ? "" : first.error().what()));
    CHECK(*first == object.substr(0, first->size()));
    const auto read = here.read(*source, 100'000, 1'000);
    REQUIRE(read);
    CHECK(*read == object.substr(100'000, 1'000));
    CHECK(hub.requests().size() == 2);
    CHECK(hub.requests()[1].field("X-Mine") == "hunter2");
    const auto requests = cdn.requests();
    REQUIRE(requests.size() == 2);
    for (const auto& request : requests) {
      CHECK(request.target == "/repos/x?Signature=sign-secret");
      CHECK_FALSE(request.field("Authorization"));
      CHECK_FALSE(request.field("X-Mine"));
      CHECK_FALSE(request.field("If-Match"));
    }
    CHECK(requests[1].field("Range") == "bytes=100000-100999");
  }

  TEST_CASE("a relative redirect stays at the Hub and keeps the token") {
    scripted_server hub([](const seen_request& request) -> steps {
      if (request.path().starts_with("/api/models/")) return {action::send{revision_answer()}};
      if (request.path().starts_with("/api/resolve-cache/"))
        return {action::send{answer_with(object, request, "\"blob\"")}};
      return {action::send{
          redirect_to("/api/resolve-cache/models/org/repo/" + commit + "/x?etag=%22a%22")}};
    });
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("config.json");
    REQUIRE(here.open(*source));
    REQUIRE(here.read(*source, 100'000, 1'000));
    const auto requests = hub.requests();
    REQUIRE(requests.size() == 4);
    CHECK(requests[2].target.starts_with("/api/resolve-cache/"));
    CHECK(requests[2].field("Authorization") == "Bearer hf_secret-token");
    CHECK(requests[3].target == requests[2].target);
  }

  TEST_CASE("an address that has run out is asked for again, and may lead to another host") {
    std::atomic<bool> moved{false};
    const auto serve = [](const char* tag) {
      return [tag](const seen_request& request) -> steps {
        if (request.target.find("old") != std::string::npos && request.number > 0)
          return {action::send{answer(403, {}, "<Error><Code>AccessDenied</Code></Error>")}};
        return {action::send{answer_with(object, request, tag)}};
      };
    };
    scripted_server first(serve("\"one\""));
    scripted_server second(serve("\"two\""));
    scripted_server hub(hub_with(
        [&] { return moved ? second.url("/x?sig=new-secret") : first.url("/x?sig=old-secret"); }));
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("x.safetensors");
    REQUIRE(here.open(*source));
    moved = true;
    const auto read = here.read(*source, 100'000, 1'000);
    REQUIRE_MESSAGE(read, (read ? "" : read.error().what()));
    CHECK(*read == object.substr(100'000, 1'000));
    REQUIRE(here.read(*source, 200'000, 1'000));
    CHECK(hub.requests().size() == 3);
    CHECK(second.requests().size() == 2);
    CHECK(here.retries() == 0);
  }

  TEST_CASE("an address that never works is refused, and nothing of it is said") {
    scripted_server cdn([](const seen_request&) -> steps { return {action::send{answer(403)}}; });
    scripted_server hub(hub_with([&cdn] { return cdn.url("/x?sig=sign-secret"); }));
    storage_client here;
    const auto opened =
        here.open(*store_of("hf://org/repo", options_for(hub))->source("x.safetensors"));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::access_denied);
    CHECK_FALSE(says(opened.error(), "sign-secret"));
    CHECK_FALSE(says(opened.error(), "hf_secret"));
    CHECK_FALSE(says(opened.error(), "HF_TOKEN"));
    CHECK(hub.requests().size() == 3);
    CHECK(cdn.requests().size() == 2);
  }

  TEST_CASE("ranges that find an address run out at the same time share the new one") {
    constexpr std::size_t ranges = 8;
    std::atomic<unsigned> issued{0};
    std::atomic<std::size_t> refusals{0};
    std::atomic<bool> expired{false};
    scripted_server cdn([&](const seen_request& request) -> steps {
      if (expired && request.target == "/x?sig=1") {
        // All of them are refused before any of them can have asked for another address.
        if (++refusals < ranges) return {action::wait_for{"all"}, action::send{answer(403)}};
        return {action::signal{"all"}, action::send{answer(403)}};
      }
      return {action::send{answer_with(object, request, "\"cdn\"")}};
    });
    scripted_server hub(hub_with([&] { return cdn.url("/x?sig=" + std::to_string(++issued)); }));
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("x.safetensors");
    REQUIRE(here.open(*source));
    expired = true;
    std::vector<std::string> bytes(ranges, std::string(1'000, '\0'));
    std::vector<buffer_sink> sinks;
    for (auto& one : bytes) sinks.emplace_back(std::as_writable_bytes(std::span(one)));
    std::vector<task<result<void>>> reads;
    for (std::size_t i = 0; i < ranges; ++i)
      reads.push_back(
          source->read(here.services, here.terms, {100'000 + i * 1'000, 1'000}, sinks[i]));
    const auto done = here.run(when_all(std::move(reads)));
    for (std::size_t i = 0; i < ranges; ++i) {
      CAPTURE(i);
      CHECK_MESSAGE(done[i], (done[i] ? "" : done[i].error().what()));
      CHECK(bytes[i] == object.substr(100'000 + i * 1'000, 1'000));
    }
    CHECK(refusals == ranges);
    CHECK(here.retries() == 0);
  }

  TEST_CASE(
      "a range that is refused late tries what another one has found, and may still ask once") {
    std::atomic<unsigned> issued{0};
    std::atomic<bool> expired{false};
    std::atomic<unsigned> old_ones{0};
    std::atomic<unsigned> second_ones{0};
    scripted_server cdn([&](const seen_request& request) -> steps {
      const auto good = answer_with(object, request, "\"cdn\"");
      if (expired && request.target == "/x?sig=1") {
        // The other range has had its answer from the new address before this one is refused.
        if (++old_ones == 1) return {action::send{answer(403)}};
        return {action::wait_for{"served"}, action::send{answer(403)}};
      }
      if (request.target == "/x?sig=2") {
        if (++second_ones == 1) return {action::send{good}, action::signal{"served"}};
        return {action::send{answer(403)}};
      }
      return {action::send{good}};
    });
    scripted_server hub(hub_with([&] { return cdn.url("/x?sig=" + std::to_string(++issued)); }));
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("x.safetensors");
    REQUIRE(here.open(*source));
    expired = true;
    std::vector<std::string> bytes(2, std::string(1'000, '\0'));
    std::vector<buffer_sink> sinks;
    for (auto& one : bytes) sinks.emplace_back(std::as_writable_bytes(std::span(one)));
    std::vector<task<result<void>>> reads;
    reads.push_back(source->read(here.services, here.terms, {100'000, 1'000}, sinks[0]));
    reads.push_back(source->read(here.services, here.terms, {200'000, 1'000}, sinks[1]));
    const auto done = here.run(when_all(std::move(reads)));
    CHECK(done[0]);
    CHECK(done[1]);
    CHECK(bytes[0] == object.substr(100'000, 1'000));
    CHECK(bytes[1] == object.substr(200'000, 1'000));
    CHECK(old_ones == 2);
    CHECK(second_ones == 2);
    CHECK(issued == 3);
  }

  TEST_CASE("what the Hub, or a host, says differently in the middle is an object that changed") {
    struct change {
      const char* name;
      std::string redirect_tag;
      std::uint64_t linked_size;
      std::string cdn_tag;
      std::size_t cdn_size;
    };
    for (const auto& [name, tag, size, cdn_tag, cdn_size] : std::vector<change>{
             {"linked tag", "\"another\"", object.size(), "\"cdn\"", object.size()},
             {"linked size", linked_tag, object.size() - 1, "\"cdn\"", object.size()},
             {"tag of the host", linked_tag, object.size(), "\"other\"", object.size()},
             {"size at the host", linked_tag, object.size(), "\"cdn\"", object.size() - 1},
         }) {
      CAPTURE(name);
      std::atomic<bool> later{false};
      scripted_server cdn([&](const seen_request& request) -> steps {
        if (later && request.target == "/x?sig=1") return {action::send{answer(403)}};
        return {action::send{answer_with(later ? object.substr(0, cdn_size) : object, request,
                                         later ? cdn_tag : "\"cdn\"")}};
      });
      scripted_server hub([&](const seen_request& request) -> steps {
        if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
        if (!later) return {action::send{redirect_to(cdn.url("/x?sig=1"))}};
        return {action::send{redirect_to(cdn.url("/x?sig=2"), size, tag)}};
      });
      storage_client here;
      const auto source = store_of("hf://org/repo", options_for(hub))->source("x.safetensors");
      REQUIRE(here.open(*source));
      later = true;
      const auto read = here.read(*source, 100'000, 1'000);
      REQUIRE_FALSE(read);
      CHECK(read.error().kind() == errc::object_changed);
    }
  }

  TEST_CASE("the first host has to serve a file of the size that the Hub names") {
    scripted_server cdn([](const seen_request& request) -> steps {
      return {action::send{answer_with("a captive portal", request, "\"cdn\"")}};
    });
    scripted_server hub(hub_with([&cdn] { return cdn.url("/x"); }));
    storage_client here;
    const auto opened =
        here.open(*store_of("hf://org/repo", options_for(hub))->source("x.safetensors"));
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind() == errc::object_changed);
  }

  TEST_CASE("an empty file behind a redirect is empty") {
    scripted_server cdn([](const seen_request& request) -> steps {
      return {action::send{answer_with("", request, "\"cdn\"")}};
    });
    scripted_server hub([&cdn](const seen_request& request) -> steps {
      if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
      return {action::send{redirect_to(cdn.url("/x"), 0)}};
    });
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("x.safetensors");
    const auto opened = here.open(*source);
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().what()));
    CHECK(opened->empty());
    CHECK(source->size() == 0);
  }

  TEST_CASE("refusals say what to do about them") {
    struct refusal {
      int status;
      const char* code;
      bool anonymous;
      errc kind;
      std::vector<const char*> parts;
    };
    const std::vector<refusal> refusals = {
        {401, "RepoNotFound", true, errc::not_found, {"org/repo", "private", "set HF_TOKEN"}},
        {404, "RepoNotFound", false, errc::not_found, {"storage.token", "may not read it"}},
        {404, "RevisionNotFound", false, errc::not_found, {"no revision 'main'"}},
        {404, "EntryNotFound", false, errc::not_found, {"not in the repository org/repo"}},
        {401, "GatedRepo", true, errc::access_denied, {"accept the licence at", "HF_TOKEN"}},
        {403,
         "GatedRepo",
         false,
         errc::access_denied,
         {"accept the licence at http://127.0.0.1:", "/org/repo", "storage.token"}},
        {403, "DisabledRepo", false, errc::access_denied, {"said by the Hub"}},
        {401, "", false, errc::access_denied, {"said by the Hub", "still valid"}},
        {401, "", true, errc::access_denied, {"set HF_TOKEN"}},
    };
    for (const auto& expected : refusals) {
      CAPTURE(expected.status);
      CAPTURE(expected.code);
      scripted_server hub([&expected](const seen_request& request) -> steps {
        if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
        http_fields fields = {{"X-Error-Message", "said by the Hub"}, {"x-request-id", "REQ-7"}};
        if (*expected.code != '\0') fields.emplace_back("X-Error-Code", expected.code);
        return {action::send{answer(expected.status, fields, "{\"error\":\"in the body\"}")}};
      });
      auto options = options_for(hub);
      if (expected.anonymous) options.token.clear();
      storage_client here;
      const auto opened = here.open(*store_of("hf://org/repo", options)->source("x.safetensors"));
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == expected.kind);
      for (const auto* const part : expected.parts)
        CHECK_MESSAGE(says(opened.error(), part), opened.error().what());
      CHECK(says(opened.error(), "REQ-7"));
      CHECK_FALSE(says(opened.error(), "hf_secret"));
    }
  }

  TEST_CASE("a repository that has been renamed is followed") {
    scripted_server hub([](const seen_request& request) -> steps {
      if (request.path() == "/api/models/org/old/revision/main")
        return {action::send{answer(307, {{"Location", "/api/models/new-org/new/revision/main"}})}};
      if (request.path() == "/api/models/new-org/new/revision/main")
        return {action::send{revision_answer()}};
      if (request.path() == "/new-org/new/resolve/" + commit + "/config.json")
        return {action::send{answer_with(object, request, "\"blob\"")}};
      return {action::send{answer(404)}};
    });
    storage_client here;
    const auto source = store_of("hf://org/old", options_for(hub))->source("config.json");
    const auto opened = here.open(*source);
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().what()));
    CHECK(source->uri() == "hf://org/old/config.json");
    CHECK(hub.requests().size() == 3);
    // Names that look like a part of the API's paths, and those without an organisation.
    for (const char* const name : {"org/tree", "org/revision", "bert", "a/b"}) {
      CAPTURE(name);
      scripted_server renamed([name](const seen_request& request) -> steps {
        if (request.number == 0) {
          return {action::send{answer(
              307, {{"Location", "/api/models/" + std::string(name) + "/revision/main?x=/y"}})}};
        }
        if (request.path().starts_with("/api/")) return {action::send{revision_answer()}};
        return {action::send{answer_with(object, request, "\"blob\"")}};
      });
      REQUIRE(here.open(*store_of("hf://org/old", options_for(renamed))->source("x.json")));
      CHECK(renamed.requests().at(2).target ==
            "/" + std::string(name) + "/resolve/" + commit + "/x.json");
    }
    // One that leads in a circle, or away from the API, ends.
    scripted_server circle([](const seen_request& request) -> steps {
      const bool one = request.path().find("/org/old/") != std::string::npos;
      return {action::send{answer(307, {{"Location", one ? "/api/models/org/new/revision/main"
                                                         : "/api/models/org/old/revision/main"}})}};
    });
    CHECK_FALSE(here.open(*store_of("hf://org/old", options_for(circle))->source("x.json")));
    CHECK(circle.requests().size() <= 6);
    scripted_server away([](const seen_request&) -> steps {
      return {action::send{answer(302, {{"Location", "/login"}})}};
    });
    const auto refused = here.open(*store_of("hf://org/old", options_for(away))->source("x.json"));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind() == errc::protocol_error);
    CHECK(away.requests().size() == 1);
  }

  TEST_CASE("a listing comes in pages from the endpoint, whatever host their links name") {
    scripted_server hub([](const seen_request& request) -> steps {
      if (request.path().find("/revision/") != std::string::npos)
        return {action::send{revision_answer()}};
      if (request.number == 1) return {action::send{answer(503, {{"Retry-After", "0"}})}};
      if (request.target.find("cursor=two%3D") != std::string::npos) {
        return {action::send{
            answer(200, {}, R"([{"type":"file","path":"sub/a.safetensors","size":5,"oid":"1"}])")}};
      }
      return {
          action::send{answer(200,
                              {{"Link", "<https://huggingface.co/base/api/models/org/repo/tree/" +
                                            commit + "/sub?cursor=two%3D&limit=2>; rel=\"next\""}},
                              R"([{"type":"directory","path":"sub/deep","size":0},)"
                              R"({"type":"file","path":"sub/b.safetensors","size":7},)"
                              R"({"type":"file","path":"sub/deep/c.safetensors","size":7},)"
                              R"({"type":"file","path":"elsewhere/d.safetensors","size":7}])")}};
    });
    storage_client here;
    auto options = options_for(hub);
    options.endpoint = hub.url("/base/");
    const auto store = store_of("hf://org/repo@v1/sub/", options);
    const auto listed = here.run(store->list(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a.safetensors", 5}, {"b.safetensors", 7}});
    const auto requests = hub.requests();
    REQUIRE(requests.size() == 4);
    CHECK(requests[0].target == "/base/api/models/org/repo/revision/v1");
    CHECK(requests[1].target ==
          "/base/api/models/org/repo/tree/" + commit + "/sub?recursive=false");
    CHECK(requests[3].target ==
          "/base/api/models/org/repo/tree/" + commit + "/sub?cursor=two%3D&limit=2");
    CHECK(requests[3].field("Authorization") == "Bearer hf_secret-token");
  }

  TEST_CASE("all that lies under a folder is listed recursively") {
    scripted_server hub([](const seen_request&) -> steps {
      return {action::send{answer(200, {},
                                  R"([{"type":"file","path":"sub/deep/b","size":7},)"
                                  R"({"type":"directory","path":"sub/deep","size":0},)"
                                  R"({"type":"file","path":"sub/a","size":5}])")}};
    });
    storage_client here;
    const auto store = store_of("hf://org/repo@" + commit + "/sub", options_for(hub));
    const auto listed = here.run(store->list_all(here.services, here.terms));
    REQUIRE_MESSAGE(listed, (listed ? "" : listed.error().what()));
    CHECK(*listed == std::vector<object_entry>{{"a", 5}, {"deep/b", 7}});
    CHECK(hub.requests().back().target ==
          "/api/models/org/repo/tree/" + commit + "/sub?recursive=true");
  }

  TEST_CASE("a listing that leads away, or is none, is a protocol error") {
    for (const char* const link : {"</login>; rel=next", "<ftp://x/api/models/a>; rel=next"}) {
      CAPTURE(link);
      scripted_server hub([link](const seen_request&) -> steps {
        return {action::send{answer(200, {{"Link", link}}, "[]")}};
      });
      storage_client here;
      const auto listed = here.run(
          store_of("hf://org/repo@" + commit, options_for(hub))->list(here.services, here.terms));
      REQUIRE_FALSE(listed);
      CHECK(listed.error().kind() == errc::protocol_error);
      CHECK(hub.requests().size() == 1);
    }
    scripted_server portal([](const seen_request&) -> steps {
      return {action::send{answer(200, {}, "<html>a captive portal</html>")}};
    });
    storage_client here;
    const auto store = store_of("hf://org/repo", options_for(portal));
    const auto listed = here.run(store->list(here.services, here.terms));
    REQUIRE_FALSE(listed);
    CHECK(listed.error().kind() == errc::protocol_error);
    CHECK(says(listed.error(), "HF_ENDPOINT"));
    CHECK(says(listed.error(), "hf://org/repo"));
  }

  TEST_CASE("tokens are looked for in the order of the Hub's own tools") {
    const temporary_directory folder;
    folder.write("named", "hf_named\n");
    folder.write("home/token", "hf_home\n");
    folder.write("cache/huggingface/token", " hf_cache \n");
    folder.write("me/.cache/huggingface/token", "hf_me");
    std::map<std::string, std::string> all = {{"HF_TOKEN", " hf_variable\n"},
                                              {"HUGGING_FACE_HUB_TOKEN", "hf_older"},
                                              {"HF_TOKEN_PATH", folder.path_of("named")},
                                              {"HF_HOME", folder.path_of("home")},
                                              {"XDG_CACHE_HOME", folder.path_of("cache")},
                                              {"HOME", folder.path_of("me")}};
    struct link {
      const char* removed;
      std::string token;
      std::string source;
    };
    storage_client here;
    for (const auto& [removed, token, source] : std::vector<link>{
             {"", "hf_variable", "the variable HF_TOKEN"},
             {"HF_TOKEN", "hf_older", "the variable HUGGING_FACE_HUB_TOKEN"},
             {"HUGGING_FACE_HUB_TOKEN", "hf_named", "the file " + folder.path_of("named")},
             {"HF_TOKEN_PATH", "hf_home", "the file " + folder.path_of("home/token")},
             {"HF_HOME", "hf_cache", "the file " + folder.path_of("cache/huggingface/token")},
             {"XDG_CACHE_HOME", "hf_me",
              "the file " + folder.path_of("me/.cache/huggingface/token")},
             {"HOME", "", "none: requests are anonymous, since no token was found"},
         }) {
      CAPTURE(removed);
      all.erase(removed);
      auto settings = read_hub_settings({}, given(all));
      REQUIRE(settings);
      const auto found =
          here.run(make_hub_token_source(std::move(*settings))->fetch(here.services));
      REQUIRE(found);
      CHECK(found->value.bearer == token);
      CHECK(found->value.source == source);
    }
  }

  TEST_CASE("a switch and an option leave tokens where they are") {
    const std::map<std::string, std::string> variables = {{"HF_TOKEN", "hf_variable"},
                                                          {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "YES"}};
    storage_client here;
    const auto disabled =
        here.run(store_of("hf://org/repo", {}, variables)->credentials(here.services));
    REQUIRE(disabled);
    CHECK(disabled->source ==
          "none: requests are anonymous, since HF_HUB_DISABLE_IMPLICIT_TOKEN is set");
    storage_options options;
    options.token = "hf_option";
    const auto explicit_one =
        here.run(store_of("hf://org/repo", options, variables)->credentials(here.services));
    REQUIRE(explicit_one);
    CHECK(explicit_one->source == "storage.token");
    CHECK(explicit_one->details.at(0).second == "https://huggingface.co:443");
    options.token.clear();
    options.anonymous = true;
    const auto anonymous =
        here.run(store_of("hf://org/repo", options, {{"HF_TOKEN", "hf_variable"}})
                     ->credentials(here.services));
    REQUIRE(anonymous);
    CHECK(anonymous->source == "none: requests are anonymous, since storage.anonymous is set");
  }

  TEST_CASE("tokens and endpoints that cannot be used are named, and not repeated") {
    const temporary_directory folder;
    folder.write("bad", "two hf_secret-words");
    struct wrong {
      std::map<std::string, std::string> variables;
      std::string says;
    };
    for (const auto& [variables, part] : std::vector<wrong>{
             {{{"HF_TOKEN", "two hf_secret-words"}}, "HF_TOKEN"},
             {{{"HUGGING_FACE_HUB_TOKEN", "hf_secret\nX: y"}}, "HUGGING_FACE_HUB_TOKEN"},
             {{{"HF_ENDPOINT", "ftp://hf_secret"}}, "HF_ENDPOINT"},
             {{{"HF_ENDPOINT", "https://u:hf_secret@h"}}, "HF_ENDPOINT"},
             {{{"HF_TOKEN", "hf_secret"}, {"HF_ENDPOINT", "http://mirror.example.com"}}, "https"},
             {{{"HF_TOKEN_PATH", folder.path_of("bad")}}, folder.path_of("bad")},
             {{{"HF_TOKEN_PATH", folder.path()}}, folder.path()},
         }) {
      CAPTURE(part);
      const auto parsed = uri::parse("hf://org/repo");
      storage_client here;
      auto made = make_hub_store(*parsed, {}, given(variables));
      const error failed =
          made ? here.run((*made)->credentials(here.services)).error() : made.error();
      CHECK(failed.kind() == errc::invalid_request);
      CHECK_MESSAGE(says(failed, part), failed.what());
      CHECK_FALSE(says(failed, "hf_secret"));
    }
  }

  TEST_CASE("a stop while the revision is resolved ends the range") {
    scripted_server hub([](const seen_request&) -> steps { return {action::stall{}}; });
    storage_client here;
    const auto source = store_of("hf://org/repo", options_for(hub))->source("x.safetensors");
    std::stop_source stop;
    const std::jthread stopper([&] {
      CHECK(hub.wait_for_requests(1));
      stop.request_stop();
    });
    std::string first(1'000, '\0');
    const auto stopped = here.run(with_stop(
        stop.get_token(),
        source->open(here.services, here.terms, std::as_writable_bytes(std::span(first)))));
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().kind() == errc::cancelled);
  }
}

}  // namespace
}  // namespace headrace
