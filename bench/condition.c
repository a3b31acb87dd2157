// Touches and frees about BYTES of memory, and nothing else: run right before each measured run.
//
// On a virtual machine, memory that has been free for some seconds may have been given back to the
// host; touching it again then costs several times as much as touching memory that was freed just
// before. Which of two programs pays for that is an accident of their order, so the driver lets
// this one pay for both.
//
//     condition BYTES
#define _GNU_SOURCE 1  // the build defines it too, with this value

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char** arguments) {
  enum { page = 4096, huge_page = 2 << 20 };
  char* end = NULL;
  errno = 0;
  const unsigned long long size = count == 2 ? strtoull(arguments[1], &end, 10) : 0;
  if (count != 2 || end == arguments[1] || *end != '\0' || errno != 0 || size == 0 ||
      size > SIZE_MAX - huge_page) {
    fputs("condition: expected one argument, a number of bytes\n", stderr);
    return 1;
  }
  // One huge page more than asked, so that the part which is touched can start on a huge page.
  void* start = mmap(NULL, (size_t)size + huge_page, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    fprintf(stderr, "condition: cannot map %llu bytes: %s\n", size, strerror(errno));
    return 1;
  }
  unsigned char* memory =
      (unsigned char*)(((uintptr_t)start + huge_page - 1) / huge_page * huge_page);
  (void)madvise(memory, (size_t)size,
                MADV_HUGEPAGE);  // a kernel without huge pages touches small ones
  for (size_t offset = 0; offset < (size_t)size; offset += page)
    *(volatile unsigned char*)(memory + offset) = 1;
  if (munmap(start, (size_t)size + huge_page) != 0) {
    fprintf(stderr, "condition: cannot free the memory: %s\n", strerror(errno));
    return 1;
  }
  return 0;
}
