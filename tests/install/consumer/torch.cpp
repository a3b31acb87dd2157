// Somebody else's program that loads into torch.

#include <headrace/headrace.hpp>
#include <headrace/torch/state_dict.hpp>

#include <cstdio>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  headrace::runtime runtime;
  const auto model = headrace::sync_wait(headrace::open(runtime, arguments[1]));
  const auto weights = headrace::sync_wait(headrace::torch::state_dict(model));
  for (const auto& item : weights) {
    std::printf("%s %zu\n", item.key().c_str(), item.value().nbytes());
  }
}
