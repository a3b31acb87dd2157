#include "stream/catalogue.hpp"

namespace headrace::detail {

result<catalogue> build_catalogue(std::vector<parsed_file> files, const index* shards) {
  catalogue built;
  std::size_t count = 0;
  for (const auto& file : files) count += file.contents.tensors.size();
  built.tensors.reserve(count);  // never grows afterwards: `by_name` holds views of the names
  built.by_name.reserve(count);
  built.files.reserve(files.size());

  for (auto& file : files) {
    const auto number = static_cast<std::uint32_t>(built.files.size());
    for (auto& info : file.contents.tensors) {
      if (shards != nullptr && shards->find(info.name) != number) continue;
      if (built.by_name.contains(info.name)) continue;
      info.file = number;
      built.total_bytes += info.size();
      built.tensors.push_back(std::move(info));
      built.by_name.emplace(built.tensors.back().name,
                            static_cast<std::uint32_t>(built.tensors.size() - 1));
    }
    built.files.push_back(
        {std::move(file.name), file.bytes, file.contents.size, std::move(file.contents.metadata)});
  }

  if (shards != nullptr && built.tensors.size() != shards->tensors.size()) {
    for (const auto& wanted : shards->tensors) {
      if (built.by_name.contains(wanted.tensor)) continue;
      return failure{error(errc::invalid_safetensors,
                           "the index places the tensor " + json_quote(wanted.tensor) + " in " +
                               shards->files[wanted.file] + ", which does not hold it")};
    }
  }
  return built;
}

}  // namespace headrace::detail
