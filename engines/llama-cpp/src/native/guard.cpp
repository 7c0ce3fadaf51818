// Functions of llama.cpp that may throw, with the exception stopped here: a foreign one ends a Rust process without a word of why.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>

// As in llama.h, which is another package's: the arguments are only handed on.
struct llama_vocab;
struct llama_context;
struct llama_batch {
    int32_t n_tokens;
    void * token, * embd, * pos, * n_seq_id, * seq_id, * logits;
};
static_assert(sizeof(llama_batch) == 7 * sizeof(void *), "the Rust side has the same number");
extern "C" int32_t llama_tokenize(const llama_vocab *, const char *, int32_t, int32_t *, int32_t, bool, bool);
extern "C" int32_t llama_decode(llama_context *, llama_batch);

namespace {

// Writes what was thrown, cut to size, with its end.
void say(const char * what, char * words, size_t words_bytes) {
    std::strncpy(words, what, words_bytes - 1);
    words[words_bytes - 1] = 0;
}

// Runs `work`. False: it threw, and `words` says what.
template <typename Work>
bool guarded(Work work, char * words, size_t words_bytes) {
    try {
        work();
        return true;
    } catch (const std::exception & thrown) {
        say(thrown.what(), words, words_bytes);
    } catch (...) {
        say("something that is no exception", words, words_bytes);
    }
    return false;
}

}  // namespace

// As llama_tokenize with no control token read; `with_around`: with what the vocabulary has before and behind a text. False: it threw, and `words` says what.
extern "C" bool llmr_llama_tokenize(
    const llama_vocab * vocab, const char * text, int32_t bytes, int32_t * ids, int32_t room, bool with_around,
    int32_t * count, char * words, size_t words_bytes
) {
    return guarded([&] { *count = llama_tokenize(vocab, text, bytes, ids, room, with_around, false); }, words, words_bytes);
}

// As llama_decode, its result in `code`. False: it threw, and `words` says what.
extern "C" bool llmr_llama_decode(
    llama_context * context, const llama_batch * batch, int32_t * code, char * words, size_t words_bytes
) {
    return guarded([&] { *code = llama_decode(context, *batch); }, words, words_bytes);
}
