// The ceiling of TLS that `./run bench tls` holds headrace against: a plain loop over OpenSSL.
//
// One thread, epoll, a few keep-alive connections, ranged GETs from a shared queue, each body read
// by SSL_read into one reused buffer a connection, on huge pages. OpenSSL reads ahead. It checks
// status and length and nothing else, the server's certificate neither.
//
//     tls_ceiling [--connections N] [--chunk-size BYTES] https://HOST:PORT/FILE...
//
// --read-ahead BYTES sets OpenSSL's read buffer, 0 for reading record by record; --turn BYTES how
// much one connection reads before the next has its turn.
//
// One line of JSON on stdout, as `ceiling` writes it, with the cipher and the version of OpenSSL.
// Any error: one line on stderr, exit status 1.
#define _GNU_SOURCE 1  // the build defines it too, with this value

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { huge_page = 2 << 20, head_limit = 4096, connections_limit = 1024 };

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

struct range {
  const struct file* file;
  uint64_t begin;
  uint64_t size;
};

// The ranges that no connection has taken yet, in order.
struct queue {
  struct range* ranges;
  size_t count;
  size_t next;
};

struct connection {
  int socket;
  SSL* ssl;
  char head[head_limit + 1];
  size_t head_received;
  bool in_body;
  bool waiting;  // for the socket
  struct range range;
  unsigned char* buffer;
  uint64_t body_received;
};

struct options {
  uint64_t connections;
  uint64_t chunk_size;
  uint64_t read_ahead;
  uint64_t turn;
};

__attribute__((format(printf, 1, 2))) static _Noreturn void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("tls_ceiling: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static _Noreturn void fail_in_tls(const char* what) {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  fail("%s: %s", what, reason != NULL ? reason : "the connection broke");
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint64_t smaller(uint64_t left, uint64_t right) { return left < right ? left : right; }

// Untouched memory on huge pages where the kernel has them. Never freed: the process ends.
static unsigned char* map_memory(uint64_t size) {
  const uint64_t rounded = (size + huge_page - 1) / huge_page * huge_page;
  void* start = mmap(NULL, rounded + huge_page, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) fail("cannot map %" PRIu64 " bytes: %s", rounded, strerror(errno));
  unsigned char* aligned =
      (unsigned char*)(((uintptr_t)start + huge_page - 1) / huge_page * huge_page);
  (void)madvise(aligned, rounded, MADV_HUGEPAGE);
  return aligned;
}

static struct url parse_url(const char* text) {
  static const char scheme[] = "https://";
  struct url url = {.port = "443"};
  if (strncmp(text, scheme, sizeof scheme - 1) != 0) fail("not an https:// URL: %s", text);
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
  for (const struct addrinfo* address = addresses; address != NULL; address = address->ai_next) {
    const int handle =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (handle < 0) continue;
    if (connect(handle, address->ai_addr, address->ai_addrlen) == 0) {
      freeaddrinfo(addresses);
      const int on = 1;
      (void)setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return handle;
    }
    close(handle);
  }
  fail("cannot connect to %s:%s: %s", url->host, url->port, strerror(errno));
}

static SSL* shake_hands(SSL_CTX* context, int socket) {
  SSL* ssl = SSL_new(context);
  if (ssl == NULL || SSL_set_fd(ssl, socket) != 1) fail_in_tls("cannot prepare a connection");
  if (SSL_connect(ssl) != 1) fail_in_tls("the handshake failed");
  return ssl;
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

static void send_request(SSL* ssl, const char* text, int size) {
  size_t written = 0;
  // A request fits into the socket's buffer.
  if (SSL_write_ex(ssl, text, (size_t)size, &written) != 1) fail_in_tls("cannot send");
}

// The size of the file, by a blocking HEAD request before the clock starts.
static uint64_t ask_size(SSL* ssl, const struct url* url) {
  char text[head_limit];
  const int size = snprintf(text, sizeof text, "HEAD %s HTTP/1.1\r\nHost: %s:%s\r\n\r\n", url->path,
                            url->host, url->port);
  send_request(ssl, text, size);
  size_t received = 0;
  while (true) {
    size_t count = 0;
    if (SSL_read_ex(ssl, text + received, sizeof text - 1 - received, &count) != 1)
      fail_in_tls("cannot receive");
    received += count;
    text[received] = '\0';
    if (strstr(text, "\r\n\r\n") != NULL) return check_head(text, "200", url->path);
  }
}

// Asks for the next range; false where there is none left.
static bool start_range(struct queue* queue, struct connection* connection) {
  if (queue->next == queue->count) return false;
  connection->range = queue->ranges[queue->next++];
  const struct range* range = &connection->range;
  const struct url* url = &range->file->url;
  char text[head_limit];
  const int size =
      snprintf(text, sizeof text,
               "GET %s HTTP/1.1\r\nHost: %s:%s\r\nRange: bytes=%" PRIu64 "-%" PRIu64 "\r\n\r\n",
               url->path, url->host, url->port, range->begin, range->begin + range->size - 1);
  send_request(connection->ssl, text, size);
  connection->in_body = false;
  connection->head_received = 0;
  connection->body_received = 0;
  return true;
}

// Reads up to `turn` bytes of what is there. False once no range is left for the connection.
static bool read_some(struct queue* queue, struct connection* connection, uint64_t turn,
                      uint64_t* bytes) {
  uint64_t taken = 0;
  while (taken < turn) {
    size_t count = 0;
    unsigned char* into = connection->in_body
                              ? connection->buffer + connection->body_received
                              : (unsigned char*)connection->head + connection->head_received;
    const uint64_t room = connection->in_body ? connection->range.size - connection->body_received
                                              : head_limit - connection->head_received;
    if (room == 0) fail("the head is over %d bytes", head_limit);
    if (SSL_read_ex(connection->ssl, into, room, &count) != 1) {
      if (SSL_get_error(connection->ssl, 0) != SSL_ERROR_WANT_READ) fail_in_tls("cannot receive");
      connection->waiting = true;
      return true;
    }
    taken += count;
    if (connection->in_body) {
      connection->body_received += count;
    } else {
      connection->head_received += count;
      connection->head[connection->head_received] = '\0';
      const char* end = strstr(connection->head, "\r\n\r\n");
      if (end == NULL) continue;
      if (check_head(connection->head, "206", connection->range.file->url.path) !=
          connection->range.size)
        fail("the answer has another length than the range");
      const size_t head_size = (size_t)(end + 4 - connection->head);
      connection->body_received = connection->head_received - head_size;
      memcpy(connection->buffer, end + 4, connection->body_received);
      connection->in_body = true;
    }
    if (connection->body_received == connection->range.size) {
      *bytes += connection->range.size;
      if (!start_range(queue, connection)) return false;
    }
  }
  return true;
}

static struct queue cut_ranges(const struct file* files, size_t count, uint64_t chunk_size) {
  struct queue queue = {0};
  size_t total = 0;
  for (size_t index = 0; index < count; ++index)
    total += (files[index].size + chunk_size - 1) / chunk_size;
  queue.ranges = calloc(total + 1, sizeof *queue.ranges);
  if (queue.ranges == NULL) fail("out of memory");
  for (size_t index = 0; index < count; ++index) {
    for (uint64_t begin = 0; begin < files[index].size; begin += chunk_size) {
      const uint64_t size = smaller(chunk_size, files[index].size - begin);
      queue.ranges[queue.count++] = (struct range){&files[index], begin, size};
    }
  }
  return queue;
}

static SSL_CTX* make_context(const struct options* options) {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1)
    fail_in_tls("cannot start OpenSSL");
  SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
  if (options->read_ahead > 0) {
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, options->read_ahead);
  }
  return context;
}

static void receive_files(const struct options* options, char** arguments, size_t count) {
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
  SSL_CTX* context = make_context(options);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) fail("cannot create an epoll instance: %s", strerror(errno));
  for (size_t index = 0; index < options->connections; ++index) {
    struct connection* connection = &connections[index];
    connection->socket = connect_to(&files[0].url);
    connection->ssl = shake_hands(context, connection->socket);
    connection->buffer = map_memory(options->chunk_size);
  }
  for (size_t index = 0; index < count; ++index) {
    files[index].size = ask_size(connections[0].ssl, &files[index].url);
    total += files[index].size;
  }
  for (size_t index = 0; index < options->connections; ++index) {
    const int handle = connections[index].socket;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &connections[index]};
    if (fcntl(handle, F_SETFL, fcntl(handle, F_GETFL) | O_NONBLOCK) != 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, handle, &event) != 0)
      fail("cannot watch a socket: %s", strerror(errno));
  }

  struct queue queue = cut_ranges(files, count, options->chunk_size);
  uint64_t bytes = 0;
  size_t active = 0;
  size_t ready = 0;
  const double start = now();
  for (size_t index = 0; index < options->connections; ++index) {
    if (!start_range(&queue, &connections[index])) break;
    ++active;
    connections[index].waiting = true;
  }
  const size_t started = active;
  while (active > 0) {
    struct epoll_event events[64];
    const int happened = epoll_wait(epoll, events, 64, ready > 0 ? 0 : -1);
    if (happened < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
    for (int at = 0; at < happened; ++at)
      ((struct connection*)events[at].data.ptr)->waiting = false;
    ready = 0;
    for (size_t index = 0; index < started; ++index) {
      struct connection* connection = &connections[index];
      if (connection->waiting || connection->range.file == NULL) continue;
      if (!read_some(&queue, connection, options->turn, &bytes)) {
        connection->range.file = NULL;
        --active;
      } else if (!connection->waiting) {
        ++ready;
      }
    }
  }
  const double seconds = now() - start;
  if (bytes != total) fail("received %" PRIu64 " of %" PRIu64 " bytes", bytes, total);

  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) fail("getrusage: %s", strerror(errno));
  const double cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                             (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  printf("{\"mode\": \"tls\", \"bytes\": %" PRIu64
         ", \"seconds\": %.6f, \"gbps\": %.4f, \"cpu_seconds\": %.6f, "
         "\"peak_rss_bytes\": %" PRIu64
         ", \"requests\": %zu, \"cipher\": \"%s %s\", "
         "\"openssl\": \"%s\"}\n",
         bytes, seconds, (double)bytes / seconds / 1e9, cpu_seconds,
         (uint64_t)usage.ru_maxrss * 1024, queue.count, SSL_get_version(connections[0].ssl),
         SSL_get_cipher_name(connections[0].ssl), OpenSSL_version(OPENSSL_VERSION_STRING));
  if (fflush(stdout) != 0) fail("cannot write the result: %s", strerror(errno));
  for (size_t index = 0; index < options->connections; ++index) {
    SSL_free(connections[index].ssl);
    close(connections[index].socket);
  }
  SSL_CTX_free(context);
  close(epoll);
  free(queue.ranges);
  free(connections);
  free(files);
}

static uint64_t parse_number(const char* option, const char* text, uint64_t least, uint64_t limit) {
  char* end = NULL;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || value < least || value > limit)
    fail("--%s: expected a whole number from %" PRIu64 " to %" PRIu64 ", got: %s", option, least,
         limit, text);
  return value;
}

int main(int count, char** arguments) {
  static const struct option names[] = {
      {"connections", required_argument, NULL, 'c'},
      {"chunk-size", required_argument, NULL, 's'},
      {"read-ahead", required_argument, NULL, 'a'},
      {"turn", required_argument, NULL, 't'},
      {NULL, 0, NULL, 0},
  };
  const uint64_t size_limit = UINT64_C(1) << 30;
  struct options options = {
      .connections = 8, .chunk_size = 16 << 20, .read_ahead = 64 << 10, .turn = 1 << 20};
  int option = 0;
  while ((option = getopt_long(count, arguments, "", names, NULL)) != -1) {
    switch (option) {
      case 'c':
        options.connections = parse_number("connections", optarg, 1, connections_limit);
        break;
      case 's':
        options.chunk_size = parse_number("chunk-size", optarg, 1, size_limit);
        break;
      case 'a':
        options.read_ahead = parse_number("read-ahead", optarg, 0, size_limit);
        break;
      case 't':
        options.turn = parse_number("turn", optarg, 1, size_limit);
        break;
      default:
        return 1;
    }
  }
  if (optind == count) fail("no URL given");
  receive_files(&options, arguments + optind, (size_t)(count - optind));
  return 0;
}
