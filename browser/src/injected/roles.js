// Roles of elements: the `role` attribute by WAI-ARIA 1.2, otherwise what HTML-AAM and SVG-AAM give the
// element.

// Roles that a `role` attribute may name. Abstract ones (`widget`, `landmark`, ...) are not among them.
const ROLES = new Set(
  (
    "alert alertdialog application article banner blockquote button caption cell checkbox code columnheader combobox " +
    "complementary contentinfo definition deletion dialog directory document emphasis feed figure form generic grid gridcell " +
    "group heading img insertion link list listbox listitem log main mark marquee math menu menubar menuitem menuitemcheckbox " +
    "menuitemradio meter navigation none note option paragraph presentation progressbar radio radiogroup region row rowgroup " +
    "rowheader scrollbar search searchbox separator slider spinbutton status strong subscript superscript switch tab table " +
    "tablist tabpanel term textbox time timer toolbar tooltip tree treegrid treeitem"
  ).split(" "),
);

// Attributes that every role supports; with one of them an element cannot be presentational.
const GLOBAL_ATTRIBUTES = [
  "aria-atomic",
  "aria-braillelabel",
  "aria-brailleroledescription",
  "aria-busy",
  "aria-controls",
  "aria-current",
  "aria-describedby",
  "aria-description",
  "aria-details",
  "aria-dropeffect",
  "aria-flowto",
  "aria-grabbed",
  "aria-hidden",
  "aria-keyshortcuts",
  "aria-live",
  "aria-owns",
  "aria-relevant",
  "aria-roledescription",
];
// Global as well, except for roles that may not be named.
const NAMING_ATTRIBUTES = ["aria-label", "aria-labelledby"];

// Roles whose name the author may not give.
const UNNAMED_ROLES = new Set(
  "caption code deletion emphasis generic insertion none paragraph presentation strong subscript superscript".split(
    " ",
  ),
);

const LANDMARK_SCOPES =
  "article, aside, main, nav, section, [role=article], [role=complementary], [role=main], " +
  "[role=navigation], [role=region]";

const INPUT_ROLES = {
  button: "button",
  checkbox: "checkbox",
  color: "textbox",
  date: "textbox",
  "datetime-local": "textbox",
  email: "textbox",
  file: "button",
  hidden: null,
  image: "button",
  month: "textbox",
  number: "spinbutton",
  password: "textbox",
  radio: "radio",
  range: "slider",
  reset: "button",
  search: "searchbox",
  submit: "button",
  tel: "textbox",
  text: "textbox",
  time: "textbox",
  url: "textbox",
  week: "textbox",
};
// Types of `input` that a `list` attribute makes a combobox.
const LIST_TYPES = new Set(["email", "search", "tel", "text", "url"]);

// A row of the table of implicit roles: which roles it may give, and which for an element.
const maybe = (roles, find) => ({ roles, find });
const always = (role) => maybe([role], () => role);
const unlessScoped = (role) =>
  maybe([role], (element) => (closestMatch(element, LANDMARK_SCOPES) === null ? role : null));
const ifNamed = (role) => maybe([role], (element) => (hasAuthorName(element) ? role : null));
const hasLink = (element) =>
  hasAttribute(element, "href") || (isSvg(element) && hasAttribute(element, "xlink:href"));
const ifLink = maybe(["link"], (element) => (hasLink(element) ? "link" : null));

const IMPLICIT_ROLES = {
  a: ifLink,
  address: always("group"),
  area: ifLink,
  article: always("article"),
  aside: always("complementary"),
  blockquote: always("blockquote"),
  button: always("button"),
  caption: always("caption"),
  code: always("code"),
  datalist: always("listbox"),
  dd: always("definition"),
  del: always("deletion"),
  details: always("group"),
  dfn: always("term"),
  dialog: always("dialog"),
  dt: always("term"),
  em: always("emphasis"),
  fieldset: always("group"),
  figure: always("figure"),
  footer: unlessScoped("contentinfo"),
  form: ifNamed("form"),
  h1: always("heading"),
  h2: always("heading"),
  h3: always("heading"),
  h4: always("heading"),
  h5: always("heading"),
  h6: always("heading"),
  header: unlessScoped("banner"),
  hgroup: always("group"),
  hr: always("separator"),
  html: always("document"),
  img: maybe(["img", "presentation"], imageRole),
  input: maybe(
    ["button", "checkbox", "combobox", "radio", "searchbox", "slider", "spinbutton", "textbox"],
    inputRole,
  ),
  ins: always("insertion"),
  li: always("listitem"),
  main: always("main"),
  mark: always("mark"),
  "math:math": always("math"),
  menu: always("list"),
  meter: always("meter"),
  nav: always("navigation"),
  ol: always("list"),
  optgroup: always("group"),
  option: always("option"),
  output: always("status"),
  p: always("paragraph"),
  progress: always("progressbar"),
  search: always("search"),
  section: ifNamed("region"),
  select: maybe(["combobox", "listbox"], (element) =>
    selectMultiple(element) || selectSize(element) > 1 ? "listbox" : "combobox",
  ),
  strong: always("strong"),
  sub: always("subscript"),
  sup: always("superscript"),
  "svg:a": ifLink,
  "svg:svg": always("img"),
  table: always("table"),
  tbody: always("rowgroup"),
  td: maybe(["cell", "gridcell"], cellRole),
  textarea: always("textbox"),
  tfoot: always("rowgroup"),
  th: maybe(["columnheader", "rowheader"], headerRole),
  thead: always("rowgroup"),
  time: always("time"),
  tr: always("row"),
  ul: always("list"),
};

// CSS selector of what may have the role: any element with a `role` attribute, elements that have it by
// themselves, and those that inherit a presentational one.
const roleSelectors = new Map();
function roleSelector(role) {
  let selector = roleSelectors.get(role);
  if (selector === undefined) {
    const isPresentational = role === "none" || role === "presentation";
    const gives = ([name, row]) =>
      row.roles.includes(role) || (isPresentational && Object.hasOwn(OWNED_BY, name));
    const names = Object.entries(IMPLICIT_ROLES)
      .filter(gives)
      .map(([name]) => name.replace(/^\w+:/, ""));
    selector = ["[role]", ...names].join(",");
    if (roleSelectors.size < 200) roleSelectors.set(role, selector);
  }
  return selector;
}

// An empty `alt` makes an image decorative, unless something else names it or it can be reached.
function imageRole(element) {
  if (getAttribute(element, "alt") !== "") return "img";
  return getAttribute(element, "title") || hasGlobalAttribute(element, "img") || isFocusable(element)
    ? "img"
    : "presentation";
}

function inputRole(element) {
  const type = inputType(element);
  if (LIST_TYPES.has(type) && hasAttribute(element, "list")) {
    const list = elementById(element, getAttribute(element, "list"));
    if (list !== null && tag(list) === "datalist") return "combobox";
  }
  const role = INPUT_ROLES[type];
  return role === undefined ? "textbox" : role;
}

// A cell of a grid or treegrid is a gridcell.
function cellRole(element) {
  const table = closestTag(element, "table");
  const role = table === null ? null : explicitRole(table);
  return role === "grid" || role === "treegrid" ? "gridcell" : "cell";
}

// `th` is the header of a column or row by its `scope`, otherwise by its place: of a column where its row has
// headers only.
function headerRole(element) {
  const scope = getAttribute(element, "scope")?.toLowerCase();
  if (scope === "row" || scope === "rowgroup") return "rowheader";
  if (scope === "col" || scope === "colgroup") return "columnheader";
  const row = composedParent(element);
  if (row === null || tag(row) !== "tr") return "columnheader";
  for (let cell = firstElement(row); cell !== null; cell = nextElement(cell)) {
    if (cell !== element && tag(cell) === "td") return "rowheader";
  }
  return "columnheader";
}

// Closest ancestor (of the composed tree) that matches, the element excluded.
function closestMatch(element, selector) {
  for (let at = composedParent(element); at !== null; at = composedParent(at)) {
    if (elementMatches(at, selector)) return at;
  }
  return null;
}

// Whether the author names the element: by `aria-labelledby`, `aria-label` or `title`.
function hasAuthorName(element) {
  if ((getAttribute(element, "aria-label") ?? "").trim() !== "") return true;
  if ((referenced(element, "aria-labelledby") ?? []).length > 0) return true;
  return (getAttribute(element, "title") ?? "").trim() !== "";
}

function hasGlobalAttribute(element, role) {
  if (GLOBAL_ATTRIBUTES.some((name) => hasAttribute(element, name))) return true;
  return !UNNAMED_ROLES.has(role) && NAMING_ATTRIBUTES.some((name) => hasAttribute(element, name));
}

const FOCUSABLE_TAGS = new Set(["button", "select", "textarea"]);

// Whether the element takes focus: a control that is not disabled, a link, or anything with `tabindex` or
// editable content.
function isFocusable(element) {
  if (isNativelyDisabled(element)) return false;
  const name = tag(element);
  if (FOCUSABLE_TAGS.has(name) || (name === "summary" && isDetailsSummary(element))) return true;
  if (name === "input") return inputType(element) !== "hidden";
  if (name === "a" || name === "area" || name === "svg:a") {
    if (hasLink(element)) return true;
  }
  const index = getAttribute(element, "tabindex");
  if (index !== null && !Number.isNaN(Number.parseInt(index, 10))) return true;
  const editable = getAttribute(element, "contenteditable");
  return editable !== null && editable.toLowerCase() !== "false";
}

// Whether a `summary` is the one that opens its `details`.
function isDetailsSummary(element) {
  const parent = composedParent(element);
  if (parent === null || tag(parent) !== "details") return false;
  for (let child = firstElement(parent); child !== null; child = nextElement(child)) {
    if (tag(child) === "summary") return child === element;
  }
  return false;
}

// First role of the `role` attribute that exists; null without one.
function explicitRole(element) {
  const value = getAttribute(element, "role");
  if (value === null) return null;
  for (const word of value.split(/\s+/)) {
    const role = word.toLowerCase();
    if (role === "image") return "img";
    if (ROLES.has(role)) return role;
  }
  return null;
}

// Elements that lose their role when their list or table is presentational, and what they may be below.
const OWNED_BY = {
  li: ["ol", "ul", "menu"],
  tbody: ["table"],
  thead: ["table"],
  tfoot: ["table"],
  tr: ["tbody", "thead", "tfoot", "table"],
  td: ["tr"],
  th: ["tr"],
};

// Role of an element; null for one without a role (`div`, `span`).
function roleOf(element) {
  const roles = cached("roles");
  let role = roles.get(element);
  if (role === undefined) {
    role = computeRole(element);
    roles.set(element, role);
  }
  return role;
}

function computeRole(element) {
  const explicit = explicitRole(element);
  if (explicit === null) {
    const implicit = implicitRole(element);
    const inherited = implicit === null ? null : inheritedPresentation(element);
    return inherited !== null && !keepsRole(element, implicit) ? inherited : implicit;
  }
  if (explicit === "none" || explicit === "presentation") {
    const implicit = implicitRole(element);
    return keepsRole(element, implicit) ? implicit : explicit;
  }
  return explicit;
}

function implicitRole(element) {
  const name = tag(element);
  return Object.hasOwn(IMPLICIT_ROLES, name) ? IMPLICIT_ROLES[name].find(element) : null;
}

// A presentational role is not taken from what has a global ARIA attribute or can have focus.
function keepsRole(element, implicit) {
  return hasGlobalAttribute(element, implicit) || isFocusable(element);
}

// "none" or "presentation" if the list or table that the element belongs to says so and keeps it, otherwise
// null.
function inheritedPresentation(element) {
  let at = element;
  for (;;) {
    const owners = OWNED_BY[tag(at)];
    if (owners === undefined) return null;
    const parent = composedParent(at);
    if (parent === null || !owners.includes(tag(parent))) return null;
    const role = explicitRole(parent);
    if (role === "none" || role === "presentation")
      return keepsRole(parent, implicitRole(parent)) ? null : role;
    if (role !== null) return null;
    at = parent;
  }
}
