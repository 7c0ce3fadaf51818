/* Text to tokens, tokens to bytes, and which token comes next. */
#include "echo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Logits: the token that is echoed, the space that stands in where an end is not allowed, all others. */
#define LOGIT_ECHO 20.0
#define LOGIT_SPACE 10.0
#define LOGIT_OTHER 0.0

static const char *const control[] = {"<|end|>", "<|start|>", "<|message|>"};

llmr_bytes token_bytes(uint32_t id) {
  static uint8_t bytes[256];
  llmr_bytes out;
  if (id >= 256) {
    out.data = (const uint8_t *)control[id - 256];
    out.size = strlen(control[id - 256]);
  } else {
    bytes[id] = (uint8_t)id;
    out.data = &bytes[id];
    out.size = 1;
  }
  return out;
}

/* Whether a text is UTF-8. */
int is_text(llmr_str text) {
  const unsigned char *at = (const unsigned char *)text.data;
  size_t left = text.size;
  while (left > 0) {
    size_t size = *at < 0x80 ? 1 : *at >= 0xC2 && *at < 0xE0 ? 2 : *at >= 0xE0 && *at < 0xF0 ? 3 : *at >= 0xF0 && *at < 0xF5 ? 4 : 0;
    size_t i;
    if (size == 0 || size > left) return 0;
    for (i = 1; i < size; i++)
      if ((at[i] & 0xC0) != 0x80) return 0;
    if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] > 0x9F) || (*at == 0xF0 && at[1] < 0x90) ||
        (*at == 0xF4 && at[1] > 0x8F))
      return 0;
    at += size;
    left -= size;
  }
  return 1;
}

static int touches(const llmr_range *literal, uint32_t count, size_t start, size_t end) {
  uint32_t i;
  for (i = 0; i < count; i++)
    if (literal[i].start < end && start < literal[i].end) return 1;
  return 0;
}

/* Writes at most text.size ids. */
uint32_t encode(llmr_str text, const llmr_range *literal, uint32_t literal_count, uint32_t *out) {
  uint32_t count = 0;
  size_t at = 0;
  while (at < text.size) {
    uint32_t id = (uint8_t)text.data[at];
    size_t size = 1, i;
    for (i = 0; i < 3; i++) {
      size_t spelling = strlen(control[i]);
      if (text.size - at >= spelling && memcmp(text.data + at, control[i], spelling) == 0 &&
          !touches(literal, literal_count, at, at + spelling)) {
        id = 256 + (uint32_t)i;
        size = spelling;
      }
    }
    out[count++] = id;
    at += size;
  }
  return count;
}

llmr_code echo_tokenize(llmr_engine *engine, llmr_str text, const llmr_range *literal, uint32_t literal_count,
                        llmr_tokens *out, llmr_status *status) {
  uint32_t *ids;
  if (!engine->loaded) return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_MODEL_NOT_LOADED, 0, 0, "load a model first");
  if (!is_text(text)) return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_INVALID_PROMPT, 0, 0, "the text is not UTF-8");
  ids = realloc(engine->ids, (text.size + 1) * sizeof *ids);
  if (ids == NULL)
    return fail(status, LLMR_OOM_RAM, LLMR_REASON_BUDGET_EXCEEDED, text.size * sizeof *ids, 0, "no memory for the tokens");
  engine->ids = ids;
  out->count = encode(text, literal, literal_count, ids);
  out->ids = ids;
  return LLMR_OK;
}

static int ends(const sequence *s, uint32_t id) {
  uint32_t i;
  if (id == TOKEN_END && !s->ignore_end) return 1;
  for (i = 0; i < s->stop_token_count; i++)
    if (s->stop_tokens[i] == id) return 1;
  return 0;
}

/*
 * The next token: the prompt's token of this place, then the end token. Its probability is above 0.999, so that is what
 * any temperature, top_p, top_k and min_p leave to choose. *favourite: the token of the highest logit, which is chosen
 * unless it may not end the answer yet.
 */
uint32_t choose(const sequence *s, uint32_t *favourite) {
  uint32_t id = s->produced < s->prompt_count ? s->prompt[s->produced] : TOKEN_END;
  *favourite = id;
  if (s->produced >= s->tokens_min || !(id == TOKEN_END || ends(s, id))) return id;
  /* A space, or the first token that is no end. */
  id = ' ';
  if (ends(s, id))
    for (id = 0; id + 1 < VOCABULARY && ends(s, id); id++) {}
  return id;
}

static double logit(uint32_t id, uint32_t favourite) {
  return id == favourite ? LOGIT_ECHO : id == ' ' ? LOGIT_SPACE : LOGIT_OTHER;
}

static void put(llmr_token_logprob *out, uint32_t id, uint32_t favourite, double total) {
  out->id = id;
  out->logprob = (float)(logit(id, favourite) - total);
  out->bytes = token_bytes(id);
}

/* The chosen token, then the s->logprobs most likely, best first. Returns how many. */
uint32_t token_logprobs(const sequence *s, uint32_t favourite, uint32_t chosen, llmr_token_logprob *out) {
  uint32_t wanted = (uint32_t)s->logprobs, count = 1, id;
  double total = log(exp(LOGIT_ECHO) + (favourite == ' ' ? 0 : exp(LOGIT_SPACE)) +
                     (VOCABULARY - (favourite == ' ' ? 1 : 2)) * exp(LOGIT_OTHER));
  put(&out[0], chosen, favourite, total);
  if (count <= wanted) put(&out[count++], favourite, favourite, total);
  if (count <= wanted && favourite != ' ') put(&out[count++], ' ', favourite, total);
  for (id = 0; count <= wanted && id < VOCABULARY; id++)
    if (id != favourite && id != ' ') put(&out[count++], id, favourite, total);
  return count;
}
