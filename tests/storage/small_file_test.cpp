#include "storage/small_file.hpp"

#include "storage_client.hpp"

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>

#include <string>

namespace headrace {
namespace {

using test::says;
using test::storage_client;
using test::temporary_directory;

TEST_SUITE("fault") {
  TEST_CASE("a small file is read whole, up to the limit, and one that is not there is nothing") {
    const temporary_directory folder;
    storage_client here;
    for (const std::size_t size : {0, 1, 4095, 4096, 4097, 10'000}) {
      CAPTURE(size);
      const std::string content = test::content_of("x", size);
      folder.write("file", content);
      const auto read = here.run(read_small_file(here.services, folder.path_of("file"), 10'000));
      REQUIRE(read);
      REQUIRE(*read);
      CHECK(**read == content);
    }
    const auto missing = here.run(read_small_file(here.services, folder.path_of("none")));
    REQUIRE(missing);
    CHECK_FALSE(*missing);
    const auto nowhere = here.run(read_small_file(here.services, folder.path_of("file/token")));
    REQUIRE(nowhere);
    CHECK_FALSE(*nowhere);
  }

  TEST_CASE("a file that is too large, or none, is refused by its name") {
    const temporary_directory folder;
    folder.write("file", std::string(101, 's'));
    storage_client here;
    const auto large = here.run(read_small_file(here.services, folder.path_of("file"), 100));
    REQUIRE_FALSE(large);
    CHECK(large.error().kind() == errc::invalid_request);
    CHECK(says(large.error(), folder.path_of("file")));
    CHECK_FALSE(says(large.error(), "sss"));
    const auto directory = here.run(read_small_file(here.services, folder.path()));
    REQUIRE_FALSE(directory);
    CHECK(says(directory.error(), folder.path()));
  }
}

}  // namespace
}  // namespace headrace
