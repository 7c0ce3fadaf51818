"""What a user of the official Python client does; prints what came back as one JSON document."""

import json
import os

import openai

MODEL = os.environ["MODEL"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "The city."}},
            "required": ["location"],
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
seen = {}
client = openai.OpenAI(max_retries=0)

reply = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
seen["plain"] = reply.choices[0].message.content
seen["plain_finish"] = reply.choices[0].finish_reason

text, reasoning, chunks = "", "", 0
stream = client.chat.completions.create(
    model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    chunks += 1
    if chunk.usage:
        seen["streamed_usage"] = chunk.usage.completion_tokens
    for choice in chunk.choices:
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning", None) or ""
seen["streamed"], seen["streamed_reasoning"], seen["streamed_chunks"] = text, reasoning, chunks

talk = [{"role": "user", "content": "What is the weather in Lisbon?"}]
reply = client.chat.completions.create(model=MODEL, messages=talk, tools=[WEATHER, ADD], temperature=0)
call = reply.choices[0].message.tool_calls[0]
seen["tool_name"], seen["tool_arguments"] = call.function.name, call.function.arguments
talk.append(reply.choices[0].message.model_dump(exclude_none=True))
talk.append({"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 18, "condition": "sunny"}'})
reply = client.chat.completions.create(model=MODEL, messages=talk, tools=[WEATHER, ADD], temperature=0)
seen["tool_answer"] = reply.choices[0].message.content

reply = client.completions.create(model=MODEL, prompt="What is", max_tokens=8, temperature=0)
seen["completion"] = reply.choices[0].text or "(control tokens only)"

seen["models"] = [model.id for model in client.models.list()]
seen["model_by_id"] = client.models.retrieve(MODEL).id

try:
    client.chat.completions.create(model="acme/absent", messages=QUESTION)
except openai.NotFoundError as e:
    seen["not_found"] = f"{type(e).__name__} {e.status_code}"
try:
    client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
except openai.BadRequestError as e:
    seen["bad_request"] = f"{type(e).__name__} {e.status_code} {e.param}"

print(json.dumps(seen))
