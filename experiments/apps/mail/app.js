import { begin, field, make, operate, redraw, values } from "./session.js";

// What is shown; the messages themselves are the session's.
const view = { folder: "inbox", open: null, form: null, search: "" };

function go(change) {
  Object.assign(view, { open: null, form: null }, change);
  redraw();
}

function folders(state) {
  const count = (folder) => Object.values(state.messages).filter((one) => one.folder === folder && !one.read).length;
  const buttons = Object.entries(state.folders).map(([id, { name }]) => {
    const unread = count(id);
    return make("button", { "aria-current": String(view.folder === id), onclick: () => go({ folder: id }) },
      unread > 0 ? `${name} (${unread})` : name);
  });
  return make("nav", { "aria-label": "Folders" },
    make("button", { class: "main", onclick: () => go({ form: { kind: "new" } }) }, "Compose"),
    ...buttons,
    make("button", { onclick: () => go({ form: { kind: "folder" } }) }, "New folder"));
}

function list(state) {
  const wanted = view.search.toLowerCase();
  const found = Object.entries(state.messages)
    .filter(([, one]) => one.folder === view.folder)
    .filter(([, one]) => `${one.subject} ${one.from} ${one.text}`.toLowerCase().includes(wanted))
    .sort(([, one], [, other]) => other.date.localeCompare(one.date));
  const rows = found.map(([id, one]) => {
    const who = view.folder === "sent" ? one.to : one.from;
    return make("button", {
      class: `card message${one.read ? "" : " unread"}`, "aria-label": `${one.subject}, ${who}`,
      "aria-current": String(view.open === id), onclick: () => read(id, one),
    }, make("strong", {}, `${one.starred ? "★ " : ""}${one.subject}`), make("span", { class: "soft" }, `${who} · ${one.date}`));
  });
  const search = make("input", {
    type: "search", "aria-label": "Search", placeholder: "Search this folder", value: view.search,
    onchange: (event) => { view.search = event.target.value; redraw(); },
  });
  return make("section", { class: "list", "aria-label": "Messages" }, make("label", { class: "field" }, search),
    ...(rows.length > 0 ? rows : [make("p", { class: "soft" }, "No messages here.")]));
}

function read(id, message) {
  go({ open: id });
  if (!message.read) operate("mark", { id, read: true });
}

function message(state) {
  const one = state.messages[view.open];
  if (!one) return make("section", { class: "card soft" }, "Choose a message, or write one.");
  const id = view.open;
  const move = (folder, label) => one.folder !== folder
    && make("button", { onclick: () => { go({}); operate("move", { id, folder }, "The message was moved."); } }, label);
  const others = Object.entries(state.folders).filter(([folder]) => !["inbox", "archive", "sent", "trash"].includes(folder));
  return make("article", { class: "card", "aria-label": "Message" },
    make("h2", {}, one.subject),
    make("p", { class: "soft" }, `From ${one.from} to ${one.to}, ${one.date}`),
    make("p", { class: "body" }, one.text),
    make("div", { class: "row" },
      make("button", { class: "main", onclick: () => { view.form = { kind: "reply", id, subject: one.subject }; redraw(); } }, "Reply"),
      move("archive", "Move to Archive"),
      move("inbox", "Move to Inbox"),
      move("trash", "Move to Trash"),
      ...others.map(([folder, { name }]) => move(folder, `Move to ${name}`)),
      make("button", { onclick: () => operate("star", { id, starred: !one.starred }) }, one.starred ? "Remove star" : "Star"),
      make("button", { onclick: () => { go({}); operate("mark", { id, read: false }, "Marked as unread."); } }, "Mark as unread"),
      one.folder === "trash"
        && make("button", { onclick: () => { go({}); operate("delete", { id }, "The message was deleted."); } }, "Delete for good")));
}

const FORMS = {
  new: {
    title: "New message", button: "Send",
    fields: () => [field("To", "to", { type: "email" }), field("Subject", "subject"), field("Text", "text", { multiline: true })],
    send: (form) => operate("send", values(form), "The message was sent."),
  },
  reply: {
    title: "Reply", button: "Send",
    fields: ({ subject }) => [field("Subject", "subject", { value: `Re: ${subject}` }), field("Text", "text", { multiline: true })],
    send: (form, { id }) => operate("reply", { id, ...values(form) }, "The reply was sent."),
  },
  folder: {
    title: "New folder", button: "Create",
    fields: () => [field("Name", "name")],
    send: (form) => operate("create_folder", values(form), "The folder was created."),
  },
};

function form() {
  const { title, button, fields, send } = FORMS[view.form.kind];
  const submit = async (event) => {
    event.preventDefault();
    if (await send(event.target, view.form)) go({});
  };
  return make("form", { class: "card", "aria-label": title, novalidate: true, onsubmit: submit },
    make("h2", {}, title), ...fields(view.form),
    make("div", { class: "row" },
      make("button", { class: "main", type: "submit" }, button),
      make("button", { type: "button", onclick: () => go({}) }, "Cancel")));
}

begin((state) => {
  // A form that is being filled in stays as it is.
  const kept = view.form?.drawn;
  const right = view.form ? kept ?? (view.form.drawn = form()) : message(state);
  document.getElementById("aside").textContent = state.me;
  document.getElementById("main").replaceChildren(folders(state), list(state), right);
});
