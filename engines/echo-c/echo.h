/* What the files of this engine share. An engine in C needs llmr_engine.h and nothing else of llm-router. */
#ifndef ECHO_H
#define ECHO_H

#include "llmr_engine.h"

/* Tokens 0 to 255 are bytes; three control tokens follow. */
#define TOKEN_END 256u /* "<|end|>", ends an answer */
#define TOKEN_START 257u
#define TOKEN_MESSAGE 258u
#define VOCABULARY 259u

#define CONTEXT_DEFAULT 4096u        /* where config.json does not say */
#define CONTEXT_MAX (1u << 20)       /* what config.json may say */
#define SEQUENCES_DEFAULT 4u
#define SEQUENCES_MAX 64u
#define QUEUE_MAX 1024u              /* running and waiting */
#define BATCH_TOKENS_DEFAULT 512u
#define CONFIG_BYTES_MAX (1u << 20)
#define EMBEDDING_SIZE 8u            /* how often each remainder of 8 is among the ids of the tokens */

#if defined(_WIN32)
#include <windows.h>
typedef SRWLOCK echo_lock;
#else
#include <pthread.h>
typedef pthread_mutex_t echo_lock;
#endif

typedef struct sequence {
  uint64_t id;
  int embeds; /* 1: an embedding is wanted, and no answer */
  int cancelled; /* guarded by llmr_engine.lock */
  int started;
  int ended;
  uint32_t *prompt;
  uint32_t prompt_count;
  uint32_t prefilled; /* prompt tokens taken in so far */
  uint32_t produced;
  uint32_t tokens_limit;
  uint32_t tokens_min;
  int ignore_end;
  int32_t logprobs;
  char *stop_text; /* all stop strings, one after the other */
  size_t *stop_sizes;
  uint32_t stop_count;
  uint32_t *stop_tokens;
  uint32_t stop_token_count;
  char *answer; /* text of the answer, only if there are stop strings */
  size_t answer_size;
} sequence;

struct llmr_engine {
  const llmr_host *host;
  echo_lock lock; /* of sequences, count and their cancelled flags; only the engine-thread changes the first two */
  sequence *sequences[QUEUE_MAX]; /* in the order they came; the first sequences_max run */
  uint32_t count;
  int loaded;
  uint32_t context_length;
  uint32_t sequences_max;
  uint32_t batch_tokens_max;
  uint64_t steps, prompt_tokens, completion_tokens;
  uint32_t batch_sequences_max;
  uint32_t *ids; /* the last tokenize */
  llmr_device_need need;
  llmr_device_bytes memory;
};

/* status.c */
llmr_code fail(llmr_status *status, llmr_code code, const char *reason, uint64_t needed, uint64_t available,
               const char *format, ...);
void lock_init(echo_lock *lock);
void lock_take(echo_lock *lock);
void lock_give(echo_lock *lock);
void lock_end(echo_lock *lock);
llmr_str str(const char *text);
int str_is(llmr_str a, const char *b);

/* model.c */
extern const llmr_info echo_info;
llmr_code echo_devices(llmr_engine *engine, llmr_devices *out, llmr_status *status);
llmr_code echo_estimate(llmr_engine *engine, const llmr_model *model, const llmr_settings *settings, llmr_estimate *out,
                        llmr_status *status);
llmr_code echo_load(llmr_engine *engine, const llmr_model *model, const llmr_settings *settings,
                    const llmr_device_bytes *budget, uint32_t budget_count, const llmr_progress *progress,
                    llmr_loaded *out, llmr_status *status);
void echo_unload(llmr_engine *engine);

/* tokens.c */
int is_text(llmr_str text);
uint32_t encode(llmr_str text, const llmr_range *literal, uint32_t literal_count, uint32_t *out);
llmr_bytes token_bytes(uint32_t id);
uint32_t choose(const sequence *s, uint32_t *favourite);
uint32_t token_logprobs(const sequence *s, uint32_t favourite, uint32_t chosen, llmr_token_logprob *out);
llmr_code echo_tokenize(llmr_engine *engine, llmr_str text, const llmr_range *literal, uint32_t literal_count,
                        llmr_tokens *out, llmr_status *status);

/* submit.c */
llmr_code echo_submit(llmr_engine *engine, const llmr_submit *submit, llmr_status *status);
void free_sequence(sequence *s);

/* step.c */
void echo_cancel(llmr_engine *engine, uint64_t id);
llmr_code echo_step(llmr_engine *engine, const llmr_progress *progress, const llmr_event_sink *sink, uint32_t *pending,
                    llmr_status *status);
llmr_code echo_stats(llmr_engine *engine, llmr_stats *out, llmr_status *status);
void drop_sequences(llmr_engine *engine);

#endif
