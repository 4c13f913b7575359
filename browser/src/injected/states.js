// States of one element as actions and waits ask for them, and how an element is told to a reader.

// An action that the element is not made for; its message is for the caller.
class ActionError extends Error {
  constructor(message) {
    super(message);
    this.name = "ActionError";
  }
}

// What a label leads to is not looked for from these: they take actions themselves.
const TAKES_ACTIONS =
  "a, input, textarea, button, select, [role=link], [role=button], [role=checkbox], [role=radio]";
const TAKES_TEXT = "input, textarea, select";
const BUTTON_LIKE = "button, [role=button], [role=checkbox], [role=radio]";
const CLICK_LIKE = "button, [role=button], a, [role=link]";

const isContentEditable = (element) => element instanceof HTMLElement && contentEditable(element);
const contentEditable = getter(HTMLElement.prototype, "isContentEditable");

function closestSelf(element, selector) {
  return elementMatches(element, selector) ? element : closestMatch(element, selector);
}

// The element that an action on `element` means: the button around an icon, the control of a label.
function controlOf(element) {
  let target = element;
  if (!elementMatches(target, TAKES_TEXT) && !isContentEditable(target))
    target = closestSelf(target, BUTTON_LIKE) ?? target;
  if (!elementMatches(target, TAKES_ACTIONS) && !isContentEditable(target)) {
    const label = closestSelf(target, "label");
    const control = label !== null && tag(label) === "label" ? labelControl(label) : null;
    if (control !== null) return control;
  }
  return target;
}

// Roles that `aria-readonly` is defined for.
const READONLY_ROLES = roleSet(
  "checkbox combobox grid gridcell listbox radiogroup slider spinbutton textbox columnheader rowheader searchbox switch treegrid " +
    "menuitemcheckbox menuitemradio",
);

// Whether the element takes text by a user; null if that does not apply to it.
function editableState(element) {
  if (isDisabled(element)) return false;
  const name = tag(element);
  if (name === "input" || name === "textarea" || name === "select") {
    return !hasAttribute(element, "readonly") && getAttribute(element, "aria-readonly") !== "true";
  }
  if (READONLY_ROLES.has(roleOf(element))) return getAttribute(element, "aria-readonly") !== "true";
  return isContentEditable(element) ? true : null;
}

// `true`, `false`, `"mixed"`, or null for what cannot be checked.
function checkState(element) {
  const name = tag(element);
  const isNative = name === "input" && (inputType(element) === "checkbox" || inputType(element) === "radio");
  return isNative || STATE_ROLES.checked.has(roleOf(element)) ? checkedState(element) : null;
}

// Element that has focus, within shadow roots too.
function focusedElement(element) {
  let root = getRootNode(element);
  if (root instanceof ShadowRoot) return fragmentActive(root);
  return root === ownerDocument(element) ? documentActive(root) : null;
}
const documentActive = getter(Document.prototype, "activeElement");
const fragmentActive = getter(ShadowRoot.prototype, "activeElement");

// All states at once. Those of controls are of what the element leads to (see `controlOf`); null means: does
// not apply.
function statesOf(element) {
  const attached = isConnected(element);
  const control = controlOf(element);
  return {
    attached,
    visible: attached && isVisible(element),
    enabled: !isDisabled(control),
    editable: editableState(control),
    checked: checkState(control),
    focused: attached && focusedElement(element) === element,
    selected: STATE_ROLES.selected.has(roleOf(element)) ? isSelected(element) : null,
    expanded: expandedState(element),
    pressed: pressedState(element),
    in_viewport: attached && isInViewport(element),
  };
}

// Whether a part of the element's box lies within the frame's viewport.
function isInViewport(element) {
  const box = boundingRect(element);
  return box.bottom > 0 && box.right > 0 && box.top < window.innerHeight && box.left < window.innerWidth;
}

// Current value of an input, text area or drop-down list, or of the one that a label is for; null for
// anything else.
function valueOf(element) {
  const control = controlOf(element);
  switch (tag(control)) {
    case "input":
      return inputValue(control);
    case "textarea":
      return textareaValue(control);
    case "select":
      return selectValue(control);
    default:
      return null;
  }
}
const selectValue = getter(HTMLSelectElement.prototype, "value");

// Boxes in the frame's viewport, in CSS pixels; null without a box. `contentBox` is within border and
// padding, which is where the document of an `iframe` begins.
function boxOf(element) {
  if (clientRects(element).length === 0) return null;
  const { x, y, width, height } = boundingRect(element);
  return { x, y, width, height };
}

function contentBoxOf(element) {
  const box = boxOf(element);
  if (box === null) return null;
  const style = styleOf(element);
  const edge = (side) =>
    Number.parseFloat(style[`border${side}Width`]) + Number.parseFloat(style[`padding${side}`]) || 0;
  return {
    x: box.x + edge("Left"),
    y: box.y + edge("Top"),
    width: Math.max(0, box.width - edge("Left") - edge("Right")),
    height: Math.max(0, box.height - edge("Top") - edge("Bottom")),
  };
}

// Frames without a change of box that make an element stable, and how long that is waited for.
const STABLE_MS_MAX = 1_000;

// Promise of whether the element's box was the same in two animation frames one after the other. False once
// `limitMs` have passed with the box still moving, or without animation frames (a page in the background), or
// if the element is detached.
function whenStable(element, limitMs = STABLE_MS_MAX) {
  return new Promise((resolve) => {
    let last = null;
    const timer = setTimeout(() => resolve(false), limitMs);
    const finish = (stable) => {
      clearTimeout(timer);
      resolve(stable);
    };
    const start = performance.now();
    const check = () => {
      if (!isConnected(element)) return finish(false);
      const box = boundingRect(element);
      if (last !== null && ["x", "y", "width", "height"].every((side) => box[side] === last[side]))
        return finish(true);
      last = box;
      if (performance.now() - start > limitMs) return finish(false);
      requestAnimationFrame(check);
    };
    requestAnimationFrame(check);
  });
}

const DESCRIBED_ATTRIBUTES = [
  "id",
  "name",
  "type",
  "role",
  "aria-label",
  "placeholder",
  "href",
  "class",
  "data-testid",
];
const DESCRIBED_MAX = 120;

// One line that a reader knows an element by: `<button id="save">Save</button>`. At most about 200
// characters.
function describeElement(element) {
  const name = localName(element);
  let attributes = "";
  for (const attribute of DESCRIBED_ATTRIBUTES) {
    const value = getAttribute(element, attribute);
    if (value === null) continue;
    const part = ` ${attribute}=${JSON.stringify(clip(value, 40))}`;
    if (attributes.length + part.length <= DESCRIBED_MAX) attributes += part;
  }
  if (VOID_TAGS.has(name)) return `<${name}${attributes}>`;
  return `<${name}${attributes}>${clip(normalizedText(element), 50)}</${name}>`;
}
const VOID_TAGS = roleSet("area base br col embed hr img input link meta source track wbr");

// At most `max` characters; what is cut off is told by an ellipsis.
function clip(text, max) {
  if (text.length <= max) return text;
  const end = text.charCodeAt(max - 2) >> 10 === 0x36 ? max - 2 : max - 1;
  return `${text.slice(0, end)}…`;
}
