import { begin, field, make, operate, redraw, values } from "./session.js";

const DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

// What is shown; the events themselves are the session's.
const view = { monday: null, open: null, form: null };

function go(change) {
  Object.assign(view, { open: null, form: null }, change);
  redraw();
}

/** The day so many days behind another, both as `2026-03-09`. */
function shifted(date, days) {
  const day = new Date(`${date}T00:00:00Z`);
  day.setUTCDate(day.getUTCDate() + days);
  return day.toISOString().slice(0, 10);
}

function monday(date) {
  return shifted(date, -((new Date(`${date}T00:00:00Z`).getUTCDay() + 6) % 7));
}

function spoken(date) {
  const [, month, day] = date.split("-").map(Number);
  return `${day} ${MONTHS[month - 1]}`;
}

function bar(state) {
  const week = (label, days) => make("button", { onclick: () => go({ monday: shifted(view.monday, days) }) }, label);
  return make("div", { class: "row" },
    week("Previous week", -7),
    make("button", { onclick: () => go({ monday: monday(state.today) }) }, "Today"),
    week("Next week", 7),
    make("h2", {}, `Week of ${spoken(view.monday)}`),
    make("button", { class: "main", onclick: () => go({ form: { title: "New event" } }) }, "New event"));
}

function week(state) {
  const days = DAYS.map((name, index) => {
    const date = shifted(view.monday, index);
    const events = Object.entries(state.events).filter(([, event]) => event.date === date)
      .sort(([, one], [, other]) => one.start.localeCompare(other.start));
    return make("section", { class: `card day${date === state.today ? " today" : ""}`, "aria-label": `${name}, ${spoken(date)}` },
      make("h3", {}, `${name}, ${spoken(date)}`),
      ...events.map(([id, event]) => make("button", {
        class: "event", "aria-label": `${event.title}, ${event.start}`, onclick: () => go({ open: id }),
      }, make("strong", {}, event.title), make("span", { class: "soft" }, `${event.start} to ${event.end}`))));
  });
  return make("div", { class: "week" }, ...days);
}

function detail(state) {
  const event = state.events[view.open];
  if (!event) return null;
  const id = view.open;
  return make("article", { class: "card detail", "aria-label": "Event" },
    make("h2", {}, event.title),
    make("p", {}, `${spoken(event.date)}, ${event.start} to ${event.end}${event.place ? `, ${event.place}` : ""}`),
    make("p", { class: "soft" }, event.guests.length > 0 ? `Guests: ${event.guests.join(", ")}` : "No guests"),
    make("div", { class: "row" },
      make("button", { class: "main", onclick: () => go({ form: { title: "Change event", id, event } }) }, "Change"),
      make("button", { onclick: () => { go({}); operate("remove", { id }, "The event was deleted."); } }, "Delete"),
      make("button", { onclick: () => go({}) }, "Close")));
}

function form() {
  const { title, id, event = {} } = view.form;
  const submit = async (submitted) => {
    submitted.preventDefault();
    const { guests, ...rest } = values(submitted.target);
    const args = { ...rest, guests: guests.split(/[\s,;]+/).filter((guest) => guest !== "") };
    const answer = id
      ? await operate("change", { id, ...args }, "The event was changed.")
      : await operate("create", args, "The event was created.");
    if (answer) go({ monday: monday(args.date) });
  };
  return make("form", { class: "card", "aria-label": title, novalidate: true, onsubmit: submit },
    make("h2", {}, title),
    field("Title", "title", { value: event.title }),
    make("div", { class: "pair" },
      field("Date", "date", { value: event.date, placeholder: "2026-03-09" }),
      field("Start", "start", { value: event.start, placeholder: "09:00" }),
      field("End", "end", { value: event.end, placeholder: "10:00" })),
    field("Place", "place", { value: event.place }),
    field("Guests", "guests", { value: event.guests?.join(", "), placeholder: "ann@example.org, bob@example.org" }),
    make("div", { class: "row" },
      make("button", { class: "main", type: "submit" }, "Save"),
      make("button", { type: "button", onclick: () => go({}) }, "Cancel")));
}

begin((state) => {
  view.monday ??= monday(state.today);
  const kept = view.form?.drawn;
  const below = view.form ? kept ?? (view.form.drawn = form()) : detail(state);
  document.getElementById("aside").textContent = `Today is ${spoken(state.today)}`;
  document.getElementById("main").replaceChildren(...[bar(state), week(state), below].filter(Boolean));
});
