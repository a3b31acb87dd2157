// Serves a folder over HTTP, ranges of it, as fast as sendfile can: for tests/gpu/check, on
// machines without a web server.
//
//     gpu_range_server FOLDER [DIE_AFTER_BYTES]
//
// Prints its port and serves on the loopback until stdin ends. With DIE_AFTER_BYTES it resets every
// connection once so many bytes of bodies have gone out.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <thread>

namespace {

std::string folder;
std::uint64_t die_after = std::numeric_limits<std::uint64_t>::max();
std::atomic<std::uint64_t> sent{0};

/// Closes with a reset where it is told to.
class connection {
 public:
  explicit connection(int number) noexcept : number_(number) {}
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() { ::close(number_); }

  void reset() const noexcept {
    const linger now{1, 0};
    ::setsockopt(number_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

  [[nodiscard]] bool send(std::string_view text) const noexcept {
    while (!text.empty()) {
      const ssize_t count = ::send(number_, text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  [[nodiscard]] bool send_file(int file, off_t offset, std::uint64_t size) const noexcept {
    while (size > 0) {
      // Relaxed: a count, of which nobody infers anything else.
      const std::uint64_t before = sent.load(std::memory_order_relaxed);
      if (before >= die_after) {
        reset();
        return false;
      }
      const ssize_t count = ::sendfile(
          number_, file, &offset,
          static_cast<std::size_t>(std::min<std::uint64_t>(size, std::uint64_t{1} << 20)));
      if (count <= 0) return false;
      sent.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
      size -= static_cast<std::uint64_t>(count);
    }
    return true;
  }

  /// The next request's head; empty at the end.
  [[nodiscard]] std::string head() {
    for (;;) {
      const auto end = read_.find("\r\n\r\n");
      if (end != std::string::npos) {
        std::string found = read_.substr(0, end + 2);
        read_.erase(0, end + 4);
        return found;
      }
      char part[4096];
      const ssize_t count = ::recv(number_, part, sizeof part, 0);
      if (count <= 0 || read_.size() > 65536) return "";
      read_.append(part, static_cast<std::size_t>(count));
    }
  }

 private:
  int number_;
  std::string read_;
};

std::string field(const std::string& head, std::string_view name) {
  for (std::size_t line = head.find("\r\n"); line != std::string::npos;
       line = head.find("\r\n", line + 2)) {
    const std::size_t begin = line + 2;
    if (head.size() < begin + name.size() + 1 || head[begin + name.size()] != ':') continue;
    const bool same =
        std::equal(name.begin(), name.end(), head.begin() + static_cast<std::ptrdiff_t>(begin),
                   [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
    if (!same) continue;
    std::string value =
        head.substr(begin + name.size() + 1, head.find("\r\n", begin) - begin - name.size() - 1);
    value.erase(0, value.find_first_not_of(' '));
    return value;
  }
  return "";
}

bool answer(connection& to, const std::string& head) {
  const auto begin = head.find(' ');
  const auto end = head.find(' ', begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return false;
  const std::string path = head.substr(begin + 1, end - begin - 1);
  const int file = path.find("..") == std::string::npos
                       ? ::open((folder + path).c_str(), O_RDONLY | O_CLOEXEC)
                       : -1;
  struct stat status{};
  if (file < 0 || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    if (file >= 0) ::close(file);
    return to.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::uint64_t first = 0;
  std::uint64_t last = size - 1;
  const std::string range = field(head, "range");
  std::string status_line = "HTTP/1.1 200 OK\r\n";
  if (range.starts_with("bytes=")) {
    const char* const text_end = range.data() + range.size();
    const auto begun = std::from_chars(range.data() + 6, text_end, first);
    if (begun.ptr < text_end) std::from_chars(begun.ptr + 1, text_end, last);
    last = std::min(last, size - 1);
    if (first >= size) {
      ::close(file);
      return to.send("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */" +
                     std::to_string(size) + "\r\nContent-Length: 0\r\n\r\n");
    }
    status_line = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(first) +
                  "-" + std::to_string(last) + "/" + std::to_string(size) + "\r\n";
  }
  const std::uint64_t length = size == 0 ? 0 : last - first + 1;
  const bool whole = to.send(status_line + "ETag: \"" + std::to_string(status.st_ino) + "-" +
                             std::to_string(status.st_mtim.tv_nsec) +
                             "\"\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n") &&
                     to.send_file(file, static_cast<off_t>(first), length);
  ::close(file);
  return whole;
}

void serve(int number) {
  connection from(number);
  for (;;) {
    const std::string head = from.head();
    if (head.empty() || !answer(from, head)) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: gpu_range_server FOLDER [DIE_AFTER_BYTES]\n", stderr);
    return 2;
  }
  folder = argv[1];
  if (argc > 2) die_after = std::strtoull(argv[2], nullptr, 10);
  std::signal(SIGPIPE, SIG_IGN);  // NOLINT(cert-err33-c): sendfile has no MSG_NOSIGNAL

  const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listening, 512) != 0 ||
      ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("gpu_range_server");
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);

  std::thread([listening] {
    for (;;) {
      const int number = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
      if (number < 0) continue;
      const int now = 1;
      ::setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
      std::thread(serve, number).detach();
    }
  }).detach();
  while (std::getchar() != EOF) {
  }
  std::_Exit(0);
}
