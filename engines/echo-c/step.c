/* One iteration of the batch, and what ends a sequence. */
#include "echo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void echo_cancel(llmr_engine *engine, uint64_t id) {
  uint32_t i;
  lock_take(&engine->lock);
  for (i = 0; i < engine->count; i++)
    if (engine->sequences[i]->id == id) engine->sequences[i]->cancelled = 1;
  lock_give(&engine->lock);
}

static int is_cancelled(llmr_engine *engine, const sequence *s) {
  int cancelled;
  lock_take(&engine->lock);
  cancelled = s->cancelled;
  lock_give(&engine->lock);
  return cancelled;
}

static llmr_event event_of(const sequence *s, llmr_event_kind kind) {
  llmr_event event;
  memset(&event, 0, sizeof event);
  event.struct_size = sizeof event;
  event.kind = kind;
  event.sequence = s->id;
  return event;
}

static void finish(sequence *s, llmr_finish_reason reason, const llmr_event_sink *sink) {
  llmr_event event = event_of(s, LLMR_EVENT_FINISHED);
  event.finish_reason = reason;
  event.completion_tokens = s->produced;
  s->ended = 1;
  sink->event(sink->context, &event);
}

static int completes_stop(const sequence *s) {
  const char *stop = s->stop_text;
  uint32_t i;
  for (i = 0; i < s->stop_count; i++) {
    size_t size = s->stop_sizes[i];
    if (s->answer_size >= size && memcmp(s->answer + s->answer_size - size, stop, size) == 0) return 1;
    stop += size;
  }
  return 0;
}

/* Whether this token ends the answer, which it is part of. */
static int is_end(sequence *s, uint32_t id) {
  uint32_t i;
  if (id == TOKEN_END && !s->ignore_end) return 1;
  for (i = 0; i < s->stop_token_count; i++)
    if (s->stop_tokens[i] == id) return 1;
  if (s->stop_count == 0 || id >= 256) return 0;
  s->answer[s->answer_size++] = (char)id;
  return completes_stop(s);
}

static void produce(llmr_engine *engine, sequence *s, const llmr_event_sink *sink) {
  llmr_token_logprob logprobs[1 + LLMR_LOGPROBS_MAX];
  llmr_event event = event_of(s, LLMR_EVENT_TOKEN);
  uint32_t favourite, id = choose(s, &favourite);
  event.token_id = id;
  event.control = id >= 256;
  event.bytes = token_bytes(id);
  if (s->logprobs >= 0) {
    event.logprob_count = token_logprobs(s, favourite, id, logprobs);
    event.logprobs = logprobs;
  }
  s->produced++;
  engine->completion_tokens++;
  sink->event(sink->context, &event);
  if (is_end(s, id)) finish(s, LLMR_FINISH_STOP, sink);
  else if (s->produced == s->tokens_limit) finish(s, LLMR_FINISH_LENGTH, sink);
}

/* As echo.h says, made 1 long. */
static void embed(sequence *s, const llmr_event_sink *sink) {
  llmr_event event = event_of(s, LLMR_EVENT_EMBEDDING);
  float numbers[EMBEDDING_SIZE] = {0};
  double squares = 0;
  uint32_t i;
  for (i = 0; i < s->prompt_count; i++) numbers[s->prompt[i] % EMBEDDING_SIZE] += 1;
  for (i = 0; i < EMBEDDING_SIZE; i++) squares += (double)numbers[i] * numbers[i];
  for (i = 0; i < EMBEDDING_SIZE; i++) numbers[i] = (float)(numbers[i] / sqrt(squares));
  event.embedding = numbers;
  event.embedding_size = EMBEDDING_SIZE;
  sink->event(sink->context, &event);
  finish(s, LLMR_FINISH_STOP, sink);
}

/* Takes in up to *room tokens of prompt, then makes a token or the embedding. */
static void advance(llmr_engine *engine, sequence *s, uint32_t *room, const llmr_event_sink *sink) {
  uint32_t left = s->prompt_count - s->prefilled, part = left < *room ? left : *room;
  if (!s->started) {
    llmr_event event = event_of(s, LLMR_EVENT_STARTED);
    event.prompt_tokens = s->prompt_count;
    s->started = 1;
    sink->event(sink->context, &event);
  }
  s->prefilled += part;
  *room -= part;
  engine->prompt_tokens += part;
  if (s->embeds && s->prefilled == s->prompt_count) embed(s, sink);
  else if (s->prefilled == s->prompt_count) produce(engine, s, sink);
}

static void remove_ended(llmr_engine *engine) {
  uint32_t i, kept = 0;
  lock_take(&engine->lock);
  for (i = 0; i < engine->count; i++) {
    sequence *s = engine->sequences[i];
    if (s->ended) free_sequence(s);
    else engine->sequences[kept++] = s;
  }
  engine->count = kept;
  lock_give(&engine->lock);
}

void drop_sequences(llmr_engine *engine) {
  uint32_t i;
  for (i = 0; i < engine->count; i++) engine->sequences[i]->ended = 1;
  remove_ended(engine);
}

llmr_code echo_step(llmr_engine *engine, const llmr_progress *progress, const llmr_event_sink *sink, uint32_t *pending,
                    llmr_status *status) {
  uint32_t i, running = 0, room;
  if (!engine->loaded) return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_MODEL_NOT_LOADED, 0, 0, "load a model first");
  *pending = 0;
  if (engine->count == 0) return LLMR_OK;
  for (i = 0; i < engine->count; i++)
    if (is_cancelled(engine, engine->sequences[i])) finish(engine->sequences[i], LLMR_FINISH_CANCELLED, sink);
  remove_ended(engine);
  /* Those that decode have their place in the batch; prompts share what is left. */
  room = engine->batch_tokens_max;
  for (i = 0; i < engine->count && i < engine->sequences_max; i++)
    if (engine->sequences[i]->prefilled == engine->sequences[i]->prompt_count) room--;
  for (i = 0; i < engine->count && i < engine->sequences_max; i++, running++) {
    if (progress->report(progress->context, i, engine->count)) {
      drop_sequences(engine);
      return fail(status, LLMR_CANCELLED, LLMR_REASON_CANCELLED, 0, 0, "the step was cancelled");
    }
    advance(engine, engine->sequences[i], &room, sink);
  }
  engine->steps++;
  if (running > engine->batch_sequences_max) engine->batch_sequences_max = running;
  remove_ended(engine);
  *pending = engine->count;
  return LLMR_OK;
}

llmr_code echo_stats(llmr_engine *engine, llmr_stats *out, llmr_status *status) {
  uint32_t i, running = engine->count < engine->sequences_max ? engine->count : engine->sequences_max;
  (void)status;
  if (!engine->loaded) running = 0;
  out->sequences_running = running;
  out->sequences_waiting = engine->count - running;
  out->batch_sequences_max = engine->batch_sequences_max;
  out->steps = engine->steps;
  out->prompt_tokens = engine->prompt_tokens;
  out->completion_tokens = engine->completion_tokens;
  for (i = 0; i < engine->count; i++)
    out->kv_bytes_used += (uint64_t)engine->sequences[i]->prompt_count * sizeof(uint32_t) + engine->sequences[i]->answer_size;
  if (engine->loaded) out->kv_bytes_total = (uint64_t)engine->sequences_max * engine->context_length * (sizeof(uint32_t) + 1);
  engine->memory.device = str("cpu");
  engine->memory.bytes = sizeof *engine + engine->count * sizeof(sequence) + out->kv_bytes_used;
  out->memory = &engine->memory;
  out->memory_count = 1;
  return LLMR_OK;
}
