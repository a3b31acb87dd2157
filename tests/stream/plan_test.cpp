#include "stream/plan.hpp"

#include <headrace/base/sizes.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace headrace::detail {
namespace {

using test::content_of;
using test::wanted_tensor;

/// Files in memory and what their headers say.
struct example {
  std::vector<std::string> files;
  catalogue contents;
};

example make_example(const std::vector<std::vector<wanted_tensor>>& files) {
  example made;
  std::vector<parsed_file> parsed;
  for (std::size_t number = 0; number < files.size(); ++number) {
    made.files.push_back(test::safetensors_file(files[number]));
    auto contents =
        parse_header(std::as_bytes(std::span(made.files.back())), made.files.back().size());
    REQUIRE(contents);
    parsed.push_back(
        {"file-" + std::to_string(number), made.files.back().size(), std::move(*contents)});
  }
  auto built = build_catalogue(std::move(parsed), nullptr);
  REQUIRE(built);
  made.contents = std::move(*built);
  return made;
}

std::vector<std::uint32_t> everything(const stream_plan& plan) {
  std::vector<std::uint32_t> all(plan.tensors.size());
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

/// What a tensor's runs bring, copied naively.
std::string gather(const example& from, const planned_tensor& planned) {
  std::string bytes;
  for (const auto& run : planned.runs) {
    for (std::uint64_t repeat = 0; repeat < run.count; ++repeat) {
      bytes += from.files[planned.file].substr(run.begin + repeat * run.stride, run.size);
    }
  }
  return bytes;
}

/// A slice by its definition: each element of it, found by its index. In bits, so that it serves
/// every dtype. `whole_bytes` says whether every stretch of neighbouring elements begins and ends
/// on a byte.
struct naive_slice {
  std::vector<bool> bits;
  bool whole_bytes = true;
};

naive_slice slice_naively(const std::string& bytes, const wanted_tensor& tensor,
                          const std::vector<slice_extent>& slice) {
  const std::uint64_t width = bits(tensor.dtype);
  std::uint64_t total = 1;
  for (const auto extent : tensor.shape) total *= extent;
  naive_slice found;
  bool before = false;
  for (std::uint64_t element = 0; element < total; ++element) {
    std::uint64_t rest = element;
    bool inside = true;
    for (std::size_t at = tensor.shape.size(); at-- > 0;) {
      const std::uint64_t index = rest % tensor.shape[at];
      rest /= tensor.shape[at];
      if (at < slice.size() && (index < slice[at].begin || index >= slice[at].end)) inside = false;
    }
    if (inside != before && element * width % 8 != 0) found.whole_bytes = false;
    before = inside;
    if (!inside) continue;
    for (std::uint64_t bit = element * width; bit < (element + 1) * width; ++bit) {
      found.bits.push_back(((static_cast<unsigned char>(bytes[bit / 8]) >> (bit % 8)) & 1) != 0);
    }
  }
  return found;
}

std::vector<bool> bits_of(const std::string& bytes) {
  std::vector<bool> all;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit)
      all.push_back(((static_cast<unsigned char>(c) >> bit) & 1) != 0);
  }
  return all;
}

stream_plan plan_of(const example& from, const std::vector<selection>& wanted = {},
                    delivery order = delivery::completion) {
  auto plan = make_plan(from.contents, wanted, order);
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().what()));
  return std::move(*plan);
}

std::vector<std::string> names_of(const example& from, const stream_plan& plan) {
  std::vector<std::string> names;
  for (const auto& planned : plan.tensors)
    names.push_back(from.contents.tensors[planned.tensor].name);
  return names;
}

TEST_SUITE("unit") {
  TEST_CASE("without a selection the plan is every tensor, by file and offset") {
    const auto from = make_example(
        {{{"b", dtype::f32, {4, 4}}, {"a", dtype::u8, {7}}}, {{"c", dtype::bf16, {3}}}});
    const auto plan = plan_of(from);
    CHECK(names_of(from, plan) == std::vector<std::string>{"b", "a", "c"});
    CHECK(plan.total_bytes == 64 + 7 + 6);
    CHECK(plan.largest_tensor == 64);
    for (const auto& planned : plan.tensors) {
      const auto& info = from.contents.tensors[planned.tensor];
      CHECK(gather(from, planned) == content_of(info.name, info.size()));
      CHECK(planned.shape == nullptr);
    }
  }

  TEST_CASE("a tensor of nothing is planned without runs") {
    const auto from = make_example({{{"none", dtype::f32, {0, 5}}, {"scalar", dtype::f64, {}}}});
    const auto plan = plan_of(from);
    CHECK(plan.tensors[0].size == 0);
    CHECK(plan.tensors[0].runs.empty());
    CHECK(plan.tensors[1].size == 8);
    CHECK(cut_ranges(plan, everything(plan), 1000, {}).size() == 1);
  }

  TEST_CASE("slices bring the elements that they name") {
    const wanted_tensor tensor{"t", dtype::i16, {6, 5, 4}};
    const auto from =
        make_example({{{"before", dtype::u8, {13}}, tensor, {"after", dtype::u8, {3}}}});
    const std::vector<std::vector<slice_extent>> slices = {
        {{2, 4}},
        {{}, {1, 3}},
        {{}, {}, {2, 3}},
        {{1, 2}, {4, 5}, {0, 1}},
        {{1, 5}, {2, 3}, {1, 4}},
        {{0, 6}, {0, 5}},
        {{5, 100}},
    };
    for (const auto& slice : slices) {
      const auto plan = plan_of(from, {{"t", slice}});
      REQUIRE(plan.tensors.size() == 1);
      const auto expected = slice_naively(content_of("t", tensor.size()), tensor, slice);
      CHECK((bits_of(gather(from, plan.tensors[0])) == expected.bits));
      CHECK(plan.tensors[0].size * 8 == expected.bits.size());
      CHECK(plan.total_bytes == plan.tensors[0].size);
    }
  }

  TEST_CASE("a block of columns is one strided run") {
    const auto from = make_example({{{"t", dtype::bf16, {1000, 64}}}});
    const auto plan = plan_of(from, {{"t", {{}, {16, 32}}}});
    REQUIRE(plan.tensors[0].runs.size() == 1);
    const auto& run = plan.tensors[0].runs[0];
    CHECK(run ==
          strided_run{from.contents.place_of(from.contents.tensors[0]).begin + 32, 32, 128, 1000});
    REQUIRE(plan.tensors[0].shape != nullptr);
    CHECK(*plan.tensors[0].shape == std::vector<std::uint64_t>{1000, 16});
  }

  TEST_CASE("a slice of nothing is a tensor of nothing with its shape") {
    const auto from = make_example({{{"t", dtype::f32, {4, 4}}}});
    const auto plan = plan_of(from, {{"t", {{}, {2, 2}}}});
    CHECK(plan.tensors[0].size == 0);
    CHECK(plan.tensors[0].runs.empty());
    CHECK(*plan.tensors[0].shape == std::vector<std::uint64_t>{4, 0});
  }

  TEST_CASE("slices out of bounds are refused with what there is") {
    const auto from = make_example({{{"t", dtype::f32, {4, 4}}, {"scalar", dtype::f32, {}}}});
    const auto refused = [&from](const selection& wanted) {
      const auto plan = make_plan(from.contents, std::span(&wanted, 1), delivery::completion);
      REQUIRE_FALSE(plan);
      CHECK(plan.error().kind() == errc::invalid_request);
      return plan.error().message();
    };
    CHECK(refused({"t", {{5, 6}}}).find("4 elements") != std::string::npos);
    CHECK(refused({"t", {{3, 2}}}).find("begins at 3") != std::string::npos);
    CHECK(refused({"t", {{}, {}, {0, 1}}}).find("2 dimensions") != std::string::npos);
    CHECK(refused({"scalar", {{0, 1}}}).find("0 dimensions") != std::string::npos);
  }

  TEST_CASE("slices of packed elements have to fall on bytes") {
    const auto from = make_example(
        {{{"f4", dtype::f4, {4, 6}}, {"odd", dtype::f4, {2, 3}}, {"f6", dtype::f6_e2m3, {2, 8}}}});
    CHECK(plan_of(from, {{"f4", {{}, {2, 4}}}}).tensors[0].size == 4);
    CHECK(plan_of(from, {{"f4", {{1, 3}}}}).tensors[0].size == 6);
    CHECK(plan_of(from, {{"f6", {{}, {4, 8}}}}).tensors[0].size == 6);
    // One row alone: where the next one would begin does not matter.
    CHECK(plan_of(from, {{"odd", {{0, 1}, {0, 2}}}}).tensors[0].size == 1);
    for (const selection& wanted :
         {selection{"f4", {{}, {1, 3}}}, selection{"f4", {{}, {0, 1}}},
          selection{"f6", {{}, {0, 2}}}, selection{"odd", {{0, 2}, {0, 2}}},
          selection{"odd", {{1, 2}}}}) {
      const auto plan = make_plan(from.contents, std::span(&wanted, 1), delivery::completion);
      REQUIRE_FALSE(plan);
      CHECK(plan.error().kind() == errc::invalid_request);
      CHECK(plan.error().message().find("cuts through bytes") != std::string::npos);
    }
  }

  TEST_CASE("random slices of random shapes and dtypes equal the naive ones") {
    std::mt19937_64 random(20240607);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };
    int refused = 0;
    int taken = 0;
    for (int round = 0; round < 1500; ++round) {
      wanted_tensor tensor{"t", static_cast<dtype>(below(dtype_count)), {}};
      const auto rank = 1 + below(4);
      for (std::uint64_t at = 0; at < rank; ++at) tensor.shape.push_back(1 + below(7));
      std::uint64_t elements = 1;
      for (const auto extent : tensor.shape) elements *= extent;
      if (elements * bits(tensor.dtype) % 8 != 0) tensor.shape.back() *= 4;
      const auto from = make_example({{{"before", dtype::u8, {below(9)}}, tensor}});
      std::vector<slice_extent> slice;
      for (std::uint64_t at = 0; at < 1 + below(rank); ++at) {
        const auto begin = below(tensor.shape[at] + 1);
        slice.push_back({begin, begin + below(tensor.shape[at] - begin + 1)});
        if (below(4) == 0) slice.back() = {};
      }
      const auto expected = slice_naively(content_of("t", tensor.size()), tensor, slice);
      const selection wanted{"t", slice};
      const auto plan = make_plan(from.contents, std::span(&wanted, 1), delivery::completion);
      REQUIRE(static_cast<bool>(plan) == expected.whole_bytes);
      if (!plan) {
        ++refused;
        continue;
      }
      ++taken;
      REQUIRE((bits_of(gather(from, plan->tensors[0])) == expected.bits));
    }
    CHECK(taken > 1000);
    CHECK(refused > 20);
  }

  TEST_CASE("selections take names and globs") {
    const auto from =
        make_example({{{"a.0.w", dtype::u8, {1}}, {"a.1.w", dtype::u8, {1}}, {"b", dtype::u8, {1}}},
                      {{"a.*", dtype::u8, {1}}, {"z[0]", dtype::u8, {1}}}});
    CHECK(names_of(from, plan_of(from, {{"b"}})) == std::vector<std::string>{"b"});
    CHECK(names_of(from, plan_of(from, {{"a.?.w"}})) == std::vector<std::string>{"a.0.w", "a.1.w"});
    // A name that is there is that name, whatever it looks like.
    CHECK(names_of(from, plan_of(from, {{"a.*"}})) == std::vector<std::string>{"a.*"});
    CHECK(names_of(from, plan_of(from, {{"z[0]"}})) == std::vector<std::string>{"z[0]"});
    CHECK(names_of(from, plan_of(from, {{"*"}})).size() == 5);
    CHECK(names_of(from, plan_of(from, {{"[a-b]*"}})) ==
          std::vector<std::string>{"a.0.w", "a.1.w", "b", "a.*"});
  }

  TEST_CASE("a tensor that several selections name comes once, as the first says") {
    const auto from = make_example({{{"a", dtype::u8, {4}}, {"b", dtype::u8, {4}}}});
    const auto plan = plan_of(from, {{"b", {{1, 3}}}, {"*"}, {"b"}});
    CHECK(names_of(from, plan) == std::vector<std::string>{"a", "b"});
    CHECK(plan.tensors[1].size == 2);
  }

  TEST_CASE("the order of request is kept where it counts, else that of the files") {
    const auto from =
        make_example({{{"a", dtype::u8, {4}}, {"b", dtype::u8, {4}}}, {{"c", dtype::u8, {4}}}});
    const std::vector<selection> wanted = {{"c"}, {"b"}, {"a"}};
    CHECK(names_of(from, plan_of(from, wanted, delivery::requested)) ==
          std::vector<std::string>{"c", "b", "a"});
    CHECK(names_of(from, plan_of(from, wanted, delivery::completion)) ==
          std::vector<std::string>{"a", "b", "c"});
  }

  TEST_CASE("a selection that names nothing is not found") {
    const auto from = make_example({{{"a", dtype::u8, {4}}}});
    for (const char* const name : {"c", "c*", "", "A"}) {
      const selection wanted{name};
      const auto plan = make_plan(from.contents, std::span(&wanted, 1), delivery::completion);
      REQUIRE_FALSE(plan);
      CHECK(plan.error().kind() == errc::not_found);
      CHECK(plan.error().message().find('"' + std::string(name) + '"') != std::string::npos);
    }
  }

  TEST_CASE("neighbours make one range, and a long one is split") {
    const auto from =
        make_example({{{"a", dtype::u8, {100}}, {"b", dtype::u8, {200}}, {"c", dtype::u8, {300}}}});
    const auto plan = plan_of(from);
    const auto first = plan.tensors[0].runs[0].begin;
    auto ranges = cut_ranges(plan, everything(plan), 1000, {});
    REQUIRE(ranges.size() == 1);
    CHECK(ranges[0].bytes == byte_range{first, 600});
    CHECK(ranges[0].segments == std::vector<segment>{{0, 0, 100}, {1, 0, 200}, {2, 0, 300}});

    ranges = cut_ranges(plan, everything(plan), 250, {});
    REQUIRE(ranges.size() == 3);
    CHECK(ranges[0].segments == std::vector<segment>{{0, 0, 100}, {1, 0, 150}});
    CHECK(ranges[1].segments == std::vector<segment>{{1, 150, 50}, {2, 0, 200}});
    CHECK(ranges[2].segments == std::vector<segment>{{2, 200, 100}});

    CHECK(cut_ranges(plan, everything(plan), 1, {}).size() == 600);
  }

  TEST_CASE("ranges never reach into another file") {
    const auto from = make_example({{{"a", dtype::u8, {10}}}, {{"b", dtype::u8, {10}}}});
    const auto plan = plan_of(from);
    const auto ranges = cut_ranges(plan, everything(plan), 1000, {});
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[0].file == 0);
    CHECK(ranges[1].file == 1);
  }

  TEST_CASE("small gaps are read over, larger ones asked around") {
    const auto from = make_example({{{"a", dtype::u8, {10}},
                                     {"gap", dtype::u8, {gap_limit}},
                                     {"b", dtype::u8, {10}},
                                     {"wide gap", dtype::u8, {gap_limit + 1}},
                                     {"c", dtype::u8, {10}}}});
    const auto plan = plan_of(from, {{"a"}, {"b"}, {"c"}});
    const auto ranges = cut_ranges(plan, everything(plan), 1_MiB, {});
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[0].segments ==
          std::vector<segment>{{0, 0, 10}, {segment::gap, 0, gap_limit}, {1, 0, 10}});
    CHECK(ranges[0].bytes.size == gap_limit + 20);
    CHECK(ranges[1].segments == std::vector<segment>{{2, 0, 10}});
    // Where the gap would fill a range there is no use in it.
    CHECK(cut_ranges(plan, everything(plan), gap_limit + 10, {}).size() == 3);
  }

  TEST_CASE("what is not admitted is in no range, in whatever order the others come") {
    const auto from =
        make_example({{{"a", dtype::u8, {10}}, {"b", dtype::u8, {10}}, {"c", dtype::u8, {10}}}});
    const auto plan = plan_of(from, {{"c"}, {"a"}, {"b"}}, delivery::requested);
    const std::vector<std::uint32_t> admitted = {0, 1};  // c, then a
    const auto ranges = cut_ranges(plan, admitted, 1000, {});
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[0].segments == std::vector<segment>{{0, 0, 10}});
    CHECK(ranges[1].segments == std::vector<segment>{{1, 0, 10}});
  }

  TEST_CASE("what is known of a file's start is not asked for") {
    const auto from =
        make_example({{{"a", dtype::u8, {100}}, {"b", dtype::u8, {100}}, {"c", dtype::u8, {100}}}});
    const auto plan = plan_of(from);
    const std::vector<std::uint64_t> known = {plan.tensors[1].runs[0].begin + 30};
    const auto ranges = cut_ranges(plan, everything(plan), 1000, known);
    REQUIRE(ranges.size() == 1);
    CHECK(ranges[0].bytes == byte_range{known[0], 170});
    CHECK(ranges[0].segments == std::vector<segment>{{1, 30, 70}, {2, 0, 100}});
    CHECK(known_parts(plan.tensors[0], known[0]) ==
          std::vector<known_part>{{plan.tensors[0].runs[0].begin, 0, 100}});
    CHECK(known_parts(plan.tensors[1], known[0]) ==
          std::vector<known_part>{{plan.tensors[1].runs[0].begin, 0, 30}});
    CHECK(known_parts(plan.tensors[2], known[0]).empty());
  }

  TEST_CASE("reading all ranges of random plans fills every tensor exactly once") {
    std::mt19937_64 random(77);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };
    for (int round = 0; round < 300; ++round) {
      std::vector<std::vector<wanted_tensor>> files(1 + below(3));
      for (std::size_t file = 0; file < files.size(); ++file) {
        for (std::uint64_t count = 1 + below(8); count > 0; --count) {
          files[file].push_back(
              {"t" + std::to_string(file) + "." + std::to_string(count),
               below(2) == 0 ? dtype::u8 : dtype::f32,
               {1 + below(40), below(12) == 0 ? 0 : 1 + below(60), 1 + below(5)}});
        }
      }
      const auto from = make_example(files);
      std::vector<selection> wanted;
      const bool all = below(3) == 0;
      for (const auto& file : files) {
        for (const auto& tensor : file) {
          if (all || below(3) == 0) continue;
          selection choice{tensor.name};
          for (std::uint64_t at = 0; at < below(4); ++at) {
            const auto begin = below(tensor.shape[at] + 1);
            choice.slice.push_back({begin, begin + below(tensor.shape[at] - begin + 1)});
          }
          wanted.push_back(std::move(choice));
        }
      }
      std::shuffle(wanted.begin(), wanted.end(), random);
      const auto plan =
          plan_of(from, wanted, below(2) == 0 ? delivery::requested : delivery::completion);

      std::vector<std::uint64_t> known(files.size(), 0);
      if (below(2) == 0) {
        for (std::size_t file = 0; file < files.size(); ++file)
          known[file] = below(from.files[file].size() + 1);
      }
      std::vector<std::string> filled;
      std::vector<std::string> touched;
      for (const auto& planned : plan.tensors) {
        filled.emplace_back(planned.size, '\0');
        touched.emplace_back(planned.size, '\0');
        for (const auto& part : known_parts(planned, known[planned.file])) {
          REQUIRE(part.in_file + part.size <= known[planned.file]);
          for (std::uint64_t at = 0; at < part.size; ++at) {
            filled.back()[part.offset + at] = from.files[planned.file][part.in_file + at];
            ++touched.back()[part.offset + at];
          }
        }
      }

      const std::uint64_t longest = 1 + below(below(2) == 0 ? 300 : 20'000);
      for (std::uint32_t next = 0; next < plan.tensors.size();) {
        std::vector<std::uint32_t> admitted;
        for (auto count = 1 + below(5); count > 0 && next < plan.tensors.size(); --count)
          admitted.push_back(next++);
        auto ranges = cut_ranges(plan, admitted, longest, known);
        for (const auto& range : ranges) {
          REQUIRE(range.bytes.size <= longest);
          REQUIRE(range.segments.front().tensor != segment::gap);
          REQUIRE(range.segments.back().tensor != segment::gap);
        }
        // Shared out further, as towards the end of a stream.
        for (std::size_t at = 0; at < ranges.size(); ++at) {
          if (ranges[at].bytes.size < 2 || below(2) == 0) continue;
          const auto kept = 1 + below(ranges[at].bytes.size - 1);
          auto rest = split_range(ranges[at], kept);
          REQUIRE(ranges[at].bytes.size == kept);
          REQUIRE(rest.bytes.begin == ranges[at].bytes.end());
          ranges.push_back(std::move(rest));
        }
        for (const auto& range : ranges) {
          REQUIRE(range.bytes.size > 0);
          REQUIRE(range.bytes.end() <= from.files[range.file].size());
          std::uint64_t at = range.bytes.begin;
          for (const auto& part : range.segments) {
            REQUIRE(part.size > 0);
            if (part.tensor == segment::gap) {
              REQUIRE(part.size <= gap_limit);
            } else {
              REQUIRE(std::ranges::count(admitted, part.tensor) == 1);
              REQUIRE(plan.tensors[part.tensor].file == range.file);
              REQUIRE(at >= known[range.file]);
              for (std::uint64_t byte = 0; byte < part.size; ++byte) {
                filled[part.tensor][part.offset + byte] = from.files[range.file][at + byte];
                ++touched[part.tensor][part.offset + byte];
              }
            }
            at += part.size;
          }
          REQUIRE(at == range.bytes.end());
        }
      }
      std::uint64_t total = 0;
      for (std::size_t number = 0; number < plan.tensors.size(); ++number) {
        REQUIRE((filled[number] == gather(from, plan.tensors[number])));
        REQUIRE((touched[number] == std::string(plan.tensors[number].size, '\1')));
        total += plan.tensors[number].size;
      }
      REQUIRE(total == plan.total_bytes);
    }
  }
}

}  // namespace
}  // namespace headrace::detail
