#pragma once

/// The front door: everything that streaming a model takes.

#include <headrace/base/error.hpp>
#include <headrace/base/log.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/base/trace.hpp>
#include <headrace/coro/async_generator.hpp>
#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/blocking.hpp>
#include <headrace/coro/channel.hpp>
#include <headrace/coro/sync_wait.hpp>
#include <headrace/coro/task.hpp>
#include <headrace/coro/when.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/safetensors/dtype.hpp>
#include <headrace/safetensors/header.hpp>
#include <headrace/safetensors/index.hpp>
#include <headrace/stream/copy_to_host.hpp>
#include <headrace/stream/describe_credentials.hpp>
#include <headrace/stream/model.hpp>
#include <headrace/stream/runtime.hpp>
#include <headrace/stream/tensor.hpp>
