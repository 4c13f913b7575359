// Actions on one element: scrolling, the point of a click and what lies there, focus, text, options. Input
// itself comes from the host.

const scrollIntoViewNative = uncurry(Element.prototype.scrollIntoView);

// Where an element is put on each further attempt, to get it from below what sticks to an edge.
const ALIGNMENTS = [null, "end", "center", "start"];

// Scrolls so that the element is seen; at the first attempt only if it is not, at later ones to another edge.
// False without a box.
function scrollTo(element, attempt = 0) {
  if (!isConnected(element)) return false;
  const align = ALIGNMENTS[attempt % ALIGNMENTS.length];
  if (align !== null || !isShown(element)) {
    const place = align ?? "center";
    scrollIntoViewNative(element, { block: place, inline: place, behavior: "instant" });
    dropCaches();
  }
  return clientRects(element).length > 0;
}

// Whether the middle of the element's first box is within the viewport and every scrolling box around it.
function isShown(element) {
  const box = firstBox(element);
  if (box === null) return true;
  const x = (box.left + box.right) / 2;
  const y = (box.top + box.bottom) / 2;
  if (x < 0 || y < 0 || x >= window.innerWidth || y >= window.innerHeight) return false;
  for (
    let at = flatParent(element);
    at !== null && at !== documentElementOf(ownerDocument(at));
    at = flatParent(at)
  ) {
    const { overflowX, overflowY, position } = styleOf(at);
    if (overflowX !== "visible" || overflowY !== "visible") {
      const clipBox = boundingRect(at);
      if (x < clipBox.left || x > clipBox.right || y < clipBox.top || y > clipBox.bottom)
        return tag(at) === "body";
    }
    if (position === "fixed") break;
  }
  return true;
}

// First box with an extent: a link over two lines has two, and the middle of both may be beside it. With
// `display: contents` it is a box of what is in it.
function firstBox(element) {
  for (const box of clientRects(element)) {
    if (box.width * box.height > 0.99) return box;
  }
  if (styleOf(element).display === "contents") {
    const range = new Range();
    range.selectNodeContents(element);
    for (const box of range.getClientRects()) {
      if (box.width * box.height > 0.99) return box;
    }
  }
  return null;
}

// Point to click, in the frame's viewport, after scrolling there: the middle of what is seen of the element,
// or `position` from the inner edge of its border. `{x, y}`, or `{problem}`: "detached", "no_box",
// "outside_viewport".
function clickPointOf(element, position = null, attempt = 0) {
  if (!isConnected(element)) return { problem: "detached" };
  scrollTo(element, attempt);
  if (position !== null) {
    const box = boxOf(element);
    if (box === null) return { problem: "no_box" };
    const style = styleOf(element);
    const x = box.x + (Number.parseFloat(style.borderLeftWidth) || 0) + position.x;
    const y = box.y + (Number.parseFloat(style.borderTopWidth) || 0) + position.y;
    return inViewport(x, y) ? { x, y } : { problem: "outside_viewport" };
  }
  const box = firstBox(element);
  if (box === null) return { problem: "no_box" };
  const left = Math.max(box.left, 0);
  const top = Math.max(box.top, 0);
  const right = Math.min(box.right, window.innerWidth);
  const bottom = Math.min(box.bottom, window.innerHeight);
  if ((right - left) * (bottom - top) <= 0.99 || right <= left) return { problem: "outside_viewport" };
  return { x: (left + right) / 2, y: (top + bottom) / 2 };
}

const inViewport = (x, y) => x >= 0 && y >= 0 && x < window.innerWidth && y < window.innerHeight;

const documentFromPoint = uncurry(Document.prototype.elementFromPoint);
const shadowFromPoint = uncurry(ShadowRoot.prototype.elementFromPoint);

// Deepest element at a point of the frame's viewport, through open shadow roots; null outside of the
// viewport.
function elementAt(x, y) {
  let found = documentFromPoint(document, x, y);
  while (found !== null) {
    const shadow = shadowRootOf(found);
    const inner = shadow === null ? null : shadowFromPoint(shadow, x, y);
    if (inner === null || inner === found || getRootNode(inner) !== shadow) break;
    found = inner;
  }
  return found;
}

// What gets a click at that point if it is not the element: `{description, from}`, described as by
// `describeElement`; `from` names the outermost element that both do not share, null where that is the same.
// Null if the element gets it, by itself, by something in it, or by its label.
function obstacleAt(element, { x, y }) {
  const target = closestSelf(element, CLICK_LIKE) ?? element;
  const hit = elementAt(x, y);
  if (hit === null) return { description: "nothing in the viewport", from: null };
  const path = [];
  for (let at = hit; at !== null; at = flatParent(at)) {
    if (at === element || at === target) return null;
    if (tag(at) === "label" && labelControl(at) === target) return null;
    path.push(at);
  }
  const around = new Set();
  for (let at = element; at !== null; at = flatParent(at)) around.add(at);
  const common = path.findIndex((at) => around.has(at));
  const outermost = common > 0 ? path[common - 1] : hit;
  return { description: describeElement(hit), from: outermost === hit ? null : describeElement(outermost) };
}

const focusHtml = uncurry(HTMLElement.prototype.focus);
const focusSvg = uncurry(SVGElement.prototype.focus);
const blurHtml = uncurry(HTMLElement.prototype.blur);

// Gives the element focus; whether it has it then.
function focusOn(element) {
  if (element instanceof SVGElement) focusSvg(element);
  else if (element instanceof HTMLElement) focusHtml(element);
  return focusedElement(element) === element;
}

function blurFrom(element) {
  if (element instanceof SVGElement) blurSvg(element);
  else if (element instanceof HTMLElement) blurHtml(element);
}
const blurSvg = uncurry(SVGElement.prototype.blur);

const selectInput = uncurry(HTMLInputElement.prototype.select);
const selectTextarea = uncurry(HTMLTextAreaElement.prototype.select);

// Selects the text of a control, or of any other element, and focuses it.
function selectTextOf(element) {
  const control = controlOf(element);
  const name = tag(control);
  if (name === "input") selectInput(control);
  else if (name === "textarea") selectTextarea(control);
  if (name !== "input" && name !== "textarea") {
    const range = new Range();
    range.selectNodeContents(control);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }
  focusOn(control);
}

// Types whose value is set at once, since it is not typed as text.
const SET_TYPES = roleSet("color date time datetime-local month range week");
const TYPED_TYPES = roleSet("text email number password search tel url");

const setInputValue = uncurry(Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set);
const dispatch = uncurry(EventTarget.prototype.dispatchEvent);

// Prepares a control for a text, or sets it. "done": the value is set and its events are sent. "needsinput":
// the control has focus and its text is selected; the host inserts the text, or deletes the selection for an
// empty one. Throws `ActionError` for what takes no text.
function fillWith(element, text) {
  const control = controlOf(element);
  const name = tag(control);
  if (name === "input") {
    const type = inputType(control);
    if (SET_TYPES.has(type)) return setTyped(control, type, text.trim());
    if (!TYPED_TYPES.has(type)) throw new ActionError(`input of type "${type}" cannot be filled`);
    if (type === "number" && Number.isNaN(Number(text.trim())))
      throw new ActionError(`input of type "number" takes no ${JSON.stringify(clip(text, 40))}`);
  } else if (name !== "textarea" && !isContentEditable(control)) {
    throw new ActionError(
      `${describeElement(control)} is not an <input>, <textarea> or [contenteditable] element`,
    );
  }
  selectTextOf(control);
  return "needsinput";
}

function setTyped(control, type, text) {
  const value = type === "color" ? text.toLowerCase() : text;
  focusOn(control);
  if (type === "color" && !CSS.supports("color", value)) throw malformed(type, text);
  if (type === "range" && Number.isNaN(Number.parseFloat(value))) throw malformed(type, text);
  const before = inputValue(control);
  setInputValue(control, value);
  // A range is clamped to its bounds and a color is written out; any other value that is not kept was
  // malformed.
  const isKept = [value, normalizedDate(value)].includes(inputValue(control));
  if (type !== "range" && type !== "color" && !isKept) {
    setInputValue(control, before);
    throw malformed(type, text);
  }
  announceChange(control);
  return "done";
}

// Times are kept in their shortest form.
const normalizedDate = (value) => value.replace(" ", "T").replace(/(:\d\d):00(\.0+)?$/, "$1");

const malformed = (type, text) =>
  new ActionError(`malformed value ${JSON.stringify(clip(text, 40))} for an input of type "${type}"`);

function announceChange(control) {
  dispatch(control, new Event("input", { bubbles: true, composed: true }));
  dispatch(control, new Event("change", { bubbles: true }));
}

const setOptionSelected = uncurry(
  Object.getOwnPropertyDescriptor(HTMLOptionElement.prototype, "selected").set,
);
const optionValue = getter(HTMLOptionElement.prototype, "value");
const optionLabel = getter(HTMLOptionElement.prototype, "label");
const setSelectedIndex = uncurry(
  Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, "selectedIndex").set,
);

// Selects options of a drop-down list, and no others. Each of `wanted` is a text (value or label), or an
// object of `value`, `label` and `index` that all hold. A list without `multiple` takes the first option that
// matches. Answers `{selected: [values]}`; `{missing: wanted}` if one is not there, `{disabled: value}` if an
// option cannot be chosen: nothing is changed then.
function chooseOptions(element, wanted) {
  const control = controlOf(element);
  if (tag(control) !== "select")
    throw new ActionError(`${describeElement(control)} is not a <select> element`);
  const options = [...optionsOf(control)];
  const isMultiple = selectMultiple(control);
  const remaining = new Set(wanted);
  const chosen = [];
  for (const [index, option] of options.entries()) {
    const match = [...remaining].find((one) => optionMatches(option, index, one));
    if (match === undefined) continue;
    if (isDisabled(option)) return { disabled: optionValue(option) };
    chosen.push(option);
    if (!isMultiple) {
      remaining.clear();
      break;
    }
    remaining.delete(match);
  }
  if (remaining.size > 0) return { missing: [...remaining] };
  focusOn(control);
  if (!isMultiple && chosen.length === 0) setSelectedIndex(control, -1);
  for (const option of isMultiple ? options : chosen) setOptionSelected(option, chosen.includes(option));
  announceChange(control);
  return { selected: chosen.map((option) => optionValue(option)) };
}

function optionMatches(option, index, wanted) {
  const value = optionValue(option);
  const label = normalizeSpace(optionLabel(option));
  if (typeof wanted === "string") return wanted === value || normalizeSpace(wanted) === label;
  if (wanted === null || typeof wanted !== "object")
    throw new ActionError("expected a text or {value, label, index} for an option");
  if (!isGiven(wanted.value) && !isGiven(wanted.label) && !isGiven(wanted.index)) {
    throw new ActionError("an option needs a value, label or index");
  }
  if (isGiven(wanted.value) && wanted.value !== value) return false;
  if (isGiven(wanted.label) && normalizeSpace(wanted.label) !== label) return false;
  return !isGiven(wanted.index) || wanted.index === index;
}
