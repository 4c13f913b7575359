// Queries: a list of steps, each `{"engine": name, "body": ...}`. Engines find elements below what the steps
// before found, or filter it.
//
// | engine | body | finds or keeps |
// |---|---|---|
// | css | selector | elements below; see css.js |
// | xpath | expression | elements, relative to each root; open shadow roots are not entered |
// | text | text | smallest elements with that text |
// | role | {role, name, description, exact, include_hidden}, and states: {checked, disabled, ...} | by role, name, states |
// | label | text | controls and elements by the text of a label, `aria-labelledby` or `aria-label` |
// | placeholder, alt, title | text | by that attribute |
// | test_id | text (whole value), or {"attribute", "value"} | by `data-testid`, or the attribute given |
// | nth | index from 0; negative from the end | one of what was found |
// | visible | true or false | visible or invisible ones |
// | has_text, has_not_text | text | those whose text holds it, or does not |
// | has, has_not | steps | those in which the steps find something, or nothing |
// | and, or | steps | those that the steps find from the query's root as well; those of either, in order of the page |
//
// A text is `"text"` (part of it, case ignored), `{"text", "exact"}`, or `{"pattern", "flags"}`: see
// `textMatcher`.

// A query that makes no sense; its message is for the caller.
class QueryError extends Error {
  constructor(message) {
    super(message);
    this.name = "QueryError";
  }
}

const TEST_ID_ATTRIBUTE = "data-testid";

const FINDERS = {
  css: queryCss,
  xpath: queryXpath,
  text: queryText,
  role: queryRole,
  label: queryLabel,
  placeholder: (root, body) => queryAttribute(root, "placeholder", textMatcher(body)),
  alt: (root, body) => queryAttribute(root, "alt", textMatcher(body)),
  title: (root, body) => queryAttribute(root, "title", textMatcher(body)),
  test_id: queryTestId,
};

const FILTERS = {
  nth: (elements, body) => {
    if (!Number.isInteger(body))
      throw new QueryError(`nth: expected an integer, got ${JSON.stringify(body)}`);
    const element = elements.at(body);
    return element === undefined ? [] : [element];
  },
  visible: (elements, body) => elements.filter((element) => isVisible(element) === (body !== false)),
  has_text: (elements, body) => (isEmptyText(body) ? elements : elements.filter(textFilter(body))),
  has_not_text: (elements, body) => {
    if (isEmptyText(body)) return elements;
    const hasText = textFilter(body);
    return elements.filter((element) => !hasText(element));
  },
  has: (elements, body) => elements.filter((element) => runSteps(body, element).length > 0),
  has_not: (elements, body) => elements.filter((element) => runSteps(body, element).length === 0),
  and: (elements, body, root) => {
    const others = new Set(runSteps(body, root));
    return elements.filter((element) => others.has(element));
  },
  or: (elements, body, root) => inPageOrder([...new Set([...elements, ...runSteps(body, root)])], root),
};

// Elements that the steps find below the root (a document, shadow root or element), each once.
function runSteps(steps, root) {
  if (!Array.isArray(steps) || steps.length === 0)
    throw new QueryError("expected a list of steps, one at least");
  let elements = null;
  for (const step of steps) {
    const engine = step?.engine;
    const find = Object.hasOwn(FINDERS, engine) ? FINDERS[engine] : undefined;
    if (find !== undefined) {
      elements = findBelow(elements ?? [root], find, step.body);
      continue;
    }
    const filter = Object.hasOwn(FILTERS, engine) ? FILTERS[engine] : undefined;
    if (filter === undefined) throw new QueryError(`unknown engine ${JSON.stringify(engine)}`);
    // A filter at the start keeps or drops the root itself.
    elements = filter(elements ?? (isElement(root) ? [root] : elementsBelow(root)), step.body, root);
  }
  return elements;
}

function findBelow(roots, find, body) {
  if (roots.length === 1) return find(roots[0], body);
  const found = new Set();
  for (const root of roots) {
    for (const element of find(root, body)) found.add(element);
  }
  return [...found];
}

// Sorts by the order in the page: an element, its own children, then what its shadow root holds.
function inPageOrder(elements, root) {
  if (!hasShadowBelow(root)) return elements.sort(byPosition);
  const places = new Map();
  const stack = [root];
  while (stack.length > 0) {
    const node = stack.pop();
    places.set(node, places.size);
    for (const child of composedElements(node).reverse()) stack.push(child);
  }
  // What XPath found outside of the root comes last.
  const place = (element) => places.get(element) ?? places.size;
  return elements.sort((left, right) => place(left) - place(right) || byPosition(left, right));
}

const byPosition = (left, right) =>
  comparePosition(left, right) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1;

// An empty text filters nothing.
const isEmptyText = (body) => (typeof body === "string" ? body : body?.text) === "";

function textFilter(body) {
  const matcher = textMatcher(body);
  const isPattern = isPatternText(body);
  return (element) => elementTextMatches(element, matcher, isPattern);
}

// An absolute path below an element starts at the element.
function queryXpath(root, expression) {
  if (typeof expression !== "string") throw new QueryError("xpath: expected an expression");
  const relative =
    expression.startsWith("/") && nodeType(root) !== DOCUMENT_NODE ? `.${expression}` : expression;
  const scope = nodeType(root) === DOCUMENT_NODE ? root : ownerDocument(root);
  let result;
  try {
    result = evaluateXpath(scope, relative, root, null, XPathResult.ORDERED_NODE_ITERATOR_TYPE, null);
  } catch (error) {
    throw new QueryError(`invalid XPath ${JSON.stringify(expression)}: ${error.message}`);
  }
  const found = [];
  for (let node = result.iterateNext(); node !== null; node = result.iterateNext()) {
    if (isElement(node)) found.push(node);
  }
  return found;
}

const evaluateXpath = uncurry(Document.prototype.evaluate);

function queryAttribute(root, name, matcher) {
  return candidates(root, `[${name}]`).filter((element) => {
    const value = getAttribute(element, name);
    return value !== null && matcher.matchesAttribute(value);
  });
}

function queryTestId(root, body) {
  const named = typeof body === "object" && body !== null && "value" in body;
  const wanted = named ? body.value : body;
  const matcher = textMatcher(typeof wanted === "string" ? { text: wanted, exact: true } : wanted);
  return queryAttribute(root, (named ? body.attribute : undefined) ?? TEST_ID_ATTRIBUTE, matcher);
}

// Elements below the root that a plain CSS selector without combinators matches, through shadow roots.
function candidates(root, selector) {
  if (!hasShadowBelow(root)) return [...queryAll(root, selector)];
  return elementsBelow(root).filter((element) => elementMatches(element, selector));
}

function queryLabel(root, body) {
  const matcher = textMatcher(body);
  const isPattern = isPatternText(body);
  return elementsBelow(root).filter((element) => labelMatches(element, matcher, isPattern));
}

// `aria-labelledby` comes before `aria-label`, and that before `<label>`, as for names; each label is
// compared by itself.
function labelMatches(element, matcher, isPattern) {
  const targets = referenced(element, "aria-labelledby");
  if (targets !== null && targets.length > 0)
    return targets.some((target) => elementTextMatches(target, matcher, isPattern));
  const own = getAttribute(element, "aria-label");
  if (own !== null && own.trim() !== "") return matcher.matches(own);
  return labelsOf(element).some((label) => elementTextMatches(label, matcher, isPattern));
}

const ROLE_STATES = {
  checked: checkedState,
  disabled: isDisabled,
  expanded: expandedState,
  level: levelOf,
  pressed: pressedState,
  selected: isSelected,
};

function queryRole(root, body) {
  const options = typeof body === "string" ? { role: body } : body;
  const given = options?.role?.toLowerCase?.() ?? "";
  const role = given === "image" ? "img" : given;
  if (role === "") throw new QueryError("role: expected a role");
  const name = isGiven(options.name) ? textMatcher(options.name, options.exact === true) : null;
  const description = isGiven(options.description)
    ? textMatcher(options.description, options.exact === true)
    : null;
  const states = Object.keys(ROLE_STATES).filter((state) => isGiven(options[state]));
  for (const state of states) {
    if (!STATE_ROLES[state].has(role)) throw new QueryError(`role: "${state}" is not a state of "${role}"`);
  }
  return candidates(root, roleSelector(role)).filter((element) => {
    if (roleOf(element) !== role) return false;
    if (!states.every((state) => stateMatches(state, ROLE_STATES[state](element), options[state])))
      return false;
    if (options.include_hidden !== true && isAriaHidden(element)) return false;
    if (name !== null && !name.matchesNormalized(nameOf(element, options.include_hidden === true)))
      return false;
    return description === null || description.matchesNormalized(descriptionOf(element));
  });
}

const isGiven = (value) => value !== undefined && value !== null;

// A toggle without a state counts as not pressed; what does not expand is neither expanded nor collapsed.
const stateMatches = (name, state, wanted) => (name === "expanded" ? state : (state ?? false)) === wanted;
