// Access to the DOM that a page cannot change.
//
// An isolated world has its own prototypes, so a page's patches of `Element.prototype` are not seen here.
// What does cross over is DOM clobbering: `<form><input name="parentNode"></form>` makes `form.parentNode` an
// input, and `<img name="body">` shadows `document.body`. Every property of nodes is therefore read through
// an accessor taken from its prototype.
//
// Three trees are meant in this folder:
// - the light tree: what `parentNode` and `childNodes` say;
// - the composed tree: the light tree with each open shadow root below its host, after the host's own children. Queries walk it;
// - the flat tree: what is rendered, slotted nodes below their slot. Visibility, roles and names follow it.

const uncurry = Function.prototype.bind.bind(Function.prototype.call);

// Function form of a getter: `getter(Node.prototype, "parentNode")(node)`.
const getter = (prototype, name) => uncurry(Object.getOwnPropertyDescriptor(prototype, name).get);

const nodeType = getter(Node.prototype, "nodeType");
const parentNode = getter(Node.prototype, "parentNode");
const firstChild = getter(Node.prototype, "firstChild");
const nextSibling = getter(Node.prototype, "nextSibling");
const ownerDocument = getter(Node.prototype, "ownerDocument");
const isConnected = getter(Node.prototype, "isConnected");
const textContent = getter(Node.prototype, "textContent");
const getRootNode = uncurry(Node.prototype.getRootNode);
const nodeContains = uncurry(Node.prototype.contains);
const comparePosition = uncurry(Node.prototype.compareDocumentPosition);
const characterData = getter(CharacterData.prototype, "data");

const localName = getter(Element.prototype, "localName");
const namespaceUri = getter(Element.prototype, "namespaceURI");
const shadowRootOf = getter(Element.prototype, "shadowRoot");
const assignedSlotOf = getter(Element.prototype, "assignedSlot");
const textAssignedSlot = getter(Text.prototype, "assignedSlot");
const previousElement = getter(Element.prototype, "previousElementSibling");
const firstElementOfElement = getter(Element.prototype, "firstElementChild");
const firstElementOfDocument = getter(Document.prototype, "firstElementChild");
const firstElementOfFragment = getter(DocumentFragment.prototype, "firstElementChild");
const nextElement = getter(Element.prototype, "nextElementSibling");
const getAttribute = uncurry(Element.prototype.getAttribute);
const hasAttribute = uncurry(Element.prototype.hasAttribute);
const elementMatches = uncurry(Element.prototype.matches);
const boundingRect = uncurry(Element.prototype.getBoundingClientRect);
const clientRects = uncurry(Element.prototype.getClientRects);
const checkVisibility = uncurry(Element.prototype.checkVisibility);
const elementQueryAll = uncurry(Element.prototype.querySelectorAll);
const documentQueryAll = uncurry(Document.prototype.querySelectorAll);
const fragmentQueryAll = uncurry(DocumentFragment.prototype.querySelectorAll);
const documentById = uncurry(Document.prototype.getElementById);
const fragmentById = uncurry(DocumentFragment.prototype.getElementById);
const documentElementOf = getter(Document.prototype, "documentElement");
const documentHeadOf = getter(Document.prototype, "head");
const shadowHost = getter(ShadowRoot.prototype, "host");
const assignedNodes = uncurry(HTMLSlotElement.prototype.assignedNodes);
const computedStyle = window.getComputedStyle.bind(window);

const ELEMENT_NODE = 1;
const TEXT_NODE = 3;
const CDATA_NODE = 4;
const DOCUMENT_NODE = 9;
const FRAGMENT_NODE = 11;

const HTML_NAMESPACE = "http://www.w3.org/1999/xhtml";
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

const isElement = (node) => nodeType(node) === ELEMENT_NODE;
const isText = (node) => {
  const type = nodeType(node);
  return type === TEXT_NODE || type === CDATA_NODE;
};
const isSvg = (element) => namespaceUri(element) === SVG_NAMESPACE;

// Lower-case name of an HTML element, otherwise the local name with the namespace's prefix of this library
// ("svg:a"), so that an SVG `title` is never taken for an HTML `title`.
const tagCache = new Map();
function tag(element) {
  const name = localName(element);
  const namespace = namespaceUri(element);
  if (namespace === HTML_NAMESPACE) return name;
  if (namespace !== SVG_NAMESPACE)
    return namespace === "http://www.w3.org/1998/Math/MathML" ? "math:" + name : "x:" + name;
  let prefixed = tagCache.get(name);
  if (prefixed === undefined) {
    prefixed = "svg:" + name;
    if (tagCache.size < 200) tagCache.set(name, prefixed);
  }
  return prefixed;
}

// What is worked out of one state of the page: texts, roles, names, visibility. It lives as long as the
// outermost call into this library, because the page may change between two calls.
let cache = null;

// Cache of that name for the call under way: a Map.
function cached(name) {
  let map = cache[name];
  if (map === undefined) map = cache[name] = new Map();
  return map;
}

// Runs `work` with caches; nested calls share those of the outermost.
function withCaches(work) {
  if (cache !== null) return work();
  cache = Object.create(null);
  try {
    return work();
  } finally {
    cache = null;
  }
}

// Forgets what was worked out, after an action changed the page within one call.
function dropCaches() {
  if (cache !== null) cache = Object.create(null);
}

// `querySelectorAll` of a document, fragment, shadow root or element.
function queryAll(root, selector) {
  switch (nodeType(root)) {
    case ELEMENT_NODE:
      return elementQueryAll(root, selector);
    case DOCUMENT_NODE:
      return documentQueryAll(root, selector);
    case FRAGMENT_NODE:
      return fragmentQueryAll(root, selector);
    default:
      return [];
  }
}

// First child that is an element, of an element, document or fragment.
function firstElement(node) {
  switch (nodeType(node)) {
    case ELEMENT_NODE:
      return firstElementOfElement(node);
    case DOCUMENT_NODE:
      return firstElementOfDocument(node);
    case FRAGMENT_NODE:
      return firstElementOfFragment(node);
    default:
      return null;
  }
}

// Parent element, or the host for a child of a shadow root; null at the top.
function composedParent(node) {
  const parent = parentNode(node);
  if (parent === null) return null;
  const type = nodeType(parent);
  if (type === ELEMENT_NODE) return parent;
  return type === FRAGMENT_NODE && parent instanceof ShadowRoot ? shadowHost(parent) : null;
}

// Parent in the flat tree: the slot of a slotted node, the host of a child of a shadow root. A child of a
// host that no slot takes has its host as parent, though it is not rendered.
function flatParent(node) {
  const slot = isElement(node)
    ? assignedSlotOf(node)
    : nodeType(node) === TEXT_NODE
      ? textAssignedSlot(node)
      : null;
  return slot ?? composedParent(node);
}

// Children in the flat tree: of a shadow root in place of the host's own, assigned nodes in place of a slot's
// fallback.
function flatChildren(element) {
  const root = shadowRootOf(element);
  if (root === null && localName(element) === "slot" && namespaceUri(element) === HTML_NAMESPACE) {
    const assigned = assignedNodes(element);
    if (assigned.length > 0) return assigned;
  }
  return childrenOf(root ?? element);
}

function childrenOf(node) {
  const children = [];
  for (let child = firstChild(node); child !== null; child = nextSibling(child)) children.push(child);
  return children;
}

// Every element below a root, the root excluded, in the order in which queries list them: those of the root's
// own tree, then the content of each open shadow root in turn.
function elementsBelow(root) {
  const known = cached("elements").get(root);
  if (known !== undefined) return known;
  const found = [];
  let pierced = false;
  const collect = (scope, own) => {
    const list = queryAll(scope, "*");
    const length = list.length;
    const shadows = own === null ? [] : [own];
    for (let at = 0; at < length; at++) {
      const element = list[at];
      found.push(element);
      const shadow = shadowRootOf(element);
      if (shadow !== null) shadows.push(shadow);
    }
    if (shadows.length > 0) pierced = true;
    for (const shadow of shadows) collect(shadow, null);
  };
  collect(root, isElement(root) ? shadowRootOf(root) : null);
  cached("elements").set(root, found);
  cached("pierced").set(root, pierced);
  return found;
}

// Whether an open shadow root is below the root, or is the root's own.
function hasShadowBelow(root) {
  const known = cached("pierced").get(root);
  if (known !== undefined) return known;
  // The whole document answers for every root in it when it has no shadow root at all.
  const owner = ownerDocument(root);
  if (owner !== null && isConnected(root) && cached("pierced").get(owner) === undefined) elementsBelow(owner);
  if (owner !== null && isConnected(root) && cached("pierced").get(owner) === false) return false;
  elementsBelow(root);
  return cached("pierced").get(root);
}

// Whether `ancestor` is `node` or above it in the composed tree.
function composedContains(ancestor, node) {
  if (nodeContains(ancestor, node)) return true;
  for (let at = node; at !== null; at = composedParent(at)) {
    if (at === ancestor) return true;
  }
  return false;
}

// Element of that id in the tree scope of `from` (its document or shadow root).
function elementById(from, id) {
  const root = getRootNode(from);
  switch (nodeType(root)) {
    case DOCUMENT_NODE:
      return documentById(root, id);
    case FRAGMENT_NODE:
      return fragmentById(root, id);
    default:
      return null;
  }
}

const IDL_REFERENCES = {
  "aria-labelledby": "ariaLabelledByElements",
  "aria-describedby": "ariaDescribedByElements",
  "aria-owns": "ariaOwnsElements",
};

// Elements that an attribute of ids refers to, null without the attribute. Attributes set through reflection
// (`element.ariaLabelledByElements = [...]`) are empty strings in the markup.
function referenced(element, name) {
  const ids = getAttribute(element, name);
  if (ids === null) return null;
  if (ids === "") {
    const property = Object.getOwnPropertyDescriptor(Element.prototype, IDL_REFERENCES[name] ?? "");
    return [...((property && property.get.call(element)) ?? [])];
  }
  const found = [];
  for (const id of ids.split(/\s+/)) {
    const target = id === "" ? null : elementById(element, id);
    if (target !== null && !found.includes(target)) found.push(target);
  }
  return found;
}

// Computed style; null where there is none (an element of an inert document).
function styleOf(element) {
  const styles = cached("styles");
  let style = styles.get(element);
  if (style === undefined) {
    style = computedStyle(element);
    styles.set(element, style);
  }
  return style;
}

// Getters of form controls. Each throws for an element of another interface, so the tag is checked first.
const inputType = getter(HTMLInputElement.prototype, "type");
const inputValue = getter(HTMLInputElement.prototype, "value");
const inputChecked = getter(HTMLInputElement.prototype, "checked");
const inputIndeterminate = getter(HTMLInputElement.prototype, "indeterminate");
const textareaValue = getter(HTMLTextAreaElement.prototype, "value");
const optionsOf = getter(HTMLSelectElement.prototype, "options");
const selectMultiple = getter(HTMLSelectElement.prototype, "multiple");
const selectSize = getter(HTMLSelectElement.prototype, "size");
const optionSelected = getter(HTMLOptionElement.prototype, "selected");

const labelControl = getter(HTMLLabelElement.prototype, "control");

const LABELED = {
  input: HTMLInputElement,
  button: HTMLButtonElement,
  meter: HTMLMeterElement,
  output: HTMLOutputElement,
  progress: HTMLProgressElement,
  select: HTMLSelectElement,
  textarea: HTMLTextAreaElement,
};

// `<label>` elements of a control in document order; empty where labels do not apply.
function labelsOf(element) {
  const type = LABELED[tag(element)];
  if (type === undefined) {
    return localName(element).includes("-") ? customElementLabels(element) : [];
  }
  const labels = Object.getOwnPropertyDescriptor(type.prototype, "labels").get.call(element);
  return labels === null ? [] : [...labels];
}

// A form-associated custom element is reached by `for` and by nesting like any control.
function customElementLabels(element) {
  const root = getRootNode(element);
  let controls = cached("customLabels").get(root);
  if (controls === undefined) {
    controls = new Map();
    for (const label of queryAll(root, "label")) {
      const control = labelControl(label);
      if (control === null) continue;
      const labels = controls.get(control);
      if (labels === undefined) controls.set(control, [label]);
      else labels.push(label);
    }
    cached("customLabels").set(root, controls);
  }
  return controls.get(element) ?? [];
}
