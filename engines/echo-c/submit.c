/* Taking a sequence: everything is checked and copied before it counts. */
#include "echo.h"

#include <stdlib.h>
#include <string.h>

static llmr_code bad(llmr_status *status, const char *field, const char *range) {
  return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_INVALID_SAMPLING, 0, 0, "%s must be %s", field, range);
}

/* Written so that NaN fails. */
static llmr_code check_sampling(const llmr_sampling *s, llmr_status *status) {
  uint32_t i;
  if (!(s->temperature >= 0 && s->temperature <= 2)) return bad(status, "temperature", "0 to 2");
  if (!(s->top_p > 0 && s->top_p <= 1)) return bad(status, "top_p", "over 0, to 1");
  if (!(s->min_p >= 0 && s->min_p <= 1)) return bad(status, "min_p", "0 to 1");
  if (s->logprobs < -1 || s->logprobs > LLMR_LOGPROBS_MAX) return bad(status, "logprobs", "-1 to 20");
  /* The answer of this engine is certain; what would have to change it is refused. */
  if (s->presence_penalty != 0) return bad(status, "presence_penalty", "0, this engine has no penalties");
  if (s->frequency_penalty != 0) return bad(status, "frequency_penalty", "0, this engine has no penalties");
  if (s->repetition_penalty != 1) return bad(status, "repetition_penalty", "1, this engine has no penalties");
  if (s->logit_bias_count != 0) return bad(status, "logit_bias", "empty, this engine has no biases");
  if (s->begin_with_count != 0) return bad(status, "begin_with", "empty, this engine begins with the prompt");
  /* A host of before does not have the field. */
  if (s->struct_size >= sizeof *s && s->constraint_kind != LLMR_CONSTRAINT_NONE)
    return bad(status, "constraint", "absent, this engine has no grammar");
  for (i = 0; i < s->stop_count; i++)
    if (s->stop[i].size == 0) return bad(status, "stop", "strings that are not empty");
  for (i = 0; i < s->stop_token_count; i++)
    if (s->stop_tokens[i] >= VOCABULARY) return bad(status, "stop_tokens", "tokens of the vocabulary");
  return LLMR_OK;
}

void free_sequence(sequence *s) {
  if (s == NULL) return;
  free(s->prompt);
  free(s->stop_text);
  free(s->stop_sizes);
  free(s->stop_tokens);
  free(s->answer);
  free(s);
}

/* Copies of size bytes; never NULL unless memory is out. */
static void *copy(const void *data, size_t size) {
  void *out = malloc(size == 0 ? 1 : size);
  if (out != NULL && size != 0) memcpy(out, data, size);
  return out;
}

static llmr_code read_prompt(const llmr_submit *submit, sequence *s, llmr_status *status) {
  uint32_t i;
  if (submit->prompt_kind == LLMR_PROMPT_TEXT) {
    if (!is_text(submit->text))
      return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_INVALID_PROMPT, 0, 0, "the prompt is not UTF-8");
    s->prompt = malloc((submit->text.size + 1) * sizeof *s->prompt);
    if (s->prompt != NULL) s->prompt_count = encode(submit->text, submit->literal, submit->literal_count, s->prompt);
  } else {
    for (i = 0; i < submit->token_count; i++)
      if (submit->tokens[i] >= VOCABULARY)
        return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_INVALID_PROMPT, submit->tokens[i], VOCABULARY,
                    "token %u of the prompt is not in the vocabulary of %u", (unsigned)submit->tokens[i], VOCABULARY);
    s->prompt = copy(submit->tokens, submit->token_count * sizeof *s->prompt);
    s->prompt_count = submit->token_count;
  }
  return LLMR_OK;
}

static int copy_sampling(const llmr_sampling *from, sequence *s) {
  size_t text = 0, at = 0;
  uint32_t i;
  for (i = 0; i < from->stop_count; i++) text += from->stop[i].size;
  s->tokens_min = from->tokens_min;
  s->ignore_end = (from->flags & LLMR_SAMPLING_IGNORE_END_TOKENS) != 0;
  s->logprobs = from->logprobs;
  s->stop_count = from->stop_count;
  s->stop_token_count = from->stop_token_count;
  s->stop_tokens = copy(from->stop_tokens, from->stop_token_count * sizeof *s->stop_tokens);
  s->stop_text = malloc(text + 1);
  s->stop_sizes = malloc((from->stop_count + 1) * sizeof *s->stop_sizes);
  s->answer = from->stop_count == 0 ? NULL : malloc(s->tokens_limit);
  if (!s->stop_tokens || !s->stop_text || !s->stop_sizes || (from->stop_count != 0 && !s->answer)) return 0;
  for (i = 0; i < from->stop_count; i++) {
    s->stop_sizes[i] = from->stop[i].size;
    memcpy(s->stop_text + at, from->stop[i].data, from->stop[i].size);
    at += from->stop[i].size;
  }
  return 1;
}

/* A host of before does not have the field. */
static llmr_task task_of(const llmr_submit *submit) {
  return submit->struct_size < sizeof *submit ? LLMR_TASK_GENERATE : submit->task;
}

static llmr_code fill(llmr_engine *engine, const llmr_submit *submit, sequence *s, llmr_status *status) {
  uint32_t i, room;
  llmr_code code = s->embeds ? LLMR_OK : check_sampling(submit->sampling, status);
  if (code == LLMR_OK) code = read_prompt(submit, s, status);
  if (code != LLMR_OK) return code;
  if (s->prompt != NULL && s->prompt_count == 0)
    return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_EMPTY_PROMPT, 0, 0, "the prompt has no token");
  if (s->prompt_count >= engine->context_length + (uint32_t)s->embeds)
    return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_CONTEXT_LENGTH_EXCEEDED, (uint64_t)s->prompt_count + !s->embeds,
                engine->context_length, "the prompt has %u tokens, and the context of %u must hold %s",
                (unsigned)s->prompt_count, (unsigned)engine->context_length, s->embeds ? "it" : "one more");
  for (i = 0; i < engine->count; i++)
    if (engine->sequences[i]->id == submit->sequence)
      return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_SEQUENCE_EXISTS, 0, 0, "the sequence exists");
  if (engine->count == QUEUE_MAX)
    return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_QUEUE_FULL, QUEUE_MAX + 1, QUEUE_MAX, "too many sequences wait");
  room = engine->context_length - s->prompt_count;
  s->id = submit->sequence;
  if (s->embeds && s->prompt != NULL) return LLMR_OK;
  s->tokens_limit = submit->sampling->tokens_max == 0 || submit->sampling->tokens_max > room ? room : submit->sampling->tokens_max;
  if (s->prompt == NULL || !copy_sampling(submit->sampling, s))
    return fail(status, LLMR_OOM_RAM, LLMR_REASON_KV_FULL, s->tokens_limit, 0, "no memory for the sequence");
  return LLMR_OK;
}

llmr_code echo_submit(llmr_engine *engine, const llmr_submit *submit, llmr_status *status) {
  sequence *s;
  llmr_code code;
  if (!engine->loaded) return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_MODEL_NOT_LOADED, 0, 0, "load a model first");
  s = calloc(1, sizeof *s);
  if (s == NULL) return fail(status, LLMR_OOM_RAM, LLMR_REASON_KV_FULL, sizeof *s, 0, "no memory for the sequence");
  s->embeds = task_of(submit) == LLMR_TASK_EMBED;
  code = fill(engine, submit, s, status);
  if (code != LLMR_OK) {
    free_sequence(s);
    return code;
  }
  lock_take(&engine->lock);
  engine->sequences[engine->count++] = s;
  lock_give(&engine->lock);
  return LLMR_OK;
}
