// What is seen and what the accessibility tree leaves out. Visible means: it has a box that is not empty and
// `visibility` is `visible`. Opacity and overlap do not count.

// Whether the element is seen by a user who scrolls to it.
function isVisible(element) {
  const known = cached("visible").get(element);
  if (known !== undefined) return known;
  const visible = computeVisible(element);
  cached("visible").set(element, visible);
  return visible;
}

function computeVisible(element) {
  if (!isConnected(element)) return false;
  if (!checkVisibility(element)) {
    // `display: contents` has no box of its own: it is as visible as what is in it.
    if (styleOf(element).display !== "contents" || !checkVisibilityOfParent(element)) return false;
    return childrenOf(element).some((child) =>
      isElement(child) ? isVisible(child) : isText(child) && hasTextBox(child),
    );
  }
  const style = styleOf(element);
  if (style.visibility !== "visible") return false;
  if (style.display === "contents") {
    return childrenOf(element).some((child) =>
      isElement(child) ? isVisible(child) : isText(child) && hasTextBox(child),
    );
  }
  const box = boundingRect(element);
  return box.width > 0 && box.height > 0;
}

function checkVisibilityOfParent(element) {
  for (let at = flatParent(element); at !== null; at = flatParent(at)) {
    if (checkVisibility(at)) return true;
    if (styleOf(at).display !== "contents") return false;
  }
  return true;
}

// Whether a text node is laid out with an extent.
function hasTextBox(node) {
  const range = new Range();
  range.selectNode(node);
  const box = range.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
}

// Elements that never reach the accessibility tree.
const NEVER_EXPOSED = new Set([
  "style",
  "script",
  "noscript",
  "template",
  "head",
  "meta",
  "link",
  "title",
  "svg:title",
  "svg:desc",
  "svg:defs",
  "svg:metadata",
]);

// Whether assistive technology is not told of the element: not rendered, `visibility: hidden`, or below
// `aria-hidden="true"`.
function isAriaHidden(element) {
  const known = cached("ariaHidden").get(element);
  if (known !== undefined) return known;
  const hidden = computeAriaHidden(element);
  cached("ariaHidden").set(element, hidden);
  return hidden;
}

function computeAriaHidden(element) {
  const name = tag(element);
  if (NEVER_EXPOSED.has(name)) return true;
  if (isBelowAriaHidden(element)) return true;
  // Options of a closed drop-down list have no boxes; they are there when their list is.
  if (name === "option" || name === "optgroup") {
    const list = closestTag(element, "select");
    if (list !== null) return isAriaHidden(list) || styleOf(element).display === "none";
  }
  if (!isConnected(element)) return true;
  if (name === "slot" || styleOf(element).display === "contents") {
    if (checkVisibility(element)) return styleOf(element).visibility !== "visible";
    if (!checkVisibilityOfParent(element)) return true;
    return !flatChildren(element).some((child) =>
      isElement(child) ? !isAriaHidden(child) : isText(child) && hasTextBox(child),
    );
  }
  if (!checkVisibility(element)) return true;
  return styleOf(element).visibility !== "visible";
}

function closestTag(element, name) {
  for (let at = composedParent(element); at !== null; at = composedParent(at)) {
    if (tag(at) === name) return at;
  }
  return null;
}

// Whether the element or what is above it in the flat tree says `aria-hidden="true"`. Walks up to the first
// known ancestor, so a whole document costs one step an element.
function isBelowAriaHidden(element) {
  const known = cached("belowAriaHidden");
  const path = [];
  let hidden = false;
  for (let at = element; at !== null; at = flatParent(at)) {
    const seen = known.get(at);
    if (seen !== undefined) {
      hidden = seen;
      break;
    }
    path.push(at);
    if (getAttribute(at, "aria-hidden")?.toLowerCase() === "true") {
      hidden = true;
      break;
    }
  }
  for (const at of path) known.set(at, hidden);
  return hidden;
}
