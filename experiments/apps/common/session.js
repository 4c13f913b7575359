// The session of this page: what its server knows, and the operations that change it.
const sid = new URLSearchParams(location.search).get("sid") ?? "";
let state = null;
let show = () => {};

async function ask(path, options) {
  const response = await fetch(`${path}${path.includes("?") ? "&" : "?"}sid=${encodeURIComponent(sid)}`, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error?.message ?? `status ${response.status}`);
  return answer;
}

/** Loads the state and calls `render` with it, now and after each change. */
export async function begin(render) {
  show = () => render(state);
  try {
    state = await ask("/state");
    show();
  } catch (error) {
    say(error.message, true);
  }
}

/** Draws the page anew, for what is not part of the state. */
export function redraw() {
  if (state) show();
}

/** Carries out an operation; its answer, or nothing where the server refuses it. */
export async function operate(name, args, done) {
  try {
    const answer = await ask("/operation", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ name, arguments: args }),
    });
    state = answer.state;
    say(done ?? "");
    show();
    return answer;
  } catch (error) {
    say(error.message, true);
    return undefined;
  }
}

/** A line at the foot of the page. */
export function say(text, isError = false) {
  const line = document.getElementById("message");
  line.textContent = text;
  line.className = isError ? "error" : "";
}

/** An element: `make("button", { class: "x", onclick: f }, "text", child)`. Texts stay texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A field with its label. */
export function field(label, name, attributes = {}) {
  const { multiline, ...rest } = attributes;
  const input = make(multiline ? "textarea" : "input", { name, autocomplete: "off", ...rest });
  return make("label", { class: "field" }, make("span", {}, label), input);
}

/** The values of a form, without spaces around them. */
export function values(form) {
  return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
}
