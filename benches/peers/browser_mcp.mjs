// playwright-mcp as a peer of the bench `browser`, over its standard streams as an agent speaks to it; and a tokenizer for texts.
// Reads a command a line (JSON), answers with a line.
//
//   CHROMIUM=/path node browser_mcp.mjs   with `@playwright/mcp` and `gpt-tokenizer` below the working folder

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "from-here.js"));
const { countTokens } = await import(pathToFileURL(require.resolve("gpt-tokenizer/encoding/o200k_base")).href);
const oracle = readFileSync(join(dirname(fileURLToPath(import.meta.url)), "miniwob_oracle.js"), "utf8");
const program = join(dirname(require.resolve("@playwright/mcp/package.json")), "cli.js");
const flags = ["--headless", "--isolated", "--executable-path", process.env.CHROMIUM, "--viewport-size", "1280x1000", "--codegen", "none"];
if (process.getuid?.() === 0) flags.push("--no-sandbox");
const server = spawn("node", [program, ...flags], { stdio: ["pipe", "pipe", "inherit"], cwd: process.env.SCRATCH ?? process.cwd() });

let last = 0;
const waiting = new Map();
createInterface({ input: server.stdout }).on("line", (line) => {
  const message = JSON.parse(line);
  waiting.get(message.id)?.(message);
  waiting.delete(message.id);
});
const send = (message) => server.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
const call = (method, params) =>
  new Promise((resolve, reject) => {
    const id = ++last;
    waiting.set(id, (answer) => (answer.error ? reject(new Error(answer.error.message)) : resolve(answer.result)));
    send({ id, method, params });
  });
/** The text that a tool answers with. */
const tool = async (name, args) => {
  const result = await call("tools/call", { name, arguments: args });
  const text = result.content.map((part) => part.text ?? "").join("\n");
  if (result.isError) throw new Error(`${name}: ${text}`);
  return text;
};
const evaluate = async (body) => {
  const text = await tool("browser_evaluate", { function: `async () => JSON.stringify((await (${body})) ?? null)` });
  const shown = /### Result\n([^\n]*)/.exec(text)?.[1] ?? "null";
  return JSON.parse(JSON.parse(shown) ?? "null");
};
/** The description of the page alone, without what stands around it. */
const describe = async () => {
  const text = await tool("browser_snapshot", {});
  return /```yaml\n([\s\S]*?)\n```/.exec(text)?.[1] ?? "";
};
const sizes = (text) => ({ bytes: Buffer.byteLength(text), tokens: countTokens(text) });

await call("initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "bench", version: "1" } });
send({ method: "notifications/initialized" });

const start = (seed) =>
  `(async () => { Math.seedrandom(${seed}); core.EPISODE_MAX_TIME = 1e6; core.startEpisodeReal();
    while (!WOB_TASK_READY) await new Promise((resolve) => setTimeout(resolve, 20)); })()`;

const commands = {
  /** Sizes of texts that others made. */
  tokens: async ({ texts }) => texts.map(sizes),

  /** Descriptions of pages, each after a script of it. */
  async describe({ pages }) {
    const found = [];
    for (const { url, prepare } of pages) {
      await tool("browser_navigate", { url });
      if (prepare) await evaluate(prepare);
      found.push(sizes(await describe()));
    }
    return found;
  },

  async episodes({ base, tasks, seeds }) {
    const done = { solved: 0, episodes: 0, waits: 0, action_ms: [], look_ms: [], bytes: 0, tokens: 0 };
    for (const task of tasks) {
      for (const seed of seeds) {
        await tool("browser_navigate", { url: `${base}/miniwob/${task}.html` });
        await evaluate(start(seed));
        let described = sizes(await describe());
        for (let step = 0; step < 12; step++) {
          done.bytes += described.bytes;
          done.tokens += described.tokens;
          const next = await evaluate(oracle);
          if (next === null) break;
          if (next.kind === "wait") {
            done.waits++;
            await tool("browser_wait_for", { time: 0.5 });
          } else {
            const began = performance.now();
            if (next.kind === "click") await tool("browser_click", { target: next.selector });
            else await tool("browser_type", { target: next.selector, text: next.text });
            done.action_ms.push(performance.now() - began);
          }
          const began = performance.now();
          described = sizes(await describe());
          done.look_ms.push(performance.now() - began);
        }
        done.episodes++;
        if ((await evaluate("WOB_RAW_REWARD_GLOBAL")) > 0) done.solved++;
      }
    }
    return done;
  },

  async end() {
    server.stdin.end();
    server.kill();
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = await commands[name](options);
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
  if (name === "end") process.exit(0);
}
server.kill();
