// Runs the rows of rows.jsonl by Playwright, prints what is not as its row expects, with VERBOSE every outcome, and fails if there is
// any.
//
//   npm install playwright-core@1.65.1      (in any folder, which need not be this one)
//   CHROMIUM=/path/to/chromium node path/to/playwright.mjs [GROUP or ID ...]
//
// Chromium is taken from CHROMIUM, otherwise `chromium-headless-shell` from the usual folders. See README.md for what a row says.

import { createRequire } from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const folder = dirname(fileURLToPath(import.meta.url));
const require = createRequire(join(process.cwd(), "from-here.js"));
const { chromium } = (await import(pathToFileURL(require.resolve("playwright-core")).href)).default;

const ORIGIN = "http://conformance.localhost";
// Calls that are expected to run into their deadline get the short one.
const TIMEOUT_MS = 20_000;
const SHORT_TIMEOUT_MS = 400;

const wanted = process.argv.slice(2);
const rows = readFileSync(join(folder, "rows.jsonl"), "utf8")
  .split("\n")
  .filter((line) => line.trim() !== "")
  .map((line) => JSON.parse(line))
  .filter((row) => wanted.length === 0 || wanted.includes(row.group) || wanted.includes(row.id));

const executablePath =
  process.env.CHROMIUM ??
  ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"].find((path) => existsSync(path));
const browser = await chromium.launch({
  executablePath,
  args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
});
// Rows that run at once, each in a context of its own: many of them wait.
const AT_ONCE = 4;

let different = 0;
const waiting = [...rows];
await Promise.all(Array.from({ length: AT_ONCE }, work));
await browser.close();
console.log(`# pass ${rows.length - different}\n# fail ${different}`);
process.exitCode = different === 0 && rows.length > 0 ? 0 : 1;

async function work() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 720 } });
  await context.route(`${ORIGIN}/**`, (route) => {
    const file = join(folder, "pages", new URL(route.request().url()).pathname.slice(1));
    return existsSync(file)
      ? route.fulfill({ path: file, contentType: "text/html; charset=utf-8" })
      : route.fulfill({ status: 404 });
  });
  for (let row = waiting.shift(); row !== undefined; row = waiting.shift()) {
    const outcome = await outcomeOf(context, row);
    const isSame = JSON.stringify(outcome) === JSON.stringify(row.expect);
    if (!isSame) different++;
    if (!isSame || process.env.VERBOSE) console.log(JSON.stringify({ id: row.id, outcome, expect: row.expect }));
  }
  await context.close();
}

async function outcomeOf(context, row) {
  const page = await context.newPage();
  try {
    if (row.page !== undefined) await page.goto(`${ORIGIN}/${row.page}`);
    else await page.setContent(row.html);
    const isLate = row.expect?.error === "timeout";
    page.setDefaultTimeout(isLate ? SHORT_TIMEOUT_MS : TIMEOUT_MS);
    if (row.setup !== undefined) await page.evaluate(row.setup);
    const value = await run(page, row);
    return row.then === undefined ? (value ?? null) : await page.evaluate(row.then);
  } catch (error) {
    const kind = kindOf(error);
    // The outcome says no more than the kind; someone who adds a row wants the message.
    if (kind === "invalid" && process.env.VERBOSE) console.error(row.id, error.message);
    return { error: kind };
  } finally {
    await page.close();
  }
}

function kindOf(error) {
  const message = String(error.message);
  if (message.includes("strict mode violation")) return "strict";
  return /Timeout \d+ms exceeded/.test(message) ? "timeout" : "invalid";
}

function run(page, { locator: steps, call, args = {} }) {
  const target = steps === undefined ? null : locate(page, page, steps);
  switch (call) {
    case "ids":
      return target.evaluateAll((elements) => elements.map((element) => element.id || element.localName));
    case "count":
      return target.count();
    case "all_text_contents":
      return target.allTextContents();
    case "all_inner_texts":
      return target.allInnerTexts();
    case "text_content":
      return target.textContent();
    case "inner_text":
      return target.innerText();
    case "get_attribute":
      return target.getAttribute(args.name);
    case "input_value":
      return target.inputValue();
    case "is_visible":
      return target.isVisible();
    case "is_hidden":
      return target.isHidden();
    case "is_enabled":
      return target.isEnabled();
    case "is_disabled":
      return target.isDisabled();
    case "is_editable":
      return target.isEditable();
    case "is_checked":
      return target.isChecked();
    case "click":
      return target.click(args);
    case "dblclick":
      return target.dblclick(args);
    case "hover":
      return target.hover();
    case "fill":
      return target.fill(args.text);
    case "clear":
      return target.clear();
    case "press":
      return target.press(args.key);
    case "press_sequentially":
      return target.pressSequentially(args.text);
    case "check":
      return target.check();
    case "uncheck":
      return target.uncheck();
    case "set_checked":
      return target.setChecked(args.checked);
    case "select_option":
      return target.selectOption(args.values);
    case "focus":
      return target.focus();
    case "blur":
      return target.blur();
    case "select_text":
      return target.selectText();
    case "scroll_into_view_if_needed":
      return target.scrollIntoViewIfNeeded();
    case "wait_for":
      return target.waitFor(args);
    case "wait_for_function":
      return page.waitForFunction(args.expression).then(() => "done");
    case "wait_for_url":
      return page.waitForURL(args.url).then(() => "done");
    case "wait_for_load_state":
      return page.waitForLoadState(args.state).then(() => "done");
    default:
      throw new Error(`unknown call ${call}`);
  }
}

// The locator of the steps, as a user of Playwright would spell it.
function locate(page, base, steps) {
  return steps.reduce((locator, { engine, body }) => step(page, locator, engine, body), base);
}

function step(page, locator, engine, body) {
  switch (engine) {
    case "css":
      return locator.locator(`css=${body}`);
    case "xpath":
      return locator.locator(`xpath=${body}`);
    case "text":
      return locator.getByText(text(body), exact(body));
    case "label":
      return locator.getByLabel(text(body), exact(body));
    case "placeholder":
      return locator.getByPlaceholder(text(body), exact(body));
    case "alt":
      return locator.getByAltText(text(body), exact(body));
    case "title":
      return locator.getByTitle(text(body), exact(body));
    case "test_id":
      return locator.getByTestId(text(body));
    case "role":
      return byRole(locator, body);
    case "nth":
      return locator.nth(body);
    case "visible":
      return locator.filter({ visible: body });
    case "has_text":
      return locator.filter({ hasText: text(body) });
    case "has_not_text":
      return locator.filter({ hasNotText: text(body) });
    case "has":
      return locator.filter({ has: locate(page, page, body) });
    case "has_not":
      return locator.filter({ hasNot: locate(page, page, body) });
    case "and":
      return locator.and(locate(page, page, body));
    case "or":
      return locator.or(locate(page, page, body));
    default:
      throw new Error(`unknown engine ${engine}`);
  }
}

function byRole(locator, { role, name, description, include_hidden: includeHidden, ...options }) {
  if (name !== undefined) options.name = text(name);
  if (description !== undefined) options.description = text(description);
  if (includeHidden !== undefined) options.includeHidden = includeHidden;
  return locator.getByRole(role, options);
}

function text(body) {
  if (typeof body === "string") return body;
  return body.pattern === undefined ? body.text : new RegExp(body.pattern, body.flags ?? "");
}

function exact(body) {
  return { exact: body?.exact === true };
}
