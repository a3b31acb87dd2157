#pragma once

/// Marks what the library gives to its users: everything else in it is hidden.
///
/// On a class where it is defined (all of its members, its table and its type are then the
/// library's), on a function where a header declares it. What a header defines itself needs none.
/// `-DHEADRACE_API=` where headrace is compiled into something that should not show it.
///
///     class HEADRACE_API runtime { … };
///     [[nodiscard]] HEADRACE_API task<model> open(runtime& runtime, std::string uri);
#ifndef HEADRACE_API
#define HEADRACE_API __attribute__((visibility("default")))
#endif
