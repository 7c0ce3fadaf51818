/* Saying why something failed, a lock, and strings. */
#include "echo.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

llmr_code fail(llmr_status *status, llmr_code code, const char *reason, uint64_t needed, uint64_t available,
               const char *format, ...) {
  va_list arguments;
  size_t size;
  status->code = code;
  status->needed = needed;
  status->available = available;
  snprintf(status->reason, sizeof status->reason, "%s", reason);
  va_start(arguments, format);
  vsnprintf(status->message, sizeof status->message, format, arguments);
  va_end(arguments);
  /* A cut may have split a character: drop the bytes of one that is not whole. */
  size = strlen(status->message);
  if (size == sizeof status->message - 1) {
    while (size > 0 && ((unsigned char)status->message[size - 1] & 0xC0) == 0x80) size--;
    if (size > 0 && (unsigned char)status->message[size - 1] >= 0xC0) size--;
    status->message[size] = '\0';
  }
  return code;
}

#if defined(_WIN32)
void lock_init(echo_lock *lock) { InitializeSRWLock(lock); }
void lock_take(echo_lock *lock) { AcquireSRWLockExclusive(lock); }
void lock_give(echo_lock *lock) { ReleaseSRWLockExclusive(lock); }
void lock_end(echo_lock *lock) { (void)lock; }
#else
void lock_init(echo_lock *lock) { pthread_mutex_init(lock, NULL); }
void lock_take(echo_lock *lock) { pthread_mutex_lock(lock); }
void lock_give(echo_lock *lock) { pthread_mutex_unlock(lock); }
void lock_end(echo_lock *lock) { pthread_mutex_destroy(lock); }
#endif

llmr_str str(const char *text) {
  llmr_str out;
  out.data = text;
  out.size = strlen(text);
  return out;
}

int str_is(llmr_str a, const char *b) { return a.size == strlen(b) && memcmp(a.data, b, a.size) == 0; }
