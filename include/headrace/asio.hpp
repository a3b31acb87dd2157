#pragma once

/// headrace for services on Boost.Asio: completion tokens for headrace's operations, headrace's
/// coroutines on Asio's, and the loop inside an `io_context`. Headers alone: link with headrace.

#include <headrace/asio/async_close.hpp>
#include <headrace/asio/async_load.hpp>
#include <headrace/asio/async_next.hpp>
#include <headrace/asio/async_open.hpp>
#include <headrace/asio/async_run.hpp>
#include <headrace/asio/hosted.hpp>
#include <headrace/asio/use_headrace.hpp>
#include <headrace/headrace.hpp>
