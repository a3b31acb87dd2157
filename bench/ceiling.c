// The ceiling that `./run bench` holds headrace against: the least work with which the same bytes
// can be received.
//
// Over the network it sends the same ranged GETs over a few keep-alive connections and receives
// with io_uring, from one thread, into one reused buffer a connection. With --fresh every range
// goes to its own place in fresh memory that is kept to the end. With --read it reads local files
// with read(2) instead. It checks what it must to be sure that it got the bytes (status and length)
// and nothing else: no retry, no validators, no parsing of what it receives.
//
//     ceiling [--fresh] [--connections N] [--chunk-size BYTES] http://HOST:PORT/FILE...
//     ceiling --read [--fresh] [--block-size BYTES] FILE...
//
// --receive-size BYTES limits one receive and --plain-pages does without huge pages: for
// `./run bench ceiling`, which compares such variants with the usual loop.
//
// One line of JSON on stdout: bytes, seconds (from the first request, or the first read, to the
// last byte), gbps (10^9 bytes), cpu_seconds and peak_rss_bytes of the whole process, requests. Any
// error: one line on stderr, exit status 1.
#define _GNU_SOURCE 1  // the build defines it too, with this value

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <liburing.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { huge_page = 2 << 20, head_limit = 4096, request_limit = 4096, connections_limit = 1024 };

// A URL taken apart; every URL of a run must name the same server.
struct url {
  char host[256];
  char port[8];
  char path[2048];
};

struct file {
  struct url url;
  uint64_t size;
};

// One ranged GET: `size` bytes of `file` from `begin`; `place` is where they go in the fresh
// mapping.
struct range {
  const struct file* file;
  uint64_t begin;
  uint64_t size;
  uint64_t place;
};

enum step { sending, receiving_head, receiving_body };

struct connection {
  int socket;
  enum step step;
  char request[request_limit];
  size_t request_size;
  size_t request_sent;
  char head[head_limit + 1];
  size_t head_received;
  struct range range;
  unsigned char* buffer;  // reused by every range of this connection; null with --fresh
  unsigned char* body;    // where the current range goes
  uint64_t body_received;
};

struct options {
  bool fresh;
  bool read;
  bool plain_pages;
  uint64_t connections;
  uint64_t chunk_size;
  uint64_t receive_size;
  uint64_t block_size;
};

struct result {
  const char* mode;
  uint64_t bytes;
  uint64_t requests;
  double seconds;
};

__attribute__((format(printf, 1, 2))) static _Noreturn void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("ceiling: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

static uint64_t smaller(uint64_t left, uint64_t right) { return left < right ? left : right; }

// Untouched memory, aligned to a huge page; advised to use huge pages unless `plain_pages`. Never
// freed: the process ends.
static unsigned char* map_memory(uint64_t size, bool plain_pages) {
  const uint64_t mapped = round_up(size, huge_page) + huge_page;
  void* start = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) fail("cannot map %" PRIu64 " bytes: %s", mapped, strerror(errno));
  unsigned char* aligned = (unsigned char*)round_up((uintptr_t)start, huge_page);
  // A kernel without transparent huge pages refuses the advice; the run is then slower, not wrong.
  (void)madvise(aligned, round_up(size, huge_page), plain_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  return aligned;
}

// ---- HTTP ---------------------------------------------------------------------------------------

static struct url parse_url(const char* text) {
  static const char scheme[] = "http://";
  struct url url = {.port = "80"};
  if (strncmp(text, scheme, sizeof scheme - 1) != 0) fail("not an http:// URL: %s", text);
  const char* host = text + sizeof scheme - 1;
  const char* path = strchr(host, '/');
  if (path == NULL) fail("no path in the URL: %s", text);
  const char* colon = memchr(host, ':', (size_t)(path - host));
  const char* host_end = colon != NULL ? colon : path;
  if (host_end == host || (size_t)(host_end - host) >= sizeof url.host)
    fail("no usable host in the URL: %s", text);
  memcpy(url.host, host, (size_t)(host_end - host));
  if (colon != NULL) {
    const size_t size = (size_t)(path - colon - 1);
    if (size == 0 || size >= sizeof url.port) fail("no usable port in the URL: %s", text);
    memcpy(url.port, colon + 1, size);
    url.port[size] = '\0';
  }
  if (strlen(path) >= sizeof url.path) fail("the path is too long: %s", text);
  strcpy(url.path, path);
  return url;
}

static int connect_to(const struct url* url) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo* addresses = NULL;
  const int status = getaddrinfo(url->host, url->port, &hints, &addresses);
  if (status != 0) fail("cannot resolve %s: %s", url->host, gai_strerror(status));
  int error = 0;
  for (const struct addrinfo* address = addresses; address != NULL; address = address->ai_next) {
    const int handle =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (handle < 0) {
      error = errno;
      continue;
    }
    if (connect(handle, address->ai_addr, address->ai_addrlen) == 0) {
      freeaddrinfo(addresses);
      const int on = 1;
      (void)setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return handle;
    }
    error = errno;
    close(handle);
  }
  fail("cannot connect to %s:%s: %s", url->host, url->port, strerror(error));
}

// The value of a header field in a head that ends with an empty line; null if it is absent.
static const char* find_field(const char* head, const char* name) {
  const size_t size = strlen(name);
  for (const char* line = strstr(head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
    line += 2;
    if (strncasecmp(line, name, size) == 0 && line[size] == ':')
      return line + size + 1 + strspn(line + size + 1, " \t");
  }
  return NULL;
}

// Checks the status and gives the Content-Length.
static uint64_t check_head(const char* head, const char* status, const char* path) {
  if (strncmp(head, "HTTP/1.1 ", 9) != 0 || strncmp(head + 9, status, 3) != 0)
    fail("%s: expected status %s, got: %.*s", path, status, (int)strcspn(head, "\r\n"), head);
  const char* length = find_field(head, "Content-Length");
  char* end = NULL;
  errno = 0;
  const uint64_t value = length != NULL ? strtoull(length, &end, 10) : 0;
  if (length == NULL || end == length || *end != '\r' || errno != 0)
    fail("%s: no usable Content-Length", path);
  return value;
}

// The size of the file, by a blocking HEAD request before the clock starts.
static uint64_t ask_size(int socket, const struct url* url) {
  char text[request_limit];
  const int size = snprintf(text, sizeof text, "HEAD %s HTTP/1.1\r\nHost: %s:%s\r\n\r\n", url->path,
                            url->host, url->port);
  if (send(socket, text, (size_t)size, MSG_NOSIGNAL) != size)
    fail("%s: cannot send: %s", url->path, strerror(errno));
  size_t received = 0;
  while (true) {
    const ssize_t count = recv(socket, text + received, sizeof text - 1 - received, 0);
    if (count < 0) fail("%s: cannot receive: %s", url->path, strerror(errno));
    if (count == 0)
      fail("%s: the head did not end, or is over %zu bytes", url->path, sizeof text - 1);
    received += (size_t)count;
    text[received] = '\0';
    if (strstr(text, "\r\n\r\n") != NULL) return check_head(text, "200", url->path);
  }
}

// ---- Receiving, io_uring ------------------------------------------------------------------------

// The ranges that no connection has taken yet, in order.
struct queue {
  struct range* ranges;
  size_t count;
  size_t next;
};

struct receiver {
  struct io_uring ring;
  struct queue queue;
  const struct options* options;
  unsigned char* fresh;  // one mapping for everything; null unless --fresh
  uint64_t bytes;
  size_t active;
};

static void open_ring(struct io_uring* ring, unsigned entries) {
  static const unsigned choices[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
  int status = 0;
  for (size_t index = 0; index < sizeof choices / sizeof *choices; ++index) {
    status = io_uring_queue_init(entries, ring, choices[index]);
    if (status != -EINVAL) break;
  }
  if (status < 0) fail("cannot set up io_uring: %s", strerror(-status));
  // Saves a lookup at each io_uring_enter; an older kernel refuses it and loses only that.
  (void)io_uring_register_ring_fd(ring);
}

static void queue_operation(struct receiver* receiver, struct connection* connection) {
  // A connection has one operation in flight and the ring an entry for each, so one is always free.
  struct io_uring_sqe* entry = io_uring_get_sqe(&receiver->ring);
  if (entry == NULL) fail("the submission queue is full");
  const struct options* options = receiver->options;
  switch (connection->step) {
    case sending:
      io_uring_prep_send(entry, connection->socket, connection->request + connection->request_sent,
                         connection->request_size - connection->request_sent, MSG_NOSIGNAL);
      break;
    case receiving_head:
      io_uring_prep_recv(entry, connection->socket, connection->head + connection->head_received,
                         head_limit - connection->head_received, 0);
      break;
    case receiving_body: {
      const uint64_t rest = connection->range.size - connection->body_received;
      io_uring_prep_recv(entry, connection->socket, connection->body + connection->body_received,
                         smaller(rest, options->receive_size), 0);
      break;
    }
  }
  io_uring_sqe_set_data(entry, connection);
}

// Takes the next range from the queue and queues its request; without one the connection is done.
static void start_range(struct receiver* receiver, struct connection* connection) {
  if (receiver->queue.next == receiver->queue.count) {
    --receiver->active;
    return;
  }
  const struct range range = receiver->queue.ranges[receiver->queue.next++];
  const struct url* url = &range.file->url;
  const int size =
      snprintf(connection->request, sizeof connection->request,
               "GET %s HTTP/1.1\r\nHost: %s:%s\r\nRange: bytes=%" PRIu64 "-%" PRIu64
               "\r\nAccept-Encoding: identity\r\n\r\n",
               url->path, url->host, url->port, range.begin, range.begin + range.size - 1);
  connection->range = range;
  connection->request_size = (size_t)size;
  connection->request_sent = 0;
  connection->head_received = 0;
  connection->body_received = 0;
  connection->body = receiver->fresh != NULL ? receiver->fresh + range.place : connection->buffer;
  connection->step = sending;
  queue_operation(receiver, connection);
}

// Looks for the end of the head; body bytes that came with it go to their place.
static void take_head(struct connection* connection) {
  connection->head[connection->head_received] = '\0';
  const char* path = connection->range.file->url.path;
  const char* end = strstr(connection->head, "\r\n\r\n");
  if (end == NULL) {
    if (connection->head_received == head_limit)
      fail("%s: the head is over %d bytes", path, head_limit);
    return;
  }
  const uint64_t length = check_head(connection->head, "206", path);
  if (length != connection->range.size)
    fail("%s: expected %" PRIu64 " bytes, Content-Length says %" PRIu64, path,
         connection->range.size, length);
  const size_t head_size = (size_t)(end + 4 - connection->head);
  const size_t rest = connection->head_received - head_size;
  if (rest > length) fail("%s: more bytes than the Content-Length of %" PRIu64, path, length);
  memcpy(connection->body, connection->head + head_size, rest);
  connection->body_received = rest;
  connection->step = receiving_body;
}

static void complete(struct receiver* receiver, struct connection* connection, int result) {
  const char* path = connection->range.file->url.path;
  if (result < 0 && result != -EAGAIN && result != -EINTR) fail("%s: %s", path, strerror(-result));
  if (result == 0) fail("%s: the server closed the connection", path);
  if (result > 0) {
    switch (connection->step) {
      case sending:
        connection->request_sent += (size_t)result;
        if (connection->request_sent == connection->request_size) connection->step = receiving_head;
        break;
      case receiving_head:
        connection->head_received += (size_t)result;
        take_head(connection);
        break;
      case receiving_body:
        connection->body_received += (uint64_t)result;
        break;
    }
  }
  if (connection->step == receiving_body && connection->body_received == connection->range.size) {
    receiver->bytes += connection->range.size;
    start_range(receiver, connection);
  } else {
    queue_operation(receiver, connection);
  }
}

// Cuts every file into ranges of at most `chunk_size`.
static struct queue cut_ranges(const struct file* files, size_t count, uint64_t chunk_size) {
  struct queue queue = {0};
  size_t total = 0;
  for (size_t index = 0; index < count; ++index)
    total += (files[index].size + chunk_size - 1) / chunk_size;
  queue.ranges = calloc(total + 1, sizeof *queue.ranges);
  if (queue.ranges == NULL) fail("out of memory");
  uint64_t place = 0;
  for (size_t index = 0; index < count; ++index) {
    for (uint64_t begin = 0; begin < files[index].size; begin += chunk_size) {
      const uint64_t size = smaller(chunk_size, files[index].size - begin);
      queue.ranges[queue.count++] = (struct range){&files[index], begin, size, place};
      place += size;
    }
  }
  return queue;
}

static struct result receive_files(const struct options* options, char** arguments, size_t count) {
  struct file* files = calloc(count, sizeof *files);
  struct connection* connections = calloc(options->connections, sizeof *connections);
  if (files == NULL || connections == NULL) fail("out of memory");

  uint64_t total = 0;
  for (size_t index = 0; index < count; ++index) {
    files[index].url = parse_url(arguments[index]);
    const struct url* url = &files[index].url;
    if (strcmp(url->host, files[0].url.host) != 0 || strcmp(url->port, files[0].url.port) != 0)
      fail("all URLs must name one server: %s", arguments[index]);
  }
  for (size_t index = 0; index < options->connections; ++index) {
    connections[index].socket = connect_to(&files[0].url);
    if (!options->fresh)
      connections[index].buffer = map_memory(options->chunk_size, options->plain_pages);
  }
  for (size_t index = 0; index < count; ++index) {
    files[index].size = ask_size(connections[0].socket, &files[index].url);
    total += files[index].size;
  }

  struct receiver receiver = {.options = options, .active = options->connections};
  receiver.queue = cut_ranges(files, count, options->chunk_size);
  if (options->fresh) receiver.fresh = map_memory(total, options->plain_pages);
  open_ring(&receiver.ring, (unsigned)options->connections);

  const double start = now();
  for (size_t index = 0; index < options->connections; ++index)
    start_range(&receiver, &connections[index]);
  while (receiver.active > 0) {
    const int status = io_uring_submit_and_wait(&receiver.ring, 1);
    if (status < 0 && status != -EINTR) fail("io_uring_enter: %s", strerror(-status));
    struct io_uring_cqe* entry = NULL;
    unsigned head = 0;
    unsigned seen = 0;
    io_uring_for_each_cqe(&receiver.ring, head, entry) {
      ++seen;
      complete(&receiver, io_uring_cqe_get_data(entry), entry->res);
    }
    io_uring_cq_advance(&receiver.ring, seen);
  }
  const double seconds = now() - start;
  if (receiver.bytes != total)
    fail("received %" PRIu64 " of %" PRIu64 " bytes", receiver.bytes, total);
  io_uring_queue_exit(&receiver.ring);
  for (size_t index = 0; index < options->connections; ++index) close(connections[index].socket);
  free(receiver.queue.ranges);
  free(connections);
  free(files);
  return (struct result){options->fresh ? "receive, fresh memory" : "receive, reused buffers",
                         total, receiver.queue.count, seconds};
}

// ---- Local files --------------------------------------------------------------------------------

static struct result read_files(const struct options* options, char** paths, size_t count) {
  int* handles = calloc(count, sizeof *handles);
  if (handles == NULL) fail("out of memory");
  uint64_t total = 0;
  for (size_t index = 0; index < count; ++index) {
    struct stat status;
    handles[index] = open(paths[index], O_RDONLY | O_CLOEXEC);
    if (handles[index] < 0 || fstat(handles[index], &status) != 0)
      fail("%s: %s", paths[index], strerror(errno));
    total += (uint64_t)status.st_size;
  }
  unsigned char* memory =
      map_memory(options->fresh ? total : options->block_size, options->plain_pages);

  struct result result = {.mode = options->fresh ? "read, fresh memory" : "read, reused buffer"};
  const double start = now();
  for (size_t index = 0; index < count; ++index) {
    while (true) {
      // With --fresh the last block must not reach past the mapping; an extra byte would mean that
      // a file grew.
      const uint64_t rest = options->fresh ? total - result.bytes : options->block_size;
      const ssize_t received = read(handles[index], memory + (options->fresh ? result.bytes : 0),
                                    smaller(options->block_size, rest));
      if (received < 0) fail("%s: %s", paths[index], strerror(errno));
      if (received == 0) break;
      ++result.requests;
      result.bytes += (uint64_t)received;
    }
  }
  result.seconds = now() - start;
  for (size_t index = 0; index < count; ++index) close(handles[index]);
  free(handles);
  if (result.bytes != total) fail("read %" PRIu64 " of %" PRIu64 " bytes", result.bytes, total);
  return result;
}

// ---- Main ---------------------------------------------------------------------------------------

static uint64_t parse_number(const char* option, const char* text, uint64_t limit) {
  char* end = NULL;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || value == 0 || value > limit)
    fail("--%s: expected a whole number from 1 to %" PRIu64 ", got: %s", option, limit, text);
  return value;
}

static void print(const struct result* result) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) fail("getrusage: %s", strerror(errno));
  const double cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                             (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  printf("{\"mode\": \"%s\", \"bytes\": %" PRIu64
         ", \"seconds\": %.6f, \"gbps\": %.4f, \"cpu_seconds\": %.6f, "
         "\"peak_rss_bytes\": %" PRIu64 ", \"requests\": %" PRIu64 "}\n",
         result->mode, result->bytes, result->seconds,
         (double)result->bytes / result->seconds / 1e9, cpu_seconds,
         (uint64_t)usage.ru_maxrss * 1024, result->requests);
  if (fflush(stdout) != 0) fail("cannot write the result: %s", strerror(errno));
}

int main(int count, char** arguments) {
  static const struct option names[] = {
      {"fresh", no_argument, NULL, 'f'},
      {"read", no_argument, NULL, 'r'},
      {"connections", required_argument, NULL, 'c'},
      {"chunk-size", required_argument, NULL, 's'},
      {"receive-size", required_argument, NULL, 'v'},
      {"block-size", required_argument, NULL, 'b'},
      {"plain-pages", no_argument, NULL, 'p'},
      {NULL, 0, NULL, 0},
  };
  // One receive takes at most 2 GiB, and its result is an int.
  const uint64_t size_limit = UINT64_C(1) << 30;
  struct options options = {
      .connections = 8, .chunk_size = 16 << 20, .receive_size = size_limit, .block_size = 1 << 20};
  int option = 0;
  while ((option = getopt_long(count, arguments, "", names, NULL)) != -1) {
    switch (option) {
      case 'f':
        options.fresh = true;
        break;
      case 'r':
        options.read = true;
        break;
      case 'c':
        options.connections = parse_number("connections", optarg, connections_limit);
        break;
      case 's':
        options.chunk_size = parse_number("chunk-size", optarg, size_limit);
        break;
      case 'v':
        options.receive_size = parse_number("receive-size", optarg, size_limit);
        break;
      case 'b':
        options.block_size = parse_number("block-size", optarg, size_limit);
        break;
      case 'p':
        options.plain_pages = true;
        break;
      default:
        return 1;
    }
  }
  if (optind == count) fail("no URL or file given");
  char** rest = arguments + optind;
  const size_t rest_count = (size_t)(count - optind);
  const struct result result = options.read ? read_files(&options, rest, rest_count)
                                            : receive_files(&options, rest, rest_count);
  print(&result);
  return 0;
}
