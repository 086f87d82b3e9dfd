"""Speed of llama.cpp, through the low-level interface of llama-cpp-python. Started by `cargo xtask bench --peer`.

    python llama_cpp_bench.py MODEL THREADS PROMPT GEN REPS REPACK

Does what `pannier bench` does: ids spread over the vocabulary as one batch, then one token at a time behind them, the most
likely one taken each time; medians over the repetitions, after a short run to warm up. REPACK is 1 for weights that are
interleaved on loading (faster decode), 0 for mapped weights (faster prefill of K-quants). Prints one JSON object.
"""

import ctypes
import json
import statistics
import sys
import time

import llama_cpp as L
import numpy as np


def main():
    path, threads, prompt, generate, reps, repack = sys.argv[1], *map(int, sys.argv[2:7])

    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()

    start = time.perf_counter()
    model_params = L.llama_model_default_params()
    model_params.use_mmap = True
    model_params.use_extra_bufts = bool(repack)
    model = L.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    params = L.llama_context_default_params()
    params.n_ctx = prompt + generate + 32
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    context = L.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp makes no context for {path}")
    load = time.perf_counter() - start
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))

    def step(ids):
        # Batches of the engine's own size; of the last one only the last token has logits.
        for at in range(0, len(ids), 512):
            part = ids[at : at + 512]
            # The batch only points to the ids: this name keeps them alive.
            tokens = (L.llama_token * len(part))(*part)
            batch = L.llama_batch_get_one(tokens, len(part))
            if L.llama_decode(context, batch) != 0:
                sys.exit("llama.cpp fails to decode")
        logits = L.llama_get_logits_ith(context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(vocab,))))

    def once(prompt, generate):
        L.llama_memory_clear(L.llama_get_memory(context), True)
        start = time.perf_counter()
        token = step([(i * 7919 + 1) % vocab for i in range(prompt)])
        first = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(generate - 1):
            token = step([token])
        return prompt / first, (generate - 1) / (time.perf_counter() - start)

    once(min(prompt, 32), 4)
    runs = [once(prompt, generate) for _ in range(reps)]
    print(
        json.dumps(
            {
                "prefill_tok_s": statistics.median(run[0] for run in runs),
                "decode_tok_s": statistics.median(run[1] for run in runs),
                "load_ms": load * 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()
