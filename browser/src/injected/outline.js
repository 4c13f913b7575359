// What an agent is told of a page, as a tree: interactive elements with references, the texts and headings
// around them, and containers that mean something. Made from the accessibility semantics of what lies in the
// viewport; rendered by snapshot.js.
//
// Nodes of the outline:
// - `{kind: "text", text}`;
// - `{kind: "item", element, role, name, value, hint, states, options, ref}`: interactive, or an image with a name;
// - `{kind: "box", role, name, states, lines, ref, frame}`: a container; its content is in lines;
// - a line is `{pieces: [nodes], level, mark}`: what stands beside each other; `level` of a heading or 0;
//   `mark` "row", "entry" or null.

// Roles that a user acts on.
const INTERACTIVE = roleSet(
  "button checkbox combobox link listbox menuitem menuitemcheckbox menuitemradio option radio scrollbar searchbox slider spinbutton " +
    "switch tab textbox treeitem",
);
// Containers told even without a name, and those told if they have one.
const TOLD_BOXES = roleSet(
  "alert alertdialog dialog grid listbox log menu menubar radiogroup status table tablist tree treegrid toolbar",
);
const NAMED_BOXES = roleSet(
  "banner complementary contentinfo figure form group list main navigation region search tabpanel article feed application marquee timer",
);

const LINE_ITEMS_MAX = 8;
const OPTIONS_MAX = 12;
const VALUE_MAX = 200;
// Deeper nodes are left out; such a page is made to be in the way.
const OUTLINE_DEPTH_MAX = 1_000;

// Outline of what is below the root: `{lines, frames, outside: {above, below, beside}, modal}`. `clickable`
// are elements that the host knows to have listeners, which no script sees.
function outlineOf(root, { viewportOnly, clickable }) {
  const top = nodeType(root) === DOCUMENT_NODE ? documentElementOf(root) : root;
  const view = { left: 0, top: 0, right: window.innerWidth, bottom: window.innerHeight };
  const modal = nodeType(root) === DOCUMENT_NODE ? topModal(root) : null;
  const build = {
    viewportOnly,
    view,
    outside: { above: 0, below: 0, beside: 0 },
    frames: [],
    clickable: new Set(clickable),
    labels: namedBy(root),
    near: viewportOnly && queryAll(root, "*").length > LARGE_PAGE ? hitElements(view) : null,
  };
  const flow = newFlow();
  const context = {
    clip: view,
    absolute: view,
    depth: 0,
    isSeen: true,
    inside: null,
    muted: null,
    pointer: false,
    box: null,
  };
  if (top !== null) walkElement(modal ?? top, context, flow, build);
  endLine(flow);
  return { lines: flow.lines, frames: build.frames, outside: build.outside, modal: modal !== null };
}

// Pages of more elements are not walked where they lie far from the viewport.
const LARGE_PAGE = 3_000;
const HIT_STEP_PX = 24;

// What is seen at the points of a grid over the viewport, with all that it is in: a fixed box may belong to
// something far away.
function hitElements(view) {
  const near = new Set();
  for (let y = HIT_STEP_PX / 2; y < view.bottom; y += HIT_STEP_PX) {
    for (let x = HIT_STEP_PX / 2; x < view.right; x += HIT_STEP_PX) {
      for (let at = elementAt(x, y); at !== null && !near.has(at); at = flatParent(at)) near.add(at);
    }
  }
  return near;
}

// Whether a box lies more than half a viewport away.
function isFar(box, view) {
  const height = view.bottom / 2;
  const width = view.right / 2;
  return (
    box.width > 0 &&
    (box.bottom < -height ||
      box.top > view.bottom + height ||
      box.right < -width ||
      box.left > view.right + width)
  );
}

// The modal dialog on top: what is behind it takes no input.
function topModal(root) {
  const modals = [...queryAll(root, "dialog:modal")];
  return modals.at(-1) ?? null;
}

// What is carried down: `clip` and `absolute`, what boxes and absolute boxes are clipped by; `isSeen` whether
// the text around is seen; `inside` the item whose name tells the text; `muted` the name of a labelled
// control; `pointer` whether a pointer cursor is inherited; `box` the name of the container.

// Elements whose text is the name of a control: the text is told there.
function namedBy(root) {
  const sources = new Map();
  for (const element of candidates(root, "[aria-labelledby]")) {
    for (const source of referenced(element, "aria-labelledby") ?? []) sources.set(source, element);
  }
  return sources;
}

// Lines under construction.
const newFlow = () => ({ lines: [], pieces: [], level: 0, mark: null });

function endLine(flow) {
  const pieces = flow.pieces;
  for (const piece of pieces) {
    if (piece.kind === "text") piece.text = normalizeSpace(piece.text);
  }
  const kept = pieces.filter((piece) => piece.kind !== "text" || piece.text !== "");
  if (kept.length > 0) flow.lines.push({ pieces: kept, level: flow.level, mark: null });
  flow.pieces = [];
}

function addText(flow, text) {
  const last = flow.pieces.at(-1);
  if (last?.kind === "text") last.text += text;
  else flow.pieces.push({ kind: "text", text });
}

const meets = (box, clip) =>
  box.right > clip.left && box.left < clip.right && box.bottom > clip.top && box.top < clip.bottom;
// Whether a box is at most a line of text away.
const isNear = (box, clip) =>
  box.bottom > clip.top - LINE_PX &&
  box.top < clip.bottom + LINE_PX &&
  box.right > clip.left &&
  box.left < clip.right;
const LINE_PX = 40;
const overlap = (box, clip) => ({
  left: Math.max(box.left, clip.left),
  top: Math.max(box.top, clip.top),
  right: Math.min(box.right, clip.right),
  bottom: Math.min(box.bottom, clip.bottom),
});

function walkElement(element, context, flow, build) {
  const name = tag(element);
  if (NEVER_EXPOSED.has(name) || context.depth > OUTLINE_DEPTH_MAX || hasAttribute(element, "inert")) return;
  if (getAttribute(element, "aria-hidden")?.toLowerCase() === "true") return;
  if (build.near !== null && !build.near.has(element)) {
    const box = boundingRect(element);
    if (isFar(box, build.view)) return countOutside(element, box, build);
  }
  const style = styleOf(element);
  const isPlaced = style.display !== "contents";
  // Not rendered: by `display`, by `content-visibility`, or folded away in a closed `details`.
  if (isPlaced && !checkVisibility(element)) return;
  const box = isPlaced ? boundingRect(element) : null;
  const clip = clipOf(style, context);
  const isSeen = !isPlaced || !build.viewportOnly || (meets(box, clip) && (box.width > 0 || box.height > 0));
  const below = isPlaced ? contextBelow(context, style, box, clip) : { ...context, depth: context.depth + 1 };
  // What is scrolled away with everything in it is not walked; counting it would cost as much as telling it.
  if (!isSeen && below.clip.right <= below.clip.left) return countOutside(element, box, build);
  if (!isSeen && below.clip.bottom <= below.clip.top) return countOutside(element, box, build);
  const isBlock = !style.display.startsWith("inline") && isPlaced;
  const isShown = style.visibility === "visible";
  // A line of text that runs out of the viewport is told whole.
  below.isSeen = isShown && (isSeen || (style.display === "inline" && context.isSeen && isNear(box, clip)));
  if (name === "details" && !hasAttribute(element, "open")) below.isSeen = false;
  if (isBlock || name === "br") endLine(flow);
  visit(element, name, style, { box, isSeen: isSeen && isShown }, below, flow, build);
  if (isBlock) endLine(flow);
}

// What the element's own box is clipped by: absolute and fixed boxes leave the scrolling boxes they are not
// placed in.
function clipOf(style, context) {
  if (style.position === "fixed")
    return { left: 0, top: 0, right: window.innerWidth, bottom: window.innerHeight };
  return style.position === "absolute" ? context.absolute : context.clip;
}

function contextBelow(context, style, box, clip) {
  const isClipping = style.overflowX !== "visible" || style.overflowY !== "visible";
  const inner = isClipping && style.display !== "inline" ? overlap(box, clip) : clip;
  const isAnchor = style.position !== "static" || style.transform !== "none";
  return { ...context, clip: inner, absolute: isAnchor ? inner : context.absolute, depth: context.depth + 1 };
}

// Counted by markup alone: it is told as "more elements that way".
function countOutside(element, box, build) {
  const count = candidates(element, CONTROLS).length + (elementMatches(element, CONTROLS) ? 1 : 0);
  if (count > 0) addOutside(box, count, build);
}

function addOutside(box, count, build) {
  if (box.bottom <= build.view.top) build.outside.above += count;
  else if (box.top >= build.view.bottom) build.outside.below += count;
  else build.outside.beside += count;
}

function visit(element, name, style, { box, isSeen }, context, flow, build) {
  const role = roleOf(element);
  const isPointer = style.cursor === "pointer";
  const below = { ...context, pointer: isPointer };
  if (name === "iframe" || name === "frame") return isSeen ? addFrame(element, flow, build) : undefined;
  if (isInteractive(element, role, name, isPointer, context, build)) {
    if (isSeen) return addItem(element, role, name, below, flow, build);
    if (box !== null && style.visibility === "visible" && box.width > 0) addOutside(box, 1, build);
  }
  if (role === "heading") {
    const level = levelOf(element) || 2;
    endLine(flow);
    flow.level = level;
    walkChildren(element, below, flow, build);
    endLine(flow);
    flow.level = 0;
    return;
  }
  if (role === "img") {
    const label = isSeen && context.inside === null ? nameOf(element) : "";
    if (label !== "") flow.pieces.push({ kind: "item", element, role, name: label, states: [], ref: 0 });
    return;
  }
  if (role === "progressbar" || role === "meter") {
    if (isSeen)
      flow.pieces.push({
        kind: "item",
        element,
        role,
        name: nameOf(element),
        value: rangeValue(element),
        states: [],
        ref: 0,
      });
    return;
  }
  if (isNameOnly(element, name, context, build)) return;
  const control = name === "label" ? labelControl(element) : null;
  if (control !== null && isVisible(control)) below.muted = nameOf(control);
  const boxName = TOLD_BOXES.has(role) || NAMED_BOXES.has(role) ? nameOf(element) : "";
  if (TOLD_BOXES.has(role) || (NAMED_BOXES.has(role) && boxName !== "")) {
    return addBox(element, role, boxName, below, flow, build, isSeen);
  }
  if (role === "row") return addGroup(element, "row", below, flow, build);
  if (role === "listitem" || role === "article") return addGroup(element, "entry", below, flow, build);
  if (role === "separator") endLine(flow);
  const isCell = role === "cell" || role === "gridcell" || role === "columnheader" || role === "rowheader";
  if (isCell) flow.pieces.push({ kind: "cell" });
  walkChildren(element, below, flow, build);
}

// Whether a user acts on the element: by its role, by taking focus, or by a pointer cursor or `onclick` of
// its own. Within something interactive only a role or focus counts. What holds much and has a listener only
// passes on the events of what is in it.
function isInteractive(element, role, name, isPointer, context, build) {
  if (INTERACTIVE.has(role)) return name !== "option";
  if (name === "summary") return isDetailsSummary(element);
  if ((name === "audio" || name === "video") && hasAttribute(element, "controls")) return true;
  if (name === "body" || name === "html") return false;
  const index = getAttribute(element, "tabindex");
  if (index !== null && Number.parseInt(index, 10) >= 0 && !TOLD_BOXES.has(role)) return true;
  const editable = getAttribute(element, "contenteditable");
  if (editable !== null && editable.toLowerCase() !== "false") return true;
  if (context.inside !== null || TOLD_BOXES.has(role)) return false;
  if (name === "label" && labelControl(element) !== null) return false;
  if (build.clickable.has(element) && isNamedWhole(element, role)) return true;
  return hasAttribute(element, "onclick") || (isPointer && !context.pointer);
}

function walkChildren(element, context, flow, build) {
  const isTold = context.isSeen && context.inside === null;
  const isLong = isTold && build.viewportOnly && boundingRect(element).height > build.view.bottom * 1.5;
  const tell = (text) => {
    if (context.muted === null || !context.muted.includes(normalizeSpace(text))) addText(flow, text);
  };
  if (isTold) tell(pseudoText(element, "::before"));
  for (const child of flatChildren(element)) {
    if (isElement(child)) walkElement(child, context, flow, build);
    else if (isTold && isText(child) && (!isLong || isTextSeen(child, context))) tell(characterData(child));
  }
  if (isTold) tell(pseudoText(element, "::after"));
}

function isTextSeen(node, context) {
  const range = new Range();
  range.selectNodeContents(node);
  return meets(range.getBoundingClientRect(), context.clip);
}

// Whether the element only names a control, which tells the text: its label, the legend or caption of what is
// around it.
function isNameOnly(element, name, context, build) {
  let named = null;
  if (name === "label") named = labelControl(element);
  else if (build.labels.has(element)) named = build.labels.get(element);
  if (named !== null && isVisible(named) && nameOf(named).includes(normalizedText(element))) {
    return !elementsBelow(element).some((inner) => INTERACTIVE.has(roleOf(inner)) && isVisible(inner));
  }
  return (
    (name === "legend" || name === "caption" || name === "figcaption") &&
    context.box !== null &&
    context.box === normalizedText(element)
  );
}

function addFrame(element, flow, build) {
  endLine(flow);
  const frame = {
    kind: "box",
    element,
    role: "iframe",
    name: nameOf(element),
    states: [],
    lines: [],
    ref: -1,
    frame: true,
  };
  build.frames.push(frame);
  flow.lines.push({ pieces: [frame], level: 0, mark: null });
}

function addBox(element, role, name, context, flow, build, isSeen) {
  endLine(flow);
  const inner = newFlow();
  walkChildren(element, { ...context, box: name }, inner, build);
  endLine(inner);
  const lines = inner.lines.filter((line) => !isOnlyText(line, name));
  if (lines.length === 0 && !(isSeen && name !== "" && TOLD_BOXES.has(role))) return;
  const box = { kind: "box", element, role, name, states: boxStates(element), lines, ref: 0 };
  flow.lines.push({ pieces: [box], level: 0, mark: null });
}

// Whether a line says nothing but the name of its box.
const isOnlyText = (line, name) =>
  line.pieces.length === 1 && line.pieces[0].kind === "text" && line.pieces[0].text === name;

function boxStates(element) {
  return getAttribute(element, "aria-modal") === "true" || elementMatches(element, ":modal") ? ["modal"] : [];
}

// A row's content stands in one line; the lines of a list's entry begin with a mark.
function addGroup(element, mark, context, flow, build) {
  endLine(flow);
  const inner = newFlow();
  walkChildren(element, context, inner, build);
  endLine(inner);
  const isFlat = inner.lines.every(
    (line) => line.level === 0 && line.pieces.every((piece) => piece.kind !== "box"),
  );
  if (mark === "row" && isFlat) {
    const pieces = inner.lines.flatMap((line) => line.pieces);
    if (pieces.some((piece) => piece.kind !== "cell")) flow.lines.push({ pieces, level: 0, mark });
    return;
  }
  if (inner.lines.length > 1) inner.lines[0].mark = "entry";
  flow.lines.push(...inner.lines);
}

// An interactive element. What it is named by is not told again; interactive elements in it are told after
// it.
function addItem(element, role, name, context, flow, build) {
  const isWhole = isNamedWhole(element, role);
  const label = itemName(element, role);
  const item = {
    kind: "item",
    element,
    role: itemRole(element, role, name),
    name: label,
    value: itemValue(element, name, role),
    hint: hintOf(element, label),
    states: itemStates(element, role, name),
    options: name === "select" ? optionsTold(element) : null,
    ref: -1,
  };
  // A long run of controls is parted, so that a bound can cut between them.
  if (flow.pieces.filter((piece) => piece.kind === "item").length >= LINE_ITEMS_MAX) endLine(flow);
  flow.pieces.push(item);
  if (name === "select" || name === "input" || name === "textarea") return;
  const isComposite = role === "treeitem" || role === "listbox" || !isWhole;
  const inner = isComposite ? newFlow() : flow;
  if (isComposite) endLine(flow);
  walkChildren(element, { ...context, inside: isComposite ? null : item, box: item.name }, inner, build);
  if (!isComposite) return;
  endLine(inner);
  item.lines = inner.lines.filter((line) => !isOnlyText(line, item.name));
}

const WHOLE_TEXT_MAX = 100;
const CONTROLS =
  "a[href], button, input:not([type=hidden]), select, textarea, summary, iframe, [tabindex], [role=button], [role=link], " +
  "[role=checkbox], [role=radio], [role=switch], [role=tab], [role=option], [role=treeitem], [role^=menuitem], [onclick], [contenteditable]";

// Whether the name stands for all that is in the element. A clickable or focusable thing without a role that
// holds much, or other controls, is told with its content below it.
function isNamedWhole(element, role) {
  if (NAMED_BY_CONTENT.has(role) || role === "textbox" || role === "searchbox" || isContentEditable(element))
    return true;
  const text = normalizedText(element);
  return text.length <= WHOLE_TEXT_MAX && candidates(element, CONTROLS).length === 0;
}

function itemRole(element, role, name) {
  if (role !== null && !UNNAMED_ROLES.has(role)) return role;
  if (name === "summary" || name === "audio" || name === "video") return name;
  return isContentEditable(element) ? "textbox" : "clickable";
}

// A clickable thing without a role is named by its text.
function itemName(element, role) {
  const name = nameOf(element);
  if (name !== "" || NAMED_BY_CONTENT.has(role) || EMPTY_NAMED.has(role) || isContentEditable(element))
    return name;
  return isNamedWhole(element, role) ? normalizeSpace(contentOf(element, newWalk("content"))) : "";
}
const EMPTY_NAMED = roleSet("textbox searchbox combobox listbox slider spinbutton scrollbar");

function itemValue(element, name, role) {
  switch (name) {
    case "input": {
      const type = inputType(element);
      if (type === "checkbox" || type === "radio" || BUTTON_TYPES.has(type) || type === "image") return "";
      return type === "password" ? (inputValue(element) === "" ? "" : "•••") : inputValue(element);
    }
    case "textarea":
      return textareaValue(element);
    case "select":
      return selectedOptions(element).map(optionText).join(", ");
    default:
      if (role === "slider" || role === "spinbutton" || role === "scrollbar") return rangeValue(element);
      return role === "textbox" || role === "searchbox" || isContentEditable(element)
        ? normalizeSpace(elementText(element))
        : "";
  }
}

function rangeValue(element) {
  return (
    getAttribute(element, "aria-valuetext") ??
    getAttribute(element, "aria-valuenow") ??
    getAttribute(element, "value") ??
    ""
  );
}

// What an empty field asks for, where its name does not say it; for anything else without a name, what its
// author calls it.
function hintOf(element, name) {
  const placeholder = normalizeSpace(getAttribute(element, "placeholder") ?? "");
  if (placeholder !== "") return placeholder === name ? "" : placeholder;
  if (name !== "" || TYPED_TAGS.has(tag(element)) || !isNamedWhole(element, roleOf(element))) return "";
  const named = ["data-testid", "id", "class"].map((attribute) =>
    normalizeSpace(getAttribute(element, attribute) ?? ""),
  );
  return clip(named.find((text) => text !== "") ?? "", 30);
}
const TYPED_TAGS = roleSet("input select textarea");

function optionsTold(select) {
  const labels = [...optionsOf(select)].map(optionText);
  return labels.length > OPTIONS_MAX
    ? [...labels.slice(0, OPTIONS_MAX), `${labels.length - OPTIONS_MAX} more`]
    : labels;
}

const TOLD_TYPES = roleSet("color date datetime-local file month number range time week");

function itemStates(element, role, name) {
  const states = [];
  if (name === "input" && TOLD_TYPES.has(inputType(element)) && role !== "slider" && role !== "spinbutton")
    states.push(inputType(element));
  const checked = checkState(element);
  if (checked === true) states.push("checked");
  if (checked === "mixed") states.push("mixed");
  const pressed = pressedState(element);
  if (pressed !== null && pressed !== false) states.push(pressed === true ? "pressed" : "mixed");
  const expanded =
    name === "summary" ? hasAttribute(composedParent(element), "open") : expandedState(element);
  if (expanded !== null) states.push(expanded ? "expanded" : "collapsed");
  if (STATE_ROLES.selected.has(role) && isSelected(element)) states.push("selected");
  if (isDisabled(element)) states.push("disabled");
  if (hasAttribute(element, "readonly") || getAttribute(element, "aria-readonly") === "true")
    states.push("readonly");
  if (hasAttribute(element, "required") || getAttribute(element, "aria-required") === "true")
    states.push("required");
  if (getAttribute(element, "aria-invalid") === "true") states.push("invalid");
  const current = getAttribute(element, "aria-current");
  if (current !== null && current !== "false" && current !== "") states.push("current");
  if (focusedElement(element) === element) states.push("focused");
  return states;
}
