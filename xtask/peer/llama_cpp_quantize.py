"""llama.cpp's quantiser, and llama.cpp as a reader, through llama-cpp-python. Started by `cargo xtask quantizer`.

    python llama_cpp_quantize.py quantize IN OUT TYPE THREADS [IMATRIX]
    python llama_cpp_quantize.py score FILE THREADS ID,ID,...

`quantize` makes OUT with the customary mixture of TYPE; IMATRIX is a GGUF importance matrix (NAME.in_sum2, NAME.counts).
`score` loads FILE and gives the log-probability of each id after those before it. Both print one JSON object.
"""

import ctypes
import json
import mmap
import struct
import sys
import time

import llama_cpp as L
import numpy as np

FTYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32,
}


def f32_tensors(path):
    """Name -> (dims, values) of a GGUF file that holds nothing but f32 tensors."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    at = 4

    def take(form):
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length : at].decode()

    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner = take("I")
            return [value(inner) for _ in range(take("Q"))]
        return take(scalars[kind])

    take("I")
    tensors, keys = take("Q"), take("Q")
    meta = {}
    for _ in range(keys):
        key = text()
        meta[key] = value(take("I"))
    infos = []
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        kind, offset = take("I"), take("Q")
        assert kind == 0, f"{name} is no f32 tensor"
        infos.append((name, dims, offset))
    align = meta.get("general.alignment", 32)
    start = (at + align - 1) // align * align
    return {
        name: (dims, np.frombuffer(data, "<f4", int(np.prod(dims)), start + offset)) for name, dims, offset in infos
    }


def importance(path):
    """The array that the quantiser takes: E[x^2] per column, experts one after the other, ended by a null name."""
    tensors = f32_tensors(path)
    entries, keep = [], []
    for name, (dims, sums) in tensors.items():
        if not name.endswith(".in_sum2"):
            continue
        name = name.removesuffix(".in_sum2")
        counts = tensors[name + ".counts"][1]
        sums = sums.reshape(len(counts), dims[0])
        counts = counts[:, None]
        # An expert without text says nothing: ones.
        means = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0).astype(np.float32).ravel()
        buffer = (ctypes.c_float * means.size)(*means)
        keep.append(buffer)
        entries.append((name.encode(), buffer, means.size))
    array = (L.llama_model_imatrix_data * (len(entries) + 1))()
    for slot, (name, buffer, size) in zip(array, entries):
        slot.name, slot.data, slot.size = name, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_float)), size
    array[len(entries)].name = None
    return array, keep


def quantize(source, target, kind, threads, imatrix=None):
    params = L.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = FTYPES[kind], int(threads), True
    if imatrix:
        array, _keep = importance(imatrix)
        params.imatrix = ctypes.cast(array, ctypes.POINTER(L.llama_model_imatrix_data))
    start = time.perf_counter()
    if L.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        sys.exit(f"llama.cpp cannot quantise to {kind}")
    return {"seconds": time.perf_counter() - start}


def score(path, threads, ids):
    ids = [int(one) for one in ids.split(",")]
    model_params = L.llama_model_default_params()
    model_params.use_extra_bufts = False
    model = L.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    params = L.llama_context_default_params()
    params.n_ctx = max(64, len(ids))
    params.n_batch = params.n_ubatch = params.n_ctx
    params.n_threads = params.n_threads_batch = int(threads)
    context = L.llama_init_from_model(model, params)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    batch = L.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for place, one in enumerate(ids):
        batch.token[place], batch.pos[place], batch.n_seq_id[place] = one, place, 1
        batch.seq_id[place][0], batch.logits[place] = 0, 1
    if L.llama_decode(context, batch) != 0:
        sys.exit(f"llama.cpp cannot run {path}")
    found = []
    for place in range(len(ids) - 1):
        row = np.ctypeslib.as_array(L.llama_get_logits_ith(context, place), shape=(vocab,)).astype(np.float64)
        top = row.max()
        found.append(float(row[ids[place + 1]] - top - np.log(np.exp(row - top).sum())))
    return {"logprobs": found}


def main():
    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    work = {"quantize": quantize, "score": score}[sys.argv[1]]
    print(json.dumps(work(*sys.argv[2:])))


main()
