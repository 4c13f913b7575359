// Copying and pasting as the keys of a user do it, without the clipboard of the browser: what is copied is returned to the host, and
// what is pasted comes from there.

let shortcutEvent = null;

// Remembers the next key that goes down, to see whether the page prevents what it does.
function expectShortcut() {
  shortcutEvent = null;
  const remember = (event) => {
    if (event.isTrusted) shortcutEvent = event;
  };
  window.addEventListener("keydown", remember, { capture: true, once: true });
}

const shortcutPrevented = () => shortcutEvent !== null && shortcutEvent.defaultPrevented;

function clipboardEvent(type, data) {
  const target = focusDeep() ?? document.body ?? document.documentElement;
  const options = { clipboardData: data, bubbles: true, cancelable: true, composed: true };
  return target === null || target.dispatchEvent(new ClipboardEvent(type, options));
}

// What is selected, `{text, html, editable}`.
function selected() {
  const focused = focusDeep();
  const name = focused === null ? "" : tag(focused);
  if (name === "textarea" || (name === "input" && TYPED_TYPES.has(inputType(focused)))) {
    const { selectionStart: start, selectionEnd: end } = focused;
    const isSecret = name === "input" && inputType(focused) === "password";
    const text = isSecret || start === null ? "" : inputValue(focused).slice(start, end);
    return { text, html: "", editable: !focused.readOnly && !focused.disabled };
  }
  const selection = getSelection();
  if (selection === null || selection.rangeCount === 0) return { text: "", html: "", editable: false };
  const box = document.createElement("div");
  box.append(selection.getRangeAt(0).cloneContents());
  const editable = focused !== null && isContentEditable(focused);
  return { text: selection.toString(), html: box.innerHTML, editable };
}

// `{text, html}`, or null where nothing is copied.
function copySelected(cuts) {
  if (shortcutPrevented()) return null;
  const data = new DataTransfer();
  if (!clipboardEvent(cuts ? "cut" : "copy", data)) {
    const [text, html] = [data.getData("text/plain"), data.getData("text/html")];
    return text === "" && html === "" ? null : { text, html };
  }
  const { text, html, editable } = selected();
  if (text === "" || (cuts && !editable)) return null;
  if (cuts) document.execCommand("delete");
  return { text, html };
}

// Whether the host has to put the text in: the page has not done so itself.
function pasteText(text, html) {
  if (shortcutPrevented()) return false;
  const data = new DataTransfer();
  if (text !== "") data.setData("text/plain", text);
  if (html !== "") data.setData("text/html", html);
  return clipboardEvent("paste", data) && text !== "";
}
