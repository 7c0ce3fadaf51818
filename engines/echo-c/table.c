/* The table of functions, and making the engine. */
#include "echo.h"

#include <stdlib.h>

static const llmr_info *info(void) { return &echo_info; }

static llmr_code open_engine(const llmr_host *host, llmr_engine **out, llmr_status *status) {
  llmr_engine *engine;
  if (host->abi_major != LLMR_ABI_MAJOR)
    return fail(status, LLMR_ABI_MISMATCH, LLMR_REASON_ABI_MISMATCH, host->abi_major, LLMR_ABI_MAJOR,
                "the host speaks another version of the ABI");
  engine = calloc(1, sizeof *engine);
  if (engine == NULL)
    return fail(status, LLMR_OOM_RAM, LLMR_REASON_BUDGET_EXCEEDED, sizeof *engine, 0, "no memory for the engine");
  engine->host = host;
  lock_init(&engine->lock);
  host->log(host->context, LLMR_LOG_DEBUG, str("echo-c is open"), 0);
  *out = engine;
  return LLMR_OK;
}

static void close_engine(llmr_engine *engine) {
  if (engine == NULL) return;
  echo_unload(engine);
  lock_end(&engine->lock);
  free(engine);
}

static const void *get_extension(llmr_str id) {
  (void)id;
  return NULL;
}

static const llmr_engine_api api = {
    sizeof(llmr_engine_api), LLMR_ABI_MAJOR, LLMR_ABI_MINOR, 0, info, open_engine, close_engine, echo_devices,
    echo_estimate, echo_load, echo_unload, echo_tokenize, echo_submit, echo_cancel, echo_step, echo_stats, get_extension,
};

LLMR_EXPORT const llmr_engine_api *llmr_engine_entry(void) { return &api; }
