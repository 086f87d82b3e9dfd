"""The official `openai` client, unchanged, against `pannier serve`: base URL, key and model name are the arguments.

`cargo xtask clients` runs it. Every check is an assertion; the last line says how many there were.
"""

import asyncio
import sys

import openai

url, key, model = sys.argv[1:4]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120)
FRANCE = [{"role": "user", "content": "Which city is the capital of France?"}]
checks = 0


def check(truth, what):
    global checks
    assert truth, what
    checks += 1


def refused(kind, **changes):
    """The request with these changes is refused with this error of the client's."""
    request = {"model": model, "messages": FRANCE, "max_tokens": 4, **changes}
    try:
        client.chat.completions.create(**request)
    except kind as error:
        check(error.body and error.body.get("message"), f"{kind.__name__} has no message: {error.body}")
        return error
    raise AssertionError(f"{changes} was accepted")


# Models.
listed = client.models.list()
check([m.id for m in listed] == [model], f"the list: {listed}")
check(client.models.retrieve(model).object == "model", "retrieve")
try:
    client.models.retrieve("no-such-model")
    raise AssertionError("an unknown model was found")
except openai.NotFoundError:
    check(True, "")

# A whole answer.
whole = client.chat.completions.create(model=model, messages=FRANCE, temperature=0, max_tokens=24)
text = whole.choices[0].message.content
check("Paris" in text, text)
check(whole.object == "chat.completion" and whole.model == model, whole)
check(whole.choices[0].message.role == "assistant", whole)
check(whole.choices[0].finish_reason in ("stop", "length"), whole)
usage = whole.usage
check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0, usage)

# The same as a stream, with usage at the end.
stream = client.chat.completions.create(
    model=model, messages=FRANCE, temperature=0, max_tokens=24, stream=True,
    stream_options={"include_usage": True},
)
chunks = list(stream)
pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
check("".join(pieces) == text, pieces)
check(sum(1 for p in pieces if p) > 1, "it came in one piece")
check(chunks[0].choices[0].delta.role == "assistant", chunks[0])
check([c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason, "finish")
again = chunks[-1].usage
# How many of them were cached may differ: the question was asked before.
check((again.prompt_tokens, again.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens), chunks[-1])
check(len({c.id for c in chunks}) == 1, "one id")

# Log-probabilities.
sure = client.chat.completions.create(
    model=model, messages=FRANCE, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
)
tokens = sure.choices[0].logprobs.content
check(len(tokens) >= sure.usage.completion_tokens - 1, f"{len(tokens)} tokens")
check("".join(t.token for t in tokens).startswith(sure.choices[0].message.content), tokens)
check(bytes(b for t in tokens for b in t.bytes).decode().startswith(sure.choices[0].message.content), tokens)
for token in tokens:
    top = token.top_logprobs
    check(len(top) == 3 and token.logprob <= 0, token)
    check(top[0].logprob >= top[1].logprob >= top[2].logprob, top)
    check(top[0].token == token.token and top[0].logprob == token.logprob, "at temperature 0 the best is taken")

# Stop strings, limits, seeds.
stopped = client.chat.completions.create(model=model, messages=FRANCE, temperature=0, max_tokens=24, stop=["Paris"])
check("Paris" not in stopped.choices[0].message.content, stopped)
check(text.startswith(stopped.choices[0].message.content), stopped)
check(stopped.choices[0].finish_reason == "stop", stopped)
short = client.chat.completions.create(model=model, messages=FRANCE, temperature=0, max_completion_tokens=2)
check(short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 2, short)


def drawn(seed):
    request = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Write a line of a poem."}], temperature=1.5, max_tokens=12,
        seed=seed,
    )
    return request.choices[0].message.content


check(drawn(1) == drawn(1), "the same seed gives the same answer")
check(len({drawn(seed) for seed in range(4)}) > 1, "other seeds give other answers")

# Roles, parts, and what is ignored.
parts = [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]
talk = [
    {"role": "developer", "content": "Answer shortly."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": parts},
]
several = client.chat.completions.create(model=model, messages=talk, temperature=0, max_tokens=24, user="somebody")
check("Paris" in several.choices[0].message.content, several)

# Errors are the client's own types.
check(refused(openai.BadRequestError, n=2).param == "n", "n")
check(refused(openai.BadRequestError, temperature=-1).status_code == 400, "temperature")
check(refused(openai.BadRequestError, messages=[]).param == "messages", "no messages")
check(refused(openai.BadRequestError, top_logprobs=3).param == "top_logprobs", "top_logprobs")
check(refused(openai.BadRequestError, response_format={"type": "json_object"}).param == "response_format", "format")
check(refused(openai.NotFoundError, model="other").code == "model_not_found", "model")
long = [{"role": "user", "content": "word " * 20000}]
check(refused(openai.BadRequestError, messages=long).code == "context_length_exceeded", "context")
stranger = openai.OpenAI(base_url=url, api_key="not-the-key", max_retries=0)
try:
    stranger.models.list()
    raise AssertionError("a wrong key was accepted")
except openai.AuthenticationError as error:
    check("not-the-key" not in str(error), "the key is not repeated")

# A stream that the client leaves frees its place: many more than there are places.
for _ in range(24):
    left = client.chat.completions.create(model=model, messages=FRANCE, temperature=0, max_tokens=500, stream=True)
    next(iter(left))
    left.close()
check(True, "")


# Several at the same time, through the asynchronous client.
async def together():
    many = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=120)
    answers = await asyncio.gather(*(
        many.chat.completions.create(model=model, messages=FRANCE, temperature=0, max_tokens=24) for _ in range(6)
    ))
    await many.close()
    return {a.choices[0].message.content for a in answers}


check(asyncio.run(together()) == {text}, "together as alone")

print(f"openai {openai.__version__}: {checks} checks passed")
