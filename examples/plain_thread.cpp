// headrace without coroutines of one's own: plain threads, each of which blocks on what it asks
// for.
//
//     plain_thread DIRECTORY_OR_URI
//
// One thread opens the model; two load a half each, at once, and keep the tensors; the main thread
// adds up. `sync_wait` blocks its caller and nobody else: the loops of the runtime go on.

#include <headrace/headrace.hpp>

#include <exception>
#include <iostream>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using weights = std::map<std::string, headrace::tensor>;

/// What one thread loads, and how that ended.
struct half {
  std::vector<headrace::selection> wanted;
  weights loaded;
  std::exception_ptr failure;
};

void load(const headrace::model& model, half& mine, std::stop_source& all) {
  try {
    auto tensors = model.stream({.tensors = mine.wanted});
    // A stop of `all` ends the wait: the other half need not go on when one has failed.
    while (auto* t = headrace::sync_wait(tensors.next(), all.get_token())) {
      std::string name(t->name());
      mine.loaded.emplace(std::move(name), std::move(*t));
    }
    headrace::sync_wait(tensors.close());
  } catch (...) {
    // The first failure counts: the other half then ends with `cancelled`.
    if (all.request_stop()) mine.failure = std::current_exception();
  }
}

std::size_t bytes_of(const weights& loaded) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : loaded) bytes += tensor.bytes().size();
  return bytes;
}

int run(const char* uri) {
  headrace::runtime runtime;
  const headrace::model model = headrace::sync_wait(headrace::open(runtime, uri));

  half halves[2];
  bool second = false;
  for (const headrace::tensor_info& info : model.tensors()) {
    halves[second ? 1 : 0].wanted.push_back({info.name});
    second = !second;
  }
  std::stop_source all;
  {
    std::vector<std::jthread> threads;
    for (half& mine : halves) {
      // An empty selection would stand for every tensor.
      if (!mine.wanted.empty()) {
        threads.emplace_back([&model, &mine, &all] { load(model, mine, all); });
      }
    }
  }
  for (const half& mine : halves) {
    if (mine.failure) std::rethrow_exception(mine.failure);
  }
  std::cout << halves[0].loaded.size() + halves[1].loaded.size() << " tensors, "
            << bytes_of(halves[0].loaded) + bytes_of(halves[1].loaded) << " bytes\n";
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: plain_thread URI\n";
    return 2;
  }
  try {
    return run(arguments[1]);
  } catch (const headrace::error& failed) {
    std::cerr << failed.what() << "\n";
    return 1;
  }
}
