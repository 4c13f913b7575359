(name) => {
  const call = globalThis[name];
  delete globalThis[name];
  if (call === undefined) return;
  const refuse = (text) => {
    throw new DOMException(text, "NotAllowedError");
  };
  const keep = (text, html) => call("write", text, html).catch((error) => refuse(error.message));
  const wrap = (type, method, work) => {
    const native = type?.prototype[method];
    if (native === undefined) return;
    const apply = (target, self, parameters) => work(() => Reflect.apply(target, self, parameters), parameters, self);
    Object.defineProperty(type.prototype, method, {
      value: new Proxy(native, { apply }),
      writable: true,
      enumerable: true,
      configurable: true,
    });
  };
  const part = async (item, type) => (item.types.includes(type) ? (await item.getType(type)).text() : "");
  wrap(globalThis.Clipboard, "writeText", async (native, [text]) => {
    await native();
    await keep(String(text), "");
  });
  wrap(globalThis.Clipboard, "write", async (native, [items]) => {
    await native();
    const [item] = items;
    await keep(await part(item, "text/plain"), await part(item, "text/html"));
  });
  const read = async () => (await call("read")) ?? refuse("Read permission denied.");
  wrap(globalThis.Clipboard, "readText", async () => (await read()).text);
  wrap(globalThis.Clipboard, "read", async () => {
    const { text, html } = await read();
    const parts = [];
    if (text !== "") parts.push(["text/plain", new Blob([text], { type: "text/plain" })]);
    if (html !== "") parts.push(["text/html", new Blob([html], { type: "text/html" })]);
    return parts.length === 0 ? [] : [new ClipboardItem(Object.fromEntries(parts))];
  });
  wrap(globalThis.Permissions, "query", async (native, [descriptor]) => {
    const status = await native();
    if (descriptor?.name === "clipboard-read" && (await call("readable"))) {
      Object.defineProperty(status, "state", { value: "granted" });
    }
    return status;
  });
  // Keys that copy and paste come without their number.
  const numbers = { KeyC: 67, KeyV: 86, KeyX: 88, Insert: 45, Delete: 46 };
  const known = (event) => (event.isTrusted && event.code in numbers ? numbers[event.code] : 0);
  for (const [type, property] of [[KeyboardEvent, "keyCode"], [UIEvent, "which"]]) {
    const own = Object.getOwnPropertyDescriptor(type.prototype, property);
    const apply = (target, self) => Reflect.apply(target, self, []) || (self instanceof KeyboardEvent ? known(self) : 0);
    Object.defineProperty(type.prototype, property, { ...own, get: new Proxy(own.get, { apply }) });
  }
  // `document.execCommand("copy")` of the page itself; the keys of a user do not come here.
  const copied = (event) => {
    if (!event.isTrusted) return;
    const data = event.clipboardData;
    const isOwn = event.defaultPrevented;
    const focused = document.activeElement;
    const field = focused?.selectionStart === undefined ? null : focused;
    const selected = field === null ? String(getSelection() ?? "") : field.value.slice(field.selectionStart, field.selectionEnd);
    const text = isOwn ? data.getData("text/plain") : selected;
    const html = isOwn ? data.getData("text/html") : "";
    if (text !== "" || html !== "") void call("write", text, html).catch(() => {});
  };
  addEventListener("copy", copied);
  addEventListener("cut", copied);
}
