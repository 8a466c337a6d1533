// Reads of byte ranges of a file into memory, without mmap.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tiny_llm_ext {

/// RAII wrapper of an open file.
class File {
   public:
    /// Bytes per read, small enough that they are converted while still in the core's cache.
    static constexpr int64_t READ_BYTES = int64_t{1} << 18;

    /// Throws std::runtime_error, whose message begins with `operation`, if the file cannot be
    /// opened.
    File(const char* operation, const std::string& path)
        : operation_(operation),
          path_(path),
          descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (descriptor_ < 0) {
            fail(errno);
        }
    }
    ~File() { close(descriptor_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    /// Starts readahead of a range and disables automatic readahead of the file; a no-op except on
    /// Linux. Linux limits the size of a request, so each requests READ_BYTES bytes.
    void request_readahead([[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t bytes) const {
#if defined(__linux__)
        posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
        for (int64_t done = 0; done < bytes; done += READ_BYTES) {
            const int64_t size = std::min(READ_BYTES, bytes - done);
            posix_fadvise(descriptor_, begin + done, size, POSIX_FADV_WILLNEED);
        }
#endif
    }

    /// Reads bytes at an offset into memory. Returns 0, an errno value, or −1 at end of file.
    int read(void* memory, int64_t bytes, int64_t offset) const {
        auto* to = static_cast<char*>(memory);
        while (bytes > 0) {
            const ssize_t bytes_read = pread(descriptor_, to, bytes, offset);
            if (bytes_read <= 0) {
                if (bytes_read < 0 && errno == EINTR) {
                    continue;
                }
                return bytes_read == 0 ? -1 : errno;
            }
            to += bytes_read, offset += bytes_read, bytes -= bytes_read;
        }
        return 0;
    }

    [[noreturn]] void fail(int error) const {
        throw std::runtime_error(
            std::string(operation_) + ": " + path_ +
            (error < 0 ? " is truncated" : std::string(" cannot be read: ") + strerror(error)));
    }

   private:
    const char* operation_;
    std::string path_;
    int descriptor_;
};

}  // namespace tiny_llm_ext
