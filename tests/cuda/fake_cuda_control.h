#pragma once

/*
 * What the fake CUDA driver does and what it has seen.
 *
 * The fake is a `libcuda.so.1` of our own: put its folder into LD_LIBRARY_PATH and a program that
 * loads the driver runs against it, with streams run by threads, real memory behind device
 * pointers, and checks that no real driver makes. Whole programs are directed by the environment,
 * tests in the same process by the functions below, which the library exports next to CUDA's own:
 * take them with `dlsym` (tests/cuda/fake_cuda.hpp does it).
 *
 * Settings. In the environment each is FAKE_CUDA_ and its name in capitals
 * (FAKE_CUDA_COPY_GBPS=20), read when the library is loaded; sizes take K, M or G (powers of 1024).
 *
 *   devices=1        how many there are; 0: cuInit gives CUDA_ERROR_NO_DEVICE
 *   driver=13000     the version; cuGetProcAddress hides what is newer. The folder v11_2 holds a
 * library for 11020 that does not export it either memory=8G        of each device pinned=0 bytes
 * of host memory that can be pinned; 0: no limit pools=1          0: the device has no memory
 * pools, their functions give CUDA_ERROR_NOT_SUPPORTED copy_gbps=0      GB/s of each device and
 * direction, shared by its streams: a copy moves the bytes and sleeps for the rest of its time. 0:
 * as fast as it goes move=1           0: copies take their time and move nothing, as far as the
 * processor is concerned a DMA engine seed=1           of the delays delay_us=0       each
 * operation of a stream begins up to so much later: streams overtake each other init_ms=0 cuInit
 * takes so long check_bytes=1    0: no checksums of what copies read: for figures, which they slow
 * down. Recycling too early then goes unseen fail= `cuMemAllocAsync:2=2,cuEventQuery:1+=700`: the
 * 2nd call gives error 2, every call from the 1st on 700 fail_copy=       `3=700`: the 3rd copy,
 * while it runs, loses its device with error 700 abort=0          1: abort at the first violation,
 * with the violation on stderr report=          a file: what `fake_cuda_report` gives is written
 * there at the exit of the process
 *
 * Errors that lose a context in a real driver (700 and its like) do so here as well, however they
 * come: what is queued is dropped, host functions are never called, every call, query and wait of
 * that device gives the same error; only giving back still gives back.
 *
 * A device address is reserved but not readable: a host that follows one gets SIGSEGV.
 * `fake_cuda_host_address` says where the bytes are.
 *
 * Violations, each a line of text:
 *   - a copy whose source was unpinned or overwritten, or whose device memory was freed, before the
 * copy had ended
 *   - a copy that starts from memory that is not pinned, or reaches past an allocation
 *   - device memory used before its stream-ordered allocation was reached, or after its free was
 * queued
 *   - a call within a host function
 *   - a call without a current context; a thread that ended with one that was pushed and not popped
 *   - a call that is unsafe while a graph is captured elsewhere, by a thread that is not in relaxed
 * mode
 *   - something of a primary context that was still there when the context was released for the
 * last time
 *   - a handle, address or count of references given back twice
 *
 * Threads: any, for all of it.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes settings: "seed=7 delay_us=200 fail=cuMemAllocAsync:2=2", parted by spaces. 0, or the
   number (from 1) of the setting that was not understood, before which all have been made.
   `driver`, `devices` and `memory` count for what is asked from then on: set them before the first
   cuInit. */
int fake_cuda_configure(const char* settings);

/* All settings as the environment has them, counters at 0, no violations; lost devices live again.
   Memory, streams, events and contexts that are there stay. */
void fake_cuda_reset(void);

/* Streams begin nothing until `fake_cuda_let_go`, which lets single ones go as well. Waiting for a
 * held stream waits. */
void fake_cuda_hold(void);
void fake_cuda_let_go(void);

/* The same for one stream, a CUstream. */
void fake_cuda_hold_stream(void* stream);
void fake_cuda_let_go_stream(void* stream);

/* Has the device lose its context now, with a CUresult. */
void fake_cuda_lose(int device, int code);

/* Whether a graph is being captured: from `stream` (what cuStreamIsCapturing says; null: from one
   elsewhere alone), in global mode. Unsafe calls of threads that are not in relaxed mode then fail
   and are violations. */
void fake_cuda_capture(void* stream, int active);

/* Waits until the streams have nothing queued. 0, or -1 where they still had after so many
 * milliseconds. */
int fake_cuda_settle(unsigned limit_ms);

/* A counter, or how often a function was called ("cuMemAlloc_v2"):
     copies, copied_bytes, host_functions, violations      since the start or the last reset
     queued                                                operations that streams have not finished
     streams, events, contexts, allocations, pools         that are there now
     references                                            to primary contexts
     pinned_ranges, pinned_bytes, peak_pinned_bytes
     device_bytes, peak_device_bytes                       allocated
     resident_bytes                                        of host memory behind device memory
     cpu_microseconds                                      of the fake's own threads, host functions
   left out Anything unknown is 0. */
uint64_t fake_cuda_count(const char* name);

/* How many contexts are current on the calling thread, one above the other. */
unsigned fake_cuda_depth(void);

/* Writes the violations, a line each, or what is there now that was to be given back ("streams 1"),
   a line a kind; cut at `size`, always terminated. The number of lines that there are. */
size_t fake_cuda_violations(char* text, size_t size);
size_t fake_cuda_leaks(char* text, size_t size);

/* Where the host finds the byte behind a device address; null where that is none. */
void* fake_cuda_host_address(uint64_t address);

/* All counters, calls, violations and leaks as one JSON object; the length that it has, even where
 * `size` was less. */
size_t fake_cuda_report(char* json, size_t size);

#ifdef __cplusplus
}
#endif
