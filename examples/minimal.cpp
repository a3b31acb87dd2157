// The smallest loader: prints name, dtype and size of each tensor as it arrives.
//
//     minimal s3://bucket/model

#include <headrace/headrace.hpp>

#include <iostream>

headrace::task<void> load(headrace::runtime& runtime, std::string uri) {
  headrace::model model = co_await headrace::open(runtime, std::move(uri));
  auto tensors = model.stream();
  while (auto* t = co_await tensors.next()) {
    std::cout << t->name() << " " << to_string(t->dtype()) << " " << t->bytes().size() << "\n";
  }
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: minimal URI\n";
    return 2;
  }
  try {
    headrace::runtime runtime;
    headrace::sync_wait(load(runtime, arguments[1]));
  } catch (const std::exception& failed) {
    std::cerr << failed.what() << "\n";
    return 1;
  }
}
