// The OpenAI client for Node.js as programs use it; the word on the command line says which way.
//
// Rules. Nothing is given to the client but what the environment says: its base URL and its key. The packages are those
// of the folder in CLIENT_FOLDER, the book lies in the working folder. The last line on standard output is a JSON object
// that tells what the program got.

import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.CLIENT_FOLDER}/package.json`);
const { OpenAI } = require("openai");
const { zodFunction, zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const model = "demo-model";
const Found = z.object({ word: z.string(), pages: z.number() });
const Page = z.object({ number: z.number() });

const opening = () => [
  { role: "system", content: "You are a patient reader." },
  { role: "user", content: "Read the book page by page, and tell me the word on the last one." },
];
const page = (number) => fs.readFileSync(`pages/${number}.txt`, "utf-8");
const parameters = { type: "object", properties: { number: { type: "integer" } }, required: ["number"] };

// The helper that runs tools, with streams.
async function tools() {
  const read = [];
  const runner = new OpenAI().chat.completions.runTools(
    {
      model,
      stream: true,
      messages: opening(),
      tools: [
        {
          type: "function",
          function: {
            name: "read_page",
            description: "Read a page.",
            parameters,
            parse: JSON.parse,
            function: ({ number }) => {
              read.push(number);
              return page(number);
            },
          },
        },
      ],
    },
    { maxChatCompletions: 100 },
  );
  let pieces = 0;
  runner.on("content", () => pieces++);
  return { text: await runner.finalContent(), read, pieces };
}

// Whole answers with structured output, and arguments that are parsed.
async function parsed() {
  const client = new OpenAI();
  const messages = opening();
  const read = [];
  const tool = zodFunction({ name: "read_page", parameters: Page });
  for (;;) {
    const request = { model, messages, tools: [tool], response_format: zodResponseFormat(Found, "found") };
    const { data, response } = await client.chat.completions.parse(request).withResponse();
    const { message } = data.choices[0];
    messages.push(message);
    if (!message.tool_calls?.length) {
      return { found: message.parsed, read, actions: response.headers.get("x-context-actions") };
    }
    for (const call of message.tool_calls) {
      const { number } = call.function.parsed_arguments;
      read.push(number);
      messages.push({ role: "tool", tool_call_id: call.id, content: page(number) });
    }
  }
}

// Two answers that the client tries again by itself.
async function retried() {
  const answer = await new OpenAI({ maxRetries: 3 }).chat.completions.create({ model, messages: opening() });
  return { text: answer.choices[0].message.content };
}

// An answer that nothing makes good, as the client's own exception.
async function refused() {
  try {
    await new OpenAI({ maxRetries: 0 }).chat.completions.create({ model, messages: opening() });
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code, id: error.requestID };
  }
}

// A limit of the client's own, before an answer that does not come.
async function timedOut() {
  try {
    await new OpenAI({ maxRetries: 0, timeout: 1000 }).chat.completions.create({ model, messages: opening() });
  } catch (error) {
    return { kind: error.constructor.name };
  }
}

// A stream that is left behind its first words; the same client then asks again.
async function aborted() {
  const client = new OpenAI({ maxRetries: 0 });
  const stream = await client.chat.completions.create({ model, messages: opening(), stream: true });
  const words = [];
  for await (const chunk of stream) {
    words.push(chunk.choices[0].delta.content ?? "");
    if (words.length === 3) {
      stream.controller.abort();
      break;
    }
  }
  const again = await client.chat.completions.create({ model, messages: opening() });
  return { words, again: again.choices[0].message.content };
}

const ways = { tools, parsed, retried, refused, timed_out: timedOut, aborted };
console.log(`\n${JSON.stringify(await ways[process.argv[2]]())}`);
