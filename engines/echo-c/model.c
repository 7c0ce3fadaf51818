/* What this engine is, what a model needs, and loading one: a folder with a config.json. */
#include "echo.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const llmr_info echo_info = {sizeof(llmr_info), 0, {"echo-c", 6}, {"0.1.0", 5}};

static const llmr_device cpu = {sizeof(llmr_device), 0, {"cpu", 3}, {"cpu", 3}, {"the processor", 13}, 0, 0};
static const uint32_t end_tokens[] = {TOKEN_END};

llmr_code echo_devices(llmr_engine *engine, llmr_devices *out, llmr_status *status) {
  (void)engine;
  (void)status;
  out->count = 1;
  out->element_size = sizeof cpu;
  out->items = &cpu;
  return LLMR_OK;
}

/* Reads a whole file, NUL-terminated, into memory of malloc. */
static llmr_code read_file(llmr_str path, char **out, llmr_status *status) {
  char *name = malloc(path.size + 1);
  char *data = malloc(CONFIG_BYTES_MAX + 1);
  FILE *file = NULL;
  size_t size = 0;
  llmr_code code = LLMR_OK;
  if (name == NULL || data == NULL) {
    code = fail(status, LLMR_OOM_RAM, LLMR_REASON_BUDGET_EXCEEDED, CONFIG_BYTES_MAX, 0, "no memory to read config.json");
  } else {
    memcpy(name, path.data, path.size);
    name[path.size] = '\0';
    file = fopen(name, "rb");
    if (file != NULL) size = fread(data, 1, CONFIG_BYTES_MAX + 1, file);
    if (file == NULL || ferror(file)) {
      code = fail(status, LLMR_LOAD_FAILED, LLMR_REASON_FILE_UNREADABLE, 0, 0, "%s cannot be read", name);
    } else if (size > CONFIG_BYTES_MAX) {
      code = fail(status, LLMR_MODEL_CORRUPT, LLMR_REASON_FILE_CORRUPT, size, CONFIG_BYTES_MAX,
                  "%s is larger than a config.json can be", name);
    } else {
      data[size] = '\0';
    }
  }
  if (file != NULL) fclose(file);
  free(name);
  if (code == LLMR_OK) *out = data;
  else free(data);
  return code;
}

/* The value of a key, NULL without one. Enough of JSON for the two plain values this engine reads. */
static const char *json_value(const char *json, const char *key) {
  const char *at = json;
  size_t size = strlen(key);
  while ((at = strstr(at, key)) != NULL) {
    const char *after = at + size;
    while (isspace((unsigned char)*after)) after++;
    if (*after == ':') {
      after++;
      while (isspace((unsigned char)*after)) after++;
      return after;
    }
    at += size;
  }
  return NULL;
}

/* The longest context of a model, from its config.json. */
static llmr_code read_context(const llmr_model *model, uint32_t *context, llmr_status *status) {
  const char *value;
  char *json;
  unsigned long number;
  uint32_t i;
  llmr_code code;
  if (!str_is(model->architecture, "echo"))
    return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_UNSUPPORTED_MODEL, 0, 0,
                "model %.*s has the architecture %.*s, this engine runs echo only", (int)model->id.size, model->id.data,
                (int)model->architecture.size, model->architecture.data);
  for (i = 0; i < model->file_count && !str_is(model->files[i].name, "config.json"); i++) {}
  if (i == model->file_count)
    return fail(status, LLMR_LOAD_FAILED, LLMR_REASON_FILE_UNREADABLE, 0, 0, "model %.*s has no config.json",
                (int)model->id.size, model->id.data);
  code = read_file(model->files[i].path, &json, status);
  if (code != LLMR_OK) return code;
  value = json_value(json, "\"model_type\"");
  if (value == NULL || strncmp(value, "\"echo\"", 6) != 0) {
    free(json);
    return fail(status, LLMR_MODEL_CORRUPT, LLMR_REASON_FILE_CORRUPT, 0, 0, "config.json: model_type is not \"echo\"");
  }
  value = json_value(json, "\"max_position_embeddings\"");
  number = value == NULL ? CONTEXT_DEFAULT : strtoul(value, NULL, 10);
  free(json);
  if (number < 2 || number > CONTEXT_MAX)
    return fail(status, LLMR_MODEL_CORRUPT, LLMR_REASON_FILE_CORRUPT, number, CONTEXT_MAX,
                "config.json: max_position_embeddings is not between 2 and %u", CONTEXT_MAX);
  *context = (uint32_t)number;
  return LLMR_OK;
}

/* This engine has no options, so any key is unknown. */
static llmr_code check_settings(const llmr_settings *settings, llmr_status *status) {
  uint32_t i;
  size_t at, end;
  const char *json = settings->options_json.data;
  for (i = 0; i < settings->device_count; i++)
    if (!str_is(settings->devices[i], "cpu"))
      return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_UNKNOWN_DEVICE, 0, 0, "device %.*s is not one of: cpu",
                  (int)settings->devices[i].size, settings->devices[i].data);
  for (at = 0; at < settings->options_json.size && json[at] != '"'; at++) {}
  if (at == settings->options_json.size) return LLMR_OK;
  for (end = at + 1; end < settings->options_json.size && json[end] != '"'; end++) {}
  return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_UNKNOWN_OPTION, 0, 0, "option %.*s: this engine has no options",
              (int)(end - at - 1), json + at + 1);
}

llmr_code echo_estimate(llmr_engine *engine, const llmr_model *model, const llmr_settings *settings, llmr_estimate *out,
                        llmr_status *status) {
  uint32_t context;
  llmr_code code = check_settings(settings, status);
  if (code == LLMR_OK) code = read_context(model, &context, status);
  if (code != LLMR_OK) return code;
  memset(&engine->need, 0, sizeof engine->need);
  engine->need.struct_size = sizeof engine->need;
  engine->need.device = cpu.id;
  engine->need.per_sequence = sizeof(sequence);
  engine->need.kv_per_token = sizeof(uint32_t) + 1; /* the token, and a byte of answer */
  out->count = 1;
  out->element_size = sizeof engine->need;
  out->items = &engine->need;
  out->context_length_max = context;
  return LLMR_OK;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Context and sequences as asked for; what is left open (0) is as large as the budget holds. */
static llmr_code fit(const llmr_settings *settings, uint32_t longest, uint64_t granted, uint32_t *context,
                     uint32_t *sequences, llmr_status *status) {
  const uint64_t per_token = sizeof(uint32_t) + 1;
  /* One token of prompt and one of answer. */
  uint64_t shortest = settings->context_length == 0 ? 2 : smaller(settings->context_length, longest);
  uint64_t fewest = settings->sequences_max == 0 ? 1 : smaller(settings->sequences_max, SEQUENCES_MAX);
  uint64_t needed = fewest * (sizeof(sequence) + per_token * shortest);
  if (needed > granted)
    return fail(status, LLMR_OOM_RAM, LLMR_REASON_BUDGET_EXCEEDED, needed, granted,
                "%u sequences of %u tokens need %lu bytes on cpu", (unsigned)fewest, (unsigned)shortest,
                (unsigned long)needed);
  *context = settings->context_length == 0 ? longest : (uint32_t)shortest;
  *sequences = settings->sequences_max == 0 ? SEQUENCES_DEFAULT : (uint32_t)fewest;
  while (*sequences > fewest && *sequences * (sizeof(sequence) + per_token * *context) > granted) (*sequences)--;
  if (*sequences * (sizeof(sequence) + per_token * *context) > granted)
    *context = (uint32_t)((granted / *sequences - sizeof(sequence)) / per_token);
  return LLMR_OK;
}

llmr_code echo_load(llmr_engine *engine, const llmr_model *model, const llmr_settings *settings,
                    const llmr_device_bytes *budget, uint32_t budget_count, const llmr_progress *progress,
                    llmr_loaded *out, llmr_status *status) {
  uint32_t context = 0, sequences = 0, longest, i;
  uint64_t granted = UINT64_MAX;
  llmr_code code;
  if (engine->loaded)
    return fail(status, LLMR_UNSUPPORTED, LLMR_REASON_MODEL_ALREADY_LOADED, 0, 0, "a model is loaded; unload it first");
  code = check_settings(settings, status);
  if (code == LLMR_OK) code = read_context(model, &longest, status);
  if (code != LLMR_OK) return code;
  if (progress->report(progress->context, 0, 1))
    return fail(status, LLMR_CANCELLED, LLMR_REASON_CANCELLED, 0, 0, "the load was cancelled");
  for (i = 0; i < budget_count; i++)
    if (str_is(budget[i].device, "cpu")) granted = budget[i].bytes;
  code = fit(settings, longest, granted, &context, &sequences, status);
  if (code != LLMR_OK) return code;
  if (progress->report(progress->context, 1, 1))
    return fail(status, LLMR_CANCELLED, LLMR_REASON_CANCELLED, 0, 0, "the load was cancelled");
  engine->loaded = 1;
  engine->context_length = context;
  engine->sequences_max = sequences;
  engine->batch_tokens_max = settings->batch_tokens_max == 0 ? BATCH_TOKENS_DEFAULT : settings->batch_tokens_max;
  if (engine->batch_tokens_max < sequences) engine->batch_tokens_max = sequences;
  engine->steps = engine->prompt_tokens = engine->completion_tokens = 0;
  engine->batch_sequences_max = 0;
  out->context_length = context;
  out->sequences_max = sequences;
  out->vocabulary_size = VOCABULARY;
  out->end_token_count = 1;
  out->end_tokens = end_tokens;
  if (out->struct_size >= sizeof *out) out->embedding_size = EMBEDDING_SIZE;
  return LLMR_OK;
}

void echo_unload(llmr_engine *engine) {
  drop_sequences(engine);
  free(engine->ids);
  engine->ids = NULL;
  engine->loaded = 0;
}
