// Playwright as a peer of the bench `browser`: reads a command a line (JSON), answers with a line. `browser.rs` does the same with the
// library of this repository, in the same run, on the same pages and with the same Chromium.
//
//   CHROMIUM=/path node browser_playwright.mjs   with `playwright-core` below the working folder

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "from-here.js"));
const { chromium } = (await import(pathToFileURL(require.resolve("playwright-core")).href)).default;
const oracle = readFileSync(join(dirname(fileURLToPath(import.meta.url)), "miniwob_oracle.js"), "utf8");
const launch = () =>
  chromium.launch({ executablePath: process.env.CHROMIUM, args: process.getuid?.() === 0 ? ["--no-sandbox"] : [] });
const viewport = { width: 1280, height: 1000 };

const timed = async (samples, call) => {
  const began = performance.now();
  await call();
  samples.push(performance.now() - began);
};

let browser = await launch();

const commands = {
  /** Calls one after the other; times of each in ms. */
  async primitives({ html, calls }) {
    const times = { launch: [], round_trip: [], evaluate: [], click: [], locator_click: [], type: [], context: [], png: [], jpeg: [] };
    for (let number = 0; number < 3; number++) {
      let started;
      await timed(times.launch, async () => (started = await launch()));
      await started.close();
    }
    for (let number = 0; number < calls / 10; number++) {
      let context;
      await timed(times.context, async () => {
        context = await browser.newContext({ viewport });
        await context.newPage();
      });
      await context.close();
    }
    const context = await browser.newContext({ viewport });
    const page = await context.newPage();
    await page.setContent(html);
    const session = await browser.newBrowserCDPSession();
    for (let number = 0; number < calls * 5; number++) {
      await timed(times.round_trip, () => session.send("Browser.getVersion"));
      await timed(times.evaluate, () => page.evaluate("1 + 1"));
    }
    await session.detach();
    for (let number = 0; number < calls; number++) {
      await timed(times.click, () => page.mouse.click(20, 20));
      await timed(times.type, () => page.keyboard.type("hello world"));
      await timed(times.locator_click, () => page.locator("button").click());
    }
    for (let number = 0; number < calls / 5; number++) {
      await timed(times.png, () => page.screenshot());
      await timed(times.jpeg, () => page.screenshot({ type: "jpeg", quality: 80 }));
    }
    await context.close();
    return times;
  },

  /** Episodes of MiniWoB++ by the oracle: after each action the wait named, then what an agent would look at. */
  async episodes({ base, tasks, seeds, wait, look }) {
    const context = await browser.newContext({ viewport });
    const page = await context.newPage();
    page.setDefaultTimeout(5_000);
    const done = { solved: 0, episodes: 0, waits: 0, action_ms: [], look_ms: [] };
    for (const task of tasks) {
      for (const seed of seeds) {
        await page.goto(`${base}/miniwob/${task}.html`);
        await page.evaluate(`Math.seedrandom(${seed}); core.EPISODE_MAX_TIME = 1e6; core.startEpisodeReal()`);
        await page.waitForFunction("WOB_TASK_READY");
        for (let step = 0; step < 12; step++) {
          const next = await page.evaluate(oracle);
          if (next === null) break;
          if (next.kind === "wait") {
            done.waits++;
            await page.waitForTimeout(500);
            continue;
          }
          await timed(done.action_ms, async () => {
            const target = page.locator(next.selector);
            await (next.kind === "click" ? target.click() : target.fill(next.text));
            if (wait === "fixed") await page.waitForTimeout(500);
            if (wait === "network-idle") await page.waitForLoadState("networkidle");
          });
          if (look) await timed(done.look_ms, () => page.locator("body").ariaSnapshot());
        }
        done.episodes++;
        if ((await page.evaluate("WOB_RAW_REWARD_GLOBAL")) > 0) done.solved++;
      }
    }
    await context.close();
    return done;
  },

  /** Steps of an agent (a click, a description, a picture) in some contexts at once; how many in how many seconds. */
  async steps({ url, contexts, seconds }) {
    const pages = [];
    for (let number = 0; number < contexts; number++) {
      const page = await (await browser.newContext({ viewport })).newPage();
      await page.goto(url);
      pages.push(page);
    }
    const began = performance.now();
    const end = began + seconds * 1_000;
    let steps = 0;
    const work = async (page) => {
      for (let number = 0; performance.now() < end; number++) {
        await page.locator("button.step").nth(number % 8).click();
        await page.locator("body").ariaSnapshot();
        await page.screenshot({ type: "jpeg", quality: 80 });
        steps++;
      }
    };
    await Promise.all(pages.map(work));
    const took = (performance.now() - began) / 1_000;
    await Promise.all(pages.map((page) => page.context().close()));
    return { steps, seconds: took };
  },

  async end() {
    await browser.close();
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
await browser.close();
