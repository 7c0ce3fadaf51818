/*
 * llmr_engine.h: the ABI between llm-router and an inference engine. Version 1.2.
 *
 * This file is the specification. An engine is a shared library that exports one symbol, llmr_engine_entry, and a
 * manifest.json beside it (manifest.schema.json). It is opened in a process of its own (the worker) that holds one
 * engine and at most one model; the end of that process is what unloads the library.
 *
 * It is C99 and valid C++. Read it together with docs/engine-abi.md (a guide) and docs/error-codes.md.
 *
 * How each function is described
 *   [engine-thread]  called only on the one thread that called open; calls never overlap.
 *   [any-thread]     may be called on any thread, also while another function runs.
 *   "after X"        may be called only after X returned LLMR_OK.
 *
 * Memory
 *   Whatever the host passes in is borrowed: it is valid until the function returns, and never written to unless it
 *   is said to be an output. Whatever the engine hands out by pointer stays the engine's: the host copies it and frees
 *   nothing; until when it is valid is said at each place. No memory changes hands.
 *
 * Growth
 *   The major version must match exactly, else the host refuses the engine. Minor versions only add: fields at the end
 *   of a struct that begins with struct_size, functions at the end of the table, numbers never used before.
 *   struct_size is sizeof as its writer was compiled. A reader takes a field only if struct_size covers it, otherwise
 *   the value is 0. For outputs the caller sets struct_size and zeroes the rest; the engine writes only what fits and
 *   leaves struct_size as it is. Structs without struct_size never change. An array of structs that have a
 *   struct_size is walked in steps of its element_size. Fields named reserved are 0.
 *   Larger additions are extensions: tables of their own, found by id with get_extension.
 *
 * Failure
 *   A function that can fail returns a code (llmr_code) and fills *status with the same code; on LLMR_OK *status is
 *   untouched. Unless it is said otherwise, after a failure outputs are untouched and the engine is as before the call.
 *   No exception, panic or longjmp crosses this boundary in either direction. Engines start no processes, install no
 *   signal handlers and never call exit.
 *
 * Text is UTF-8. Token ids, lengths and positions of tokens are uint32_t; bytes are counted in uint64_t.
 */
#ifndef LLMR_ENGINE_H
#define LLMR_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define LLMR_EXPORT __declspec(dllexport)
#else
#define LLMR_EXPORT __attribute__((visibility("default")))
#endif

#define LLMR_ABI_MAJOR 1u
#define LLMR_ABI_MINOR 2u

/* The name of the one exported symbol. */
#define LLMR_ENTRY_SYMBOL "llmr_engine_entry"

/* Bytes of llmr_status.reason, .message and .param, the closing NUL included. */
#define LLMR_REASON_BYTES 64u
#define LLMR_MESSAGE_BYTES 1024u
#define LLMR_PARAM_BYTES 64u

/* Most alternatives a sequence may ask for with each token (llmr_sampling.logprobs). */
#define LLMR_LOGPROBS_MAX 20

/* Most numbers of one embedding (llmr_loaded.embedding_size). */
#define LLMR_EMBEDDING_SIZE_MAX 16384

/* ---------------------------------------------------------------- status */

/* The ten codes. docs/error-codes.md has cause and remedy of each. */
typedef int32_t llmr_code;
enum {
  LLMR_OK = 0,
  LLMR_OOM_VRAM = 1,      /* the device has too little memory: needed, available in bytes */
  LLMR_OOM_RAM = 2,       /* the machine has too little memory: needed, available in bytes */
  LLMR_MODEL_CORRUPT = 3, /* a file of the model contradicts itself; the message names file and tensor */
  LLMR_TIMEOUT = 4,       /* something the engine waited for did not come */
  LLMR_CANCELLED = 5,     /* the host asked for it */
  LLMR_UNSUPPORTED = 6,   /* understood, and not possible: this request or model, on this engine */
  LLMR_INTERNAL = 7,      /* a mistake in the engine */
  LLMR_ABI_MISMATCH = 8,  /* host and engine do not fit together */
  LLMR_LOAD_FAILED = 9    /* the model could not be loaded, for the reason given */
};

/*
 * Why something failed. Written by the engine into the caller's memory.
 */
typedef struct llmr_status {
  uint32_t struct_size;
  llmr_code code;
  /* Where two numbers explain it (bytes, tokens); 0 and 0 where none do. */
  uint64_t needed;
  uint64_t available;
  /* Stable, for programs: lower-case words joined by '_', NUL-terminated. One of LLMR_REASON_* where one fits. */
  char reason[LLMR_REASON_BYTES];
  /* For people: one line, NUL-terminated, cut between UTF-8 characters. Names the thing (file, field, device). */
  char message[LLMR_MESSAGE_BYTES];
  /*
   * Which field was refused: its name in llmr_sampling, llmr_submit or llmr_settings ("logit_bias"), or the key of
   * options_json, NUL-terminated. Empty: no field, or not one alone. The caller reads it as the name in its own request.
   */
  char param[LLMR_PARAM_BYTES];
} llmr_status;

/* Reasons with a fixed meaning. An engine may use others of its own. */
#define LLMR_REASON_CONTEXT_LENGTH_EXCEEDED "context_length_exceeded" /* UNSUPPORTED; tokens needed, available */
#define LLMR_REASON_EMPTY_PROMPT "empty_prompt"                       /* UNSUPPORTED; the prompt has no token */
#define LLMR_REASON_INVALID_PROMPT "invalid_prompt"     /* UNSUPPORTED; not UTF-8, bad range, bad token id */
#define LLMR_REASON_INVALID_SAMPLING "invalid_sampling" /* UNSUPPORTED; the message names the field and the range */
#define LLMR_REASON_INVALID_SETTINGS "invalid_settings" /* UNSUPPORTED; the message names the field */
#define LLMR_REASON_UNKNOWN_OPTION "unknown_option"     /* UNSUPPORTED; a key of options_json is not known */
#define LLMR_REASON_UNKNOWN_DEVICE "unknown_device"     /* UNSUPPORTED; a device id this engine does not have */
#define LLMR_REASON_UNSUPPORTED_MODEL "unsupported_model" /* UNSUPPORTED; format, architecture or shape */
#define LLMR_REASON_MODEL_NOT_LOADED "model_not_loaded"   /* UNSUPPORTED; load comes first */
#define LLMR_REASON_MODEL_ALREADY_LOADED "model_already_loaded" /* UNSUPPORTED; unload comes first */
#define LLMR_REASON_NO_EMBEDDINGS "no_embeddings" /* UNSUPPORTED; the model has none; param "task" */
#define LLMR_REASON_NO_GENERATION "no_generation" /* UNSUPPORTED; the model gives embeddings alone; param "task" */
#define LLMR_REASON_SEQUENCE_EXISTS "sequence_exists"           /* UNSUPPORTED; the number is in use */
#define LLMR_REASON_QUEUE_FULL "queue_full"         /* UNSUPPORTED; sequences needed, available; try later */
#define LLMR_REASON_KV_FULL "kv_full"               /* OOM_VRAM or OOM_RAM; KV bytes needed, available */
#define LLMR_REASON_BUDGET_EXCEEDED "budget_exceeded" /* OOM_VRAM or OOM_RAM; bytes needed, granted */
#define LLMR_REASON_FILE_UNREADABLE "file_unreadable" /* LOAD_FAILED; the message names the file */
#define LLMR_REASON_FILE_CORRUPT "file_corrupt"       /* MODEL_CORRUPT; the message names the file */
#define LLMR_REASON_CANCELLED "cancelled"             /* CANCELLED; a progress callback said so */
#define LLMR_REASON_INTERNAL "internal"               /* INTERNAL */
#define LLMR_REASON_DEVICE_FAILED "device_failed"     /* INTERNAL; the device is of no more use to this process */
#define LLMR_REASON_ABI_MISMATCH "abi_mismatch"       /* ABI_MISMATCH; versions needed (host), available (engine) */

/* ---------------------------------------------------------------- small values; these never change */

/* size bytes of UTF-8, not NUL-terminated. data may be NULL when size is 0. */
typedef struct llmr_str {
  const char *data;
  size_t size;
} llmr_str;

/* size bytes of anything. data may be NULL when size is 0. */
typedef struct llmr_bytes {
  const uint8_t *data;
  size_t size;
} llmr_bytes;

/* Bytes start..end (end excluded) of a text. Both lie between UTF-8 characters. */
typedef struct llmr_range {
  uint32_t start;
  uint32_t end;
} llmr_range;

typedef struct llmr_device_bytes {
  llmr_str device;
  uint64_t bytes;
} llmr_device_bytes;

/* A file of a model: its name in the model, and the absolute path of its verified bytes. */
typedef struct llmr_file {
  llmr_str name;
  llmr_str path;
} llmr_file;

typedef struct llmr_token_bias {
  uint32_t id;
  float bias;
} llmr_token_bias;

typedef struct llmr_token_logprob {
  uint32_t id;
  /* Natural logarithm of the probability. */
  float logprob;
  /* The token's bytes, as in llmr_event. */
  llmr_bytes bytes;
} llmr_token_logprob;

/* ---------------------------------------------------------------- what the host offers */

typedef uint32_t llmr_log_level;
enum { LLMR_LOG_ERROR = 0, LLMR_LOG_WARN = 1, LLMR_LOG_INFO = 2, LLMR_LOG_DEBUG = 3, LLMR_LOG_TRACE = 4 };

/* Given to open. Valid until close returns. */
typedef struct llmr_host {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  /* Lines above this level are dropped; the engine need not make them. */
  llmr_log_level log_level;
  void *context;
  /*
   * [any-thread, from open until close] One line for the node's log. sequence: the sequence it is about, 0: none.
   * message is borrowed for the call. Never fails. Never NULL.
   */
  void (*log)(void *context, llmr_log_level level, llmr_str message, uint64_t sequence);
} llmr_host;

/*
 * How long work says that it moves, and learns that nobody wants it any more. Calls come on the thread that called the
 * function it was given to, and only while that function runs. Never changes.
 */
typedef struct llmr_progress {
  void *context;
  /*
   * done of total units (bytes while loading, tokens of the batch in a step); total 0: unknown. done never falls within
   * one call of load or step. Any call counts as a sign of life: an engine that works calls it at least once a second,
   * and it costs little enough to be called a thousand times a second.
   * Returns 0 to go on; anything else: stop as soon as possible and return LLMR_CANCELLED.
   */
  uint32_t (*report)(void *context, uint64_t done, uint64_t total);
} llmr_progress;

/* ---------------------------------------------------------------- what the engine says of itself */

/* Constant for the life of the process. */
typedef struct llmr_info {
  uint32_t struct_size;
  uint32_t reserved;
  /* Both as in manifest.json; the host refuses an engine whose manifest says otherwise. */
  llmr_str id;
  llmr_str version;
} llmr_info;

typedef struct llmr_device {
  uint32_t struct_size;
  uint32_t reserved;
  llmr_str id;   /* "cpu", "cuda:0", "metal:0", "vulkan:0": kind, colon, index; "cpu" alone */
  llmr_str kind; /* "cpu", "cuda", "metal", "vulkan", "d3d12" */
  llmr_str name; /* as the vendor calls it */
  /* Bytes; 0 where the engine cannot tell. */
  uint64_t memory_total;
  uint64_t memory_free;
} llmr_device;

typedef struct llmr_devices {
  uint32_t struct_size;
  uint32_t count;
  uint64_t element_size;
  const llmr_device *items;
} llmr_devices;

/* ---------------------------------------------------------------- a model and how to load it */

/* Local, verified files, and nothing about where they came from. */
typedef struct llmr_model {
  uint32_t struct_size;
  uint32_t file_count;
  llmr_str id;           /* for messages */
  llmr_str format;       /* "safetensors", "gguf" */
  llmr_str architecture; /* model_type of config.json, or general.architecture of a GGUF */
  llmr_str runtime;      /* which of the manifest's runtimes was chosen */
  llmr_str model_dir;    /* absolute */
  llmr_str primary;      /* name of the file to open first; one of files */
  const llmr_file *files;
} llmr_model;

typedef struct llmr_settings {
  uint32_t struct_size;
  /* Longest sequence, prompt and answer, in tokens; 0: the model's own maximum. */
  uint32_t context_length;
  /* How many sequences may run at once; 0: the engine's default. */
  uint32_t sequences_max;
  /* Tokens in one step at most; 0: the engine's default. */
  uint32_t batch_tokens_max;
  /* CPU threads; 0: as many as there are physical cores. */
  uint32_t threads;
  uint32_t device_count;
  /* Ids of the devices to use; none: the engine's first. */
  const llmr_str *devices;
  /* The engine's own options as a JSON object; empty: none. Unknown keys are refused (LLMR_REASON_UNKNOWN_OPTION). */
  llmr_str options_json;
} llmr_settings;

/* What a model needs on one device, in bytes. */
typedef struct llmr_device_need {
  uint32_t struct_size;
  uint32_t reserved;
  llmr_str device;
  uint64_t weights;        /* weights in private memory */
  uint64_t weights_mapped; /* weights that stay pages of mapped files */
  uint64_t workspace;      /* allocated once, whatever runs */
  uint64_t per_sequence;   /* for every sequence, besides its KV */
  uint64_t kv_per_token;   /* KV for every token of context of one sequence */
  uint64_t kv_fixed;       /* KV of one sequence that does not grow with its length (sliding windows) */
} llmr_device_need;

typedef struct llmr_estimate {
  uint32_t struct_size;
  uint32_t count;
  uint64_t element_size;
  const llmr_device_need *items;
  /* The longest context the model allows, in tokens. */
  uint32_t context_length_max;
  uint32_t reserved;
} llmr_estimate;

/* llmr_loaded.flags: the model gives embeddings and no answers. */
enum { LLMR_LOADED_EMBEDS_ONLY = 1 };

typedef struct llmr_loaded {
  uint32_t struct_size;
  uint32_t context_length; /* as loaded; at most what was asked for */
  uint32_t sequences_max;  /* as loaded; at most what was asked for */
  uint32_t vocabulary_size;
  /* Tokens that end an answer. */
  uint32_t end_token_count;
  uint32_t reserved;
  const uint32_t *end_tokens;
  /* Since 1.1. Numbers of an embedding, at most LLMR_EMBEDDING_SIZE_MAX; 0: the model has none. */
  uint32_t embedding_size;
  /* Since 1.1. */
  uint32_t flags;
} llmr_loaded;

typedef struct llmr_tokens {
  uint32_t struct_size;
  uint32_t count;
  const uint32_t *ids;
} llmr_tokens;

/* ---------------------------------------------------------------- a sequence */

/* llmr_sampling.flags: the model's own end tokens are tokens like any other, chosen or not, and end nothing. */
enum { LLMR_SAMPLING_IGNORE_END_TOKENS = 1 };

typedef uint32_t llmr_constraint_kind;
enum {
  LLMR_CONSTRAINT_NONE = 0,
  LLMR_CONSTRAINT_JSON_SCHEMA = 1, /* the answer is a JSON text that fits this JSON Schema, an object */
  /* The answer fits this grammar in llguidance's form of Lark, where <|name|> is the control token of that spelling. */
  LLMR_CONSTRAINT_LARK = 2
};

/*
 * How the tokens of an answer are chosen. A value out of range is refused with LLMR_REASON_INVALID_SAMPLING; so is a
 * field that the engine cannot honour and that is not at its "off" value. The same seed, prompt and values give the
 * same answer on the same engine, whatever else runs.
 */
typedef struct llmr_sampling {
  uint32_t struct_size;
  uint32_t flags;
  uint64_t seed;
  float temperature;        /* 0: greedy; 0 to 2 */
  float top_p;              /* 1: off; over 0, to 1 */
  float min_p;              /* 0: off; 0 to 1 */
  float presence_penalty;   /* 0: off; -2 to 2 */
  float frequency_penalty;  /* 0: off; -2 to 2 */
  float repetition_penalty; /* 1: off; over 0 */
  uint32_t top_k;           /* 0: off */
  uint32_t tokens_max;      /* tokens of the answer at most, an end token included; 0: up to the context's end */
  uint32_t tokens_min;      /* end tokens and stop_tokens are not chosen before this many tokens */
  /* -1: no logprobs; n: of the chosen token and of the n most likely, 0 to LLMR_LOGPROBS_MAX. */
  int32_t logprobs;
  uint32_t logit_bias_count;
  uint32_t stop_count;
  uint32_t stop_token_count;
  uint32_t reserved;
  /* Added to the logit of a token before everything else; -100 to 100. */
  const llmr_token_bias *logit_bias;
  /* The sequence ends with the token that completes one of these in the text of its answer. None is empty. */
  const llmr_str *stop;
  /* Tokens that end the answer besides the model's own. */
  const uint32_t *stop_tokens;
  /*
   * The answer begins with one of these, of which none is empty: tokens are chosen so that it does, unless tokens_max or
   * the context ends it first. As in a prompt, the spelling of a control token stands for that token; no other control
   * token, and nothing that ends the answer before a text is complete, is chosen. Once a text is complete any token may
   * follow; if that goes on with a longer text of the list, that one is completed too.
   */
  const llmr_str *begin_with;
  uint32_t begin_with_count;
  uint32_t reserved2;
  /*
   * Since 1.2. What the answer has to be from its first token on: only tokens that lead to it are chosen, and tokens that
   * end an answer where it is complete and nowhere else. Control tokens are chosen where a grammar names them; a model
   * without end tokens ends where nothing may follow. stop, stop_tokens, tokens_max and the context end an answer as ever,
   * complete or not. Together with begin_with, tokens_min or LLMR_SAMPLING_IGNORE_END_TOKENS it is refused. What cannot be
   * kept to, in a text or by the engine, is refused with param "constraint". The host sets it only for an engine whose
   * abi_minor is 2 or more.
   */
  llmr_constraint_kind constraint_kind;
  uint32_t reserved3;
  llmr_str constraint;
} llmr_sampling;

typedef uint32_t llmr_prompt_kind;
enum { LLMR_PROMPT_TEXT = 0, LLMR_PROMPT_TOKENS = 1 };

typedef uint32_t llmr_task;
enum {
  LLMR_TASK_GENERATE = 0, /* an answer to the prompt */
  LLMR_TASK_EMBED = 1     /* the embedding of the prompt, and no tokens */
};

typedef struct llmr_submit {
  uint32_t struct_size;
  llmr_prompt_kind prompt_kind;
  /* Chosen by the host; not 0; not used twice while the model is loaded. */
  uint64_t sequence;
  /* The caller's request id, for log lines. */
  llmr_str request_id;
  /* LLMR_PROMPT_TEXT: the prompt, complete, and the ranges in which spellings of control tokens stay text. */
  llmr_str text;
  const llmr_range *literal; /* ascending, not overlapping */
  /* LLMR_PROMPT_TOKENS: the prompt. */
  const uint32_t *tokens;
  uint32_t literal_count;
  uint32_t token_count;
  const llmr_sampling *sampling;
  /*
   * Whose KV it may share. What a prompt leaves in a cache is found again only by prompts with the same number, so that
   * nobody can learn from the time of an answer, or from cached_tokens, what others have asked. 0: one of many numbers,
   * for callers that need not be kept apart.
   */
  uint64_t cache_salt;
  /*
   * Since 1.1. The host sets another than GENERATE only for an engine whose abi_minor is 1 or more. A task that the model
   * does not do is refused with LLMR_REASON_NO_EMBEDDINGS or LLMR_REASON_NO_GENERATION. For EMBED sampling is NULL, the
   * prompt may fill the context, and what the model expects around a text (a beginning, an end) is put around one;
   * prompts of tokens stay as they are.
   */
  llmr_task task;
  uint32_t reserved;
} llmr_submit;

typedef uint32_t llmr_finish_reason;
enum {
  LLMR_FINISH_STOP = 0,     /* an end token, a stop token or a stop string */
  LLMR_FINISH_LENGTH = 1,   /* tokens_max or the context's end */
  LLMR_FINISH_CANCELLED = 2 /* cancel */
};

typedef uint32_t llmr_event_kind;
enum {
  LLMR_EVENT_STARTED = 1,
  LLMR_EVENT_TOKEN = 2,
  LLMR_EVENT_FINISHED = 3,
  LLMR_EVENT_FAILED = 4,
  LLMR_EVENT_EMBEDDING = 5
};

/*
 * What happened to a sequence: STARTED once, TOKEN for every generated token, then FINISHED or FAILED once. A sequence
 * that is cancelled or fails before it starts has no STARTED. Of an LLMR_TASK_EMBED: STARTED, EMBEDDING, and FINISHED with
 * LLMR_FINISH_STOP and no tokens. Fields of other kinds are 0. Borrowed for the callback.
 */
typedef struct llmr_event {
  uint32_t struct_size;
  llmr_event_kind kind;
  uint64_t sequence;
  /* STARTED: tokens of the prompt, and how many of them were found in a cache. */
  uint32_t prompt_tokens;
  uint32_t cached_tokens;
  /* TOKEN: end tokens and control tokens are tokens like any other. */
  uint32_t token_id;
  uint32_t control; /* 1: a control token, which is not text; its bytes are its spelling */
  llmr_bytes bytes; /* may be part of a UTF-8 character */
  /* The chosen token first, then the most likely, best first (the chosen one again if it is among them). */
  const llmr_token_logprob *logprobs;
  uint32_t logprob_count; /* 0 unless asked for; then 1 + llmr_sampling.logprobs, less where the vocabulary is smaller */
  /* FINISHED */
  llmr_finish_reason finish_reason;
  uint32_t completion_tokens; /* TOKEN events of this sequence */
  uint32_t reserved;
  /* FAILED: this sequence alone failed. */
  const llmr_status *status;
  /* Since 1.1. EMBEDDING: llmr_loaded.embedding_size numbers, all finite, whose squares add up to 1. */
  const float *embedding;
  uint32_t embedding_size;
  uint32_t reserved2;
} llmr_event;

/* Calls come on the thread that called step, and only while step runs. Never changes. */
typedef struct llmr_event_sink {
  void *context;
  void (*event)(void *context, const llmr_event *event);
} llmr_event_sink;

/* Counters count from load. */
typedef struct llmr_stats {
  uint32_t struct_size;
  uint32_t sequences_running;
  uint32_t sequences_waiting;
  /* Largest number of sequences that shared one step. */
  uint32_t batch_sequences_max;
  uint64_t steps;
  uint64_t prompt_tokens;
  uint64_t completion_tokens;
  /* Bytes. */
  uint64_t kv_bytes_used;
  uint64_t kv_bytes_total;
  /* Bytes in use on each device. */
  const llmr_device_bytes *memory;
  uint32_t memory_count;
  uint32_t reserved;
  /* The engine's own figures, a JSON object; empty: none. */
  llmr_str details_json;
} llmr_stats;

/* ---------------------------------------------------------------- the table */

/* An opened engine. What is in it is the engine's business. */
typedef struct llmr_engine llmr_engine;

/* No pointer in it is NULL. Constant for the life of the process. */
typedef struct llmr_engine_api {
  uint32_t struct_size;
  uint32_t abi_major; /* LLMR_ABI_MAJOR. These four words are the same in every version for ever. */
  uint32_t abi_minor; /* LLMR_ABI_MINOR */
  uint32_t reserved;

  /* [any-thread, any time] Never NULL. Static. Never fails. */
  const llmr_info *(*info)(void);

  /*
   * [any thread, which becomes the engine-thread; once, and again only after close]
   * Makes the engine. Cheap: no device is initialised yet, no memory taken. On failure *out is untouched.
   * host and what it points to stay valid until close returns.
   */
  llmr_code (*open)(const llmr_host *host, llmr_engine **out, llmr_status *status);

  /*
   * [engine-thread, after open] Unloads if needed, joins every thread of the engine, frees it. Calls no log after it
   * has returned. Never fails. NULL is allowed and does nothing.
   */
  void (*close)(llmr_engine *engine);

  /*
   * [engine-thread, after open] The devices this engine can use on this machine; none is not a failure.
   * out->items is borrowed until the next call of devices, or close.
   */
  llmr_code (*devices)(llmr_engine *engine, llmr_devices *out, llmr_status *status);

  /*
   * [engine-thread, after open; also while a model is loaded] What load would need with these settings, for each device
   * it would use. Reads metadata only, and takes less than a second. The host adds up
   *   weights + workspace + sequences * (per_sequence + kv_fixed + kv_per_token * context)
   * out->items is borrowed until the next call of estimate, or close.
   */
  llmr_code (*estimate)(llmr_engine *engine, const llmr_model *model, const llmr_settings *settings,
                        llmr_estimate *out, llmr_status *status);

  /*
   * [engine-thread, after open, no model loaded] Loads the model within the budget: bytes per device, as the host added
   * them up; a device that is not in it has no limit (count 0: no limits). Mapped weights do not count. What the
   * settings leave open (0) the engine chooses to fit and says in *out; what they ask for and does not fit is refused
   * with LLMR_REASON_BUDGET_EXCEEDED and both numbers, as is a budget that holds not even the shortest sequence.
   * Calls progress in bytes. If that says stop: LLMR_CANCELLED.
   * After a failure nothing of the model is left. out->end_tokens is borrowed until unload.
   */
  llmr_code (*load)(llmr_engine *engine, const llmr_model *model, const llmr_settings *settings,
                    const llmr_device_bytes *budget, uint32_t budget_count, const llmr_progress *progress,
                    llmr_loaded *out, llmr_status *status);

  /*
   * [engine-thread, after open] Frees the model and every sequence, without events. Without a model it does nothing.
   * Never fails.
   */
  void (*unload)(llmr_engine *engine);

  /*
   * [engine-thread, after load] Token ids of a text as a prompt with the same text would have them. In the literal
   * ranges (ascending, not overlapping) spellings of control tokens stay text. An empty text has no tokens.
   * out->ids is borrowed until the next call of tokenize, or unload.
   */
  llmr_code (*tokenize)(llmr_engine *engine, llmr_str text, const llmr_range *literal, uint32_t literal_count,
                        llmr_tokens *out, llmr_status *status);

  /*
   * [engine-thread, after load] Takes a sequence, to be worked on by the next steps; it waits if sequences_max others
   * run. Everything of *submit is copied. What can be refused is refused here and then has no events: a prompt that
   * does not leave room for one token in the context (needed: its tokens and one; available: the context), bad values,
   * a full queue.
   */
  llmr_code (*submit)(llmr_engine *engine, const llmr_submit *submit, llmr_status *status);

  /*
   * [any-thread, after open] Asks for the end of a sequence. Returns at once and never fails; the sequence's last event
   * comes from a step: FINISHED with CANCELLED, after at most one more TOKEN, unless it ended otherwise before. A number
   * that is not known (never submitted, or ended) is ignored.
   */
  void (*cancel)(llmr_engine *engine, uint64_t sequence);

  /*
   * [engine-thread, after load] One iteration of the batch: a token of every sequence that decodes, and as much of the
   * prompts that wait as fits the batch. Prompts to be embedded are prompts that wait: those that decode have their token
   * in every step that reads them. Events go to the sink as they happen, at most one TOKEN per sequence; none is
   * kept back for a later step, except that an engine may deliver the events of iteration n-1 while n runs. Does not
   * wait for anything but its own work: with nothing to do it returns at once.
   * *pending: how many sequences have not had their last event; 0: step need not be called until the next submit.
   * Calls progress while it works. If that says stop: LLMR_CANCELLED.
   * On failure every sequence has ended without further events, *pending is 0, and the engine takes new ones; unless
   * the reason is LLMR_REASON_DEVICE_FAILED: then the host ends the process, and its sequences are tried in another.
   */
  llmr_code (*step)(llmr_engine *engine, const llmr_progress *progress, const llmr_event_sink *sink,
                    uint32_t *pending, llmr_status *status);

  /* [engine-thread, after open] out->memory and out->details_json are borrowed until the next call of stats, or close. */
  llmr_code (*stats)(llmr_engine *engine, llmr_stats *out, llmr_status *status);

  /*
   * [any-thread, any time] The table of an extension, NULL if the engine does not have it. Static. Ids are
   * "llmr.<name>/<version>"; drafts, which may change, are "llmr.draft.<name>/<version>". An engine's own begin with
   * its id.
   */
  const void *(*get_extension)(llmr_str id);
} llmr_engine_api;

/*
 * [any-thread, any time] The one exported symbol. Returns a static table, never NULL. Does nothing else: no thread, no
 * device, no output.
 */
LLMR_EXPORT const llmr_engine_api *llmr_engine_entry(void);

#ifdef __cplusplus
}
#endif

#endif /* LLMR_ENGINE_H */
