// What the parts of the emulated device share.
#pragma once
#include "acl/acl.h"
#include "acl/acl_rt.h"
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

namespace emulator {

inline size_t number(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

// The device of this thread, as the process numbers its visible devices.
int32_t current_device();

// What aclGetRecentErrMsg answers; torch_npu puts it into its exceptions.
void set_error(const std::string &text);

// EMULATOR_LATE=1: copies to the host, and functions of the host, wait in their stream
// until somebody synchronises. A reader that did not wait sees bytes of POISON.
bool late();
constexpr int POISON = 0xA5;
void enqueue(aclrtStream stream, std::function<void()> work);
void drain(aclrtStream stream);

}  // namespace emulator
