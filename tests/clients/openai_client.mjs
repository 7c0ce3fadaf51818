// What a user of the official Node client does; prints what came back as one JSON document.

import { pathToFileURL } from "node:url";

const { default: OpenAI } = await import(pathToFileURL(process.env.OPENAI_MODULE).href);

const model = process.env.MODEL;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the current weather of a city.",
    parameters: {
      type: "object",
      properties: { location: { type: "string", description: "The city." } },
      required: ["location"],
    },
  },
};
const add = {
  type: "function",
  function: {
    name: "add",
    description: "Add two numbers.",
    parameters: {
      type: "object",
      properties: { a: { type: "number" }, b: { type: "number" } },
      required: ["a", "b"],
    },
  },
};
const seen = {};
const client = new OpenAI({ maxRetries: 0 });

const plain = await client.chat.completions.create({ model, messages, temperature: 0 });
seen.plain = plain.choices[0].message.content;
seen.plain_finish = plain.choices[0].finish_reason;

seen.streamed = "";
seen.streamed_reasoning = "";
seen.streamed_chunks = 0;
const stream = await client.chat.completions.create({
  model,
  messages,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  seen.streamed_chunks += 1;
  if (chunk.usage) seen.streamed_usage = chunk.usage.completion_tokens;
  for (const { delta } of chunk.choices) {
    seen.streamed += delta.content ?? "";
    seen.streamed_reasoning += delta.reasoning ?? "";
  }
}

const talk = [{ role: "user", content: "What is the weather in Lisbon?" }];
const asked = await client.chat.completions.create({ model, messages: talk, tools: [weather, add], temperature: 0 });
const call = asked.choices[0].message.tool_calls[0];
seen.tool_name = call.function.name;
seen.tool_arguments = call.function.arguments;
talk.push(asked.choices[0].message);
talk.push({ role: "tool", tool_call_id: call.id, content: '{"temperature": 18, "condition": "sunny"}' });
const answered = await client.chat.completions.create({ model, messages: talk, tools: [weather, add], temperature: 0 });
seen.tool_answer = answered.choices[0].message.content;

const completion = await client.completions.create({ model, prompt: "What is", max_tokens: 8, temperature: 0 });
seen.completion = completion.choices[0].text || "(control tokens only)";

seen.models = [];
for await (const found of client.models.list()) seen.models.push(found.id);
seen.model_by_id = (await client.models.retrieve(model)).id;

try {
  await client.chat.completions.create({ model: "acme/absent", messages });
} catch (e) {
  seen.not_found = `${e.constructor.name} ${e.status}`;
}
try {
  await client.chat.completions.create({ model, messages, temperature: 9 });
} catch (e) {
  seen.bad_request = `${e.constructor.name} ${e.status} ${e.param}`;
}

console.log(JSON.stringify(seen));
