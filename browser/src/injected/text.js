// Texts of elements, and how a query's text is compared with them.

// Elements whose text nobody reads.
const UNREAD = new Set(["script", "style", "noscript"]);

const BUTTON_TYPES = new Set(["submit", "button", "reset"]);

// Depth from which a text is taken as `textContent`, so that a tree of any depth fits the stack.
const TEXT_DEPTH_MAX = 1500;

// Without zero-width and soft-hyphen characters, white space collapsed to one space and trimmed.
function normalizeSpace(text) {
  return text
    .replace(/[\u200b\u00ad]/g, "")
    .trim()
    .replace(/\s+/g, " ");
}

// Text of an element as queries see it: text nodes below it, open shadow roots too, hidden ones too; the
// value of a button made by `input`; nothing of scripts and styles.
function elementText(element, depth = 0) {
  const texts = cached("texts");
  let text = texts.get(element);
  if (text !== undefined) return text;
  const name = tag(element);
  if (UNREAD.has(name) || isInHead(element)) {
    text = "";
  } else if (name === "input") {
    text = BUTTON_TYPES.has(inputType(element)) ? inputValue(element) : "";
  } else if (depth > TEXT_DEPTH_MAX) {
    text = textContent(element);
  } else {
    text = childText(element, depth);
    const shadow = shadowRootOf(element);
    if (shadow !== null) text += childText(shadow, depth);
  }
  texts.set(element, text);
  return text;
}

function childText(parent, depth) {
  let text = "";
  for (let child = firstChild(parent); child !== null; child = nextSibling(child)) {
    const type = nodeType(child);
    if (type === TEXT_NODE || type === CDATA_NODE) text += characterData(child);
    else if (type === ELEMENT_NODE) text += elementText(child, depth + 1);
  }
  return text;
}

// The document's head is not text of the page.
function isInHead(element) {
  const head = documentHeadOf(ownerDocument(element));
  return head !== null && nodeContains(head, element);
}

// `elementText` with white space normalized.
function normalizedText(element) {
  const texts = cached("normalized");
  let text = texts.get(element);
  if (text === undefined) {
    text = normalizeSpace(elementText(element));
    texts.set(element, text);
  }
  return text;
}

// A test of texts, made of `"text"`, `{text, exact}` or `{pattern, flags}` (a regular expression of
// JavaScript).
//
// - `matches(raw)`: whether a text with its white space as in the page matches. Texts are compared with white space normalized,
//   as a substring without regard to case, or whole and with regard to case if `exact`; patterns see the raw text.
// - `matchesNormalized(text)`: the same for a text normalized before. Patterns see the normalized text.
// - `matchesAttribute(value)`: attributes are compared as they stand.
// - `mayContain(text)`: false only if no part of that normalized text can match, which ends a search early.
function textMatcher(wanted, exact = false) {
  if (typeof wanted === "string") wanted = { text: wanted, exact };
  if (wanted !== null && typeof wanted === "object") {
    if (isPatternText(wanted)) return patternMatcher(wanted.pattern, wanted.flags ?? "");
    if (typeof wanted.text === "string") {
      return wanted.exact === true ? exactMatcher(wanted.text) : substringMatcher(wanted.text);
    }
  }
  throw new QueryError(
    `expected a text, {"text", "exact"} or {"pattern", "flags"}, got ${JSON.stringify(wanted)}`,
  );
}

function patternMatcher(source, flags) {
  let pattern;
  try {
    pattern = new RegExp(source, flags.replace(/[gy]/g, ""));
  } catch (error) {
    throw new QueryError(`invalid regular expression /${source}/${flags}: ${error.message}`);
  }
  const matches = (text) => pattern.test(text);
  return { matches, matchesNormalized: matches, matchesAttribute: matches, mayContain: () => true };
}

function exactMatcher(text) {
  const wanted = normalizeSpace(text);
  return {
    matches: (raw) => normalizeSpace(raw) === wanted,
    matchesNormalized: (seen) => seen === wanted,
    matchesAttribute: (value) => value === text,
    mayContain: (seen) => seen.includes(wanted),
  };
}

function substringMatcher(text) {
  const wanted = normalizeSpace(text).toLowerCase();
  const plain = text.toLowerCase();
  const contains = (seen) => seen.toLowerCase().includes(wanted);
  return {
    matches: (raw) => contains(normalizeSpace(raw)),
    matchesNormalized: contains,
    matchesAttribute: (value) => value.toLowerCase().includes(plain),
    mayContain: contains,
  };
}

// Whether an element's own text matches: normalized for texts, raw for patterns.
function elementTextMatches(element, matcher, isPattern) {
  return isPattern
    ? matcher.matches(elementText(element))
    : matcher.matchesNormalized(normalizedText(element));
}

// Smallest elements whose text matches, the root (if it is an element) and those below it: an element is left
// out if one of its children matches.
function queryText(root, wanted) {
  const matcher = textMatcher(wanted);
  const isPattern = isPatternText(wanted);
  const verdicts = new Map();
  const matches = (element) => {
    let verdict = verdicts.get(element);
    if (verdict === undefined) {
      verdict = !isUnread(element) && elementTextMatches(element, matcher, isPattern);
      verdicts.set(element, verdict);
    }
    return verdict;
  };
  const found = new Set();
  // An explicit stack: trees of any depth are walked. `mayContain` prunes, except for patterns.
  const stack = isElement(root) ? [root] : composedElements(root);
  while (stack.length > 0) {
    const element = stack.pop();
    if (isUnread(element) || (!isPattern && !matcher.mayContain(normalizedText(element)))) continue;
    const children = composedElements(element);
    if (matches(element) && !children.some(matches)) found.add(element);
    for (const child of children) stack.push(child);
  }
  const listed = elementsBelow(root).filter((element) => found.has(element));
  return found.has(root) ? [root, ...listed] : listed;
}

const isPatternText = (wanted) =>
  wanted !== null && typeof wanted === "object" && typeof wanted.pattern === "string";

function isUnread(element) {
  return UNREAD.has(tag(element)) || isInHead(element);
}

// Element children, then those of an open shadow root.
function composedElements(node) {
  const children = [];
  for (let child = firstElement(node); child !== null; child = nextElement(child)) children.push(child);
  const shadow = isElement(node) ? shadowRootOf(node) : null;
  if (shadow !== null) {
    for (let child = firstElement(shadow); child !== null; child = nextElement(child)) children.push(child);
  }
  return children;
}
