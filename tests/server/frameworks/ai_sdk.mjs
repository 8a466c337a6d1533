// `node ai_sdk.mjs NPM_PREFIX URL CASE…`: runs the AI SDK's agent loop; see loops.py.
// A case is PROVIDER:streamed, or PROVIDER: for a full response.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [prefix, url, ...cases] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${prefix}/index.js`));
const { generateText, streamText, tool, stepCountIs, Output } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { z } = require("zod");

const settings = { baseURL: `${url}/v1`, apiKey: "none" };
const openai = createOpenAI(settings);
const compatible = { ...settings, name: "tiny-llm", supportsStructuredOutputs: true };
const models = {
  chat: openai.chat("demo"),
  compatible: createOpenAICompatible(compatible)("demo"),
  responses: openai.responses("demo"),
  stored: openai.responses("demo"), // sends references to earlier items
  messages: createAnthropic(settings)("claude-sonnet-4-5"),
};
const city = z.object({ city: z.string() });
const report = z.object({ city: z.string(), weather: z.string(), population: z.number() });

async function run(name) {
  const [provider, streamed] = name.split(":");
  const calls = [];
  const make = (called, description, result) =>
    tool({
      description,
      inputSchema: city,
      execute: async (input) => {
        calls.push([called, input.city]);
        return result;
      },
    });
  const options = {
    model: models[provider],
    prompt: "Report the weather and the population of Paris.",
    tools: {
      get_weather: make("get_weather", "Get the weather in a city.", "sunny, 21 °C"),
      get_population: make("get_population", "Get the population of a city.", 2_100_000),
    },
    output: Output.object({ schema: report }),
    stopWhen: stepCountIs(5),
    maxRetries: 0,
    providerOptions: { openai: { store: provider === "stored" } },
  };
  try {
    if (!streamed) return { calls, answer: (await generateText(options)).output };
    let failure;
    const stream = streamText({ ...options, onError: ({ error }) => (failure = error) });
    for await (const _ of stream.fullStream);
    if (failure) throw failure;
    return { calls, answer: await stream.output };
  } catch (error) {
    return { error: `${error.stack ?? JSON.stringify(error)}\n${error.responseBody ?? ""}` };
  }
}

for (const name of cases) console.log(JSON.stringify(await run(name)));
