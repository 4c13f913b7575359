// CSS selectors that look through open shadow roots.
//
// Native `querySelectorAll` does the work where it can: no shadow root below the root, none of the
// pseudo-classes below. Otherwise a selector is split into its compounds; each is matched natively, and
// combinators are followed here, where the parent of a shadow root's child is the host. As with Playwright,
// every part of a selector is looked for below the root of the query.
//
// Pseudo-classes beyond CSS: `:visible`, `:has-text("text")`, `:text("text")`, `:text-is("text")`,
// `:text-matches("pattern", "flags")`, `:nth-match(selector, n)`.

const OWN_PSEUDOS = new Set(["visible", "has-text", "text", "text-is", "text-matches", "nth-match"]);
// Pseudo-classes with selectors as arguments; matched here only where what they hold, or a shadow root, asks
// for it.
const SELECTOR_PSEUDOS = new Set(["is", "where", "not", "has"]);

// Parsed selectors by text, for all queries of this page. Bounded: a host that makes up selectors without end
// empties it.
const parsedSelectors = new Map();
const PARSED_MAX = 500;

// A parsed selector: `{alternatives, native}`. An alternative is `{text, parts}`; a part `{combinator,
// compound}`, the first with "" or the combinator a relative selector starts with; a compound `{css, pseudos,
// scope}`.
function parseCss(text) {
  let parsed = parsedSelectors.get(text);
  if (parsed === undefined) {
    parsed = parseSelector(text);
    if (parsedSelectors.size >= PARSED_MAX) parsedSelectors.clear();
    parsedSelectors.set(text, parsed);
  }
  return parsed;
}

function parseSelector(text) {
  const alternatives = splitSelector(text, (char) => char === ",").map((alternative) =>
    parseComplex(alternative.trim(), text),
  );
  const usesOwn = (alternative) =>
    alternative.parts.some((part) => part.compound.pseudos.some((pseudo) => pseudo.own));
  const parsed = { alternatives, native: !alternatives.some(usesOwn) };
  // Invalid CSS is reported before anything is searched.
  const probe = document.createDocumentFragment();
  for (const alternative of alternatives) {
    for (const { compound } of alternative.parts) {
      const css = parsed.native
        ? compound.css + compound.pseudos.map((pseudo) => pseudo.text).join("")
        : compound.css;
      try {
        fragmentQueryAll(probe, css === "" ? "*" : css);
      } catch {
        throw new QueryError(`invalid CSS selector ${JSON.stringify(text)}`);
      }
    }
  }
  return parsed;
}

// Splits at top level: outside of strings, brackets and parentheses.
function splitSelector(text, separates) {
  const pieces = [];
  let start = 0;
  for (let at = 0; at < text.length; at++) {
    const next = skipNested(text, at);
    if (next > at) {
      at = next - 1;
    } else if (separates(text[at])) {
      pieces.push(text.slice(start, at));
      start = at + 1;
    }
  }
  pieces.push(text.slice(start));
  return pieces;
}

// End of the escape, string, bracket or parenthesis that starts here; the same place where none does.
function skipNested(text, at) {
  const char = text[at];
  if (char === "\\") return at + 2;
  if (char === '"' || char === "'") {
    for (let end = at + 1; end < text.length; end++) {
      if (text[end] === "\\") end++;
      else if (text[end] === char) return end + 1;
    }
    return text.length;
  }
  const close = char === "(" ? ")" : char === "[" ? "]" : null;
  if (close === null) return at;
  let end = at + 1;
  while (end < text.length && text[end] !== close) end = Math.max(skipNested(text, end), end + 1);
  return Math.min(end + 1, text.length);
}

function parseComplex(text, whole) {
  const parts = [];
  let combinator = "";
  let at = 0;
  const isSpace = (char) => /\s/.test(char);
  while (at < text.length) {
    if (isSpace(text[at])) {
      if (combinator === "" && parts.length > 0) combinator = " ";
      at++;
    } else if (">+~".includes(text[at])) {
      if (combinator.trim() !== "") throw new QueryError(`invalid CSS selector ${JSON.stringify(whole)}`);
      combinator = text[at++];
    } else {
      let end = at;
      while (end < text.length && !isSpace(text[end]) && !">+~".includes(text[end]))
        end = Math.max(skipNested(text, end), end + 1);
      parts.push({ combinator, compound: parseCompound(text.slice(at, end)) });
      combinator = "";
      at = end;
    }
  }
  if (parts.length === 0 || combinator.trim() !== "")
    throw new QueryError(`invalid CSS selector ${JSON.stringify(whole)}`);
  return { text, parts };
}

// Splits a compound into plain CSS and the pseudo-classes that may have to be matched here.
function parseCompound(text) {
  const pseudos = [];
  let css = "";
  let scope = false;
  let at = 0;
  while (at < text.length) {
    const found = /^:([\w-]+)/.exec(text.slice(at));
    if (found !== null && text[at + 1] !== ":") {
      const name = found[1].toLowerCase();
      const open = at + found[0].length;
      const end = text[open] === "(" ? skipNested(text, open) : open;
      const argument = end > open ? text.slice(open + 1, end - 1) : null;
      if (OWN_PSEUDOS.has(name)) {
        pseudos.push(ownPseudo(name, argument, text.slice(at, end)));
        at = end;
        continue;
      }
      if (SELECTOR_PSEUDOS.has(name) && argument !== null) {
        const inner = parseCss(argument);
        pseudos.push({ name, inner, own: !inner.native, text: text.slice(at, end) });
        at = end;
        continue;
      }
      if (name === "scope") scope = true;
      css += text.slice(at, end);
      at = end;
      continue;
    }
    const next = Math.max(skipNested(text, at), at + 1);
    css += text.slice(at, next);
    at = next;
  }
  return { css, pseudos, scope };
}

function ownPseudo(name, argument, text) {
  if (name === "visible") return { name, own: true, text };
  if (argument === null || argument.trim() === "") throw new QueryError(`"${text}" needs an argument`);
  const words = splitSelector(argument, (char) => char === ",").map((word) => word.trim());
  if (name === "nth-match") {
    const index = Number(words.pop());
    if (!Number.isInteger(index) || index < 1)
      throw new QueryError(`"${text}" needs a selector and a number from 1`);
    return { name, own: true, text, inner: parseCss(words.join(",")), index };
  }
  const [first, second] = words.map(unquoteCss);
  if (name === "text-matches")
    return { name, own: true, text, wanted: { pattern: first, flags: second ?? "" } };
  return { name, own: true, text, wanted: { text: first, exact: name === "text-is" } };
}

function unquoteCss(text) {
  if (!/^(["']).*\1$/s.test(text)) return text;
  return text.slice(1, -1).replace(/\\([0-9a-f]{1,6}\s?|[^])/gi, (_, code) => {
    return /^[0-9a-f]/i.test(code)
      ? String.fromCodePoint(Math.min(Number.parseInt(code, 16), 0x10ffff))
      : code;
  });
}

// Elements below the root that match, those of a list of selectors in order of the page; the root itself only
// as `:scope`, and its siblings where a selector starts with `+` or `~`.
function queryCss(root, text) {
  if (typeof text !== "string") throw new QueryError("css: expected a selector");
  const selector = parseCss(text);
  const first = selector.alternatives.map(({ parts }) => parts[0].combinator);
  const isBeside = first.some((combinator) => combinator === "+" || combinator === "~");
  const isSelf = selector.alternatives.some(({ parts }) => parts.at(-1).compound.scope);
  if (selector.native && !isBeside && !isSelf && !hasShadowBelow(root))
    return [...queryAll(root, nativeSelector(root, selector, text))];
  const below = elementsBelow(root);
  const self = isSelf && isElement(root) ? [root] : [];
  const beside = isBeside && isElement(root) ? followingElements(root) : [];
  const found = [...self, ...below, ...beside].filter((element) => matchesSelector(element, selector, root));
  return selector.alternatives.length > 1 ? inPageOrder(found, root) : found;
}

// Later siblings with what is below each.
function followingElements(element) {
  const found = [];
  for (let at = nextElement(element); at !== null; at = nextElement(at)) found.push(at, ...elementsBelow(at));
  return found;
}

// The selector for native search; below an element every part is tied to it by `:scope`.
function nativeSelector(root, selector, text) {
  if (
    nodeType(root) === DOCUMENT_NODE &&
    !selector.alternatives.some((alternative) => alternative.parts[0].combinator !== "")
  )
    return text;
  const tie = ({ text, parts }) =>
    mentionsScope(parts) || (parts.length === 1 && parts[0].combinator === "") ? text : `:scope ${text}`;
  return selector.alternatives.map(tie).join(", ");
}

const mentionsScope = (parts) => parts.some((part) => part.compound.scope);

function matchesSelector(element, selector, scope) {
  return selector.alternatives.some((alternative) =>
    matchesFrom(element, alternative.parts, alternative.parts.length - 1, scope),
  );
}

// Whether the element matches part `index` and what stands before it matches around the element.
function matchesFrom(element, parts, index, scope) {
  const { combinator, compound } = parts[index];
  if (!matchesCompound(element, compound, scope)) return false;
  if (index === 0) {
    if (combinator === ">") return composedParent(element) === scopeElement(scope);
    if (combinator === "+") return previousElement(element) === scopeElement(scope);
    return combinator !== "~" || precedes(scopeElement(scope), element);
  }
  switch (combinator) {
    case ">": {
      const parent = composedParent(element);
      return (
        parent !== null &&
        isInScope(parent, parts[index - 1], scope) &&
        matchesFrom(parent, parts, index - 1, scope)
      );
    }
    case "+": {
      const previous = previousElement(element);
      return previous !== null && matchesFrom(previous, parts, index - 1, scope);
    }
    case "~":
      for (let at = previousElement(element); at !== null; at = previousElement(at)) {
        if (matchesFrom(at, parts, index - 1, scope)) return true;
      }
      return false;
    default:
      for (let at = composedParent(element); at !== null; at = composedParent(at)) {
        if (!isInScope(at, parts[index - 1], scope)) return false;
        if (matchesFrom(at, parts, index - 1, scope)) return true;
        if (at === scope) return false;
      }
      return false;
  }
}

// The root of the query takes part only as `:scope`.
const isInScope = (element, part, scope) => element !== scope || part.compound.scope;

const scopeElement = (scope) => (nodeType(scope) === DOCUMENT_NODE ? documentElementOf(scope) : scope);

function precedes(earlier, element) {
  for (let at = previousElement(element); at !== null; at = previousElement(at)) {
    if (at === earlier) return true;
  }
  return false;
}

function matchesCompound(element, compound, scope) {
  if (compound.css !== "") {
    if (compound.scope) {
      if (element !== scopeElement(scope)) return false;
      const rest = compound.css.replace(/:scope/gi, "");
      if (rest !== "" && !elementMatches(element, rest)) return false;
    } else if (!elementMatches(element, compound.css)) {
      return false;
    }
  }
  return compound.pseudos.every((pseudo) => matchesPseudo(element, pseudo, scope));
}

function matchesPseudo(element, pseudo, scope) {
  switch (pseudo.name) {
    case "visible":
      return isVisible(element);
    case "has-text":
      return !isUnread(element) && textMatcher(pseudo.wanted).matchesNormalized(normalizedText(element));
    case "text":
    case "text-is":
    case "text-matches":
      return cachedMatches(pseudo, scope, () => queryText(ownerDocument(element), pseudo.wanted)).has(
        element,
      );
    case "nth-match":
      return cachedList(pseudo, scope)[pseudo.index - 1] === element;
    case "is":
    case "where":
      return matchesSelector(element, pseudo.inner, scope);
    case "not":
      return !matchesSelector(element, pseudo.inner, scope);
    default:
      return hasMatch(element, pseudo.inner);
  }
}

// Matches of one pseudo-class for one query, found once.
function cachedMatches(pseudo, scope, find) {
  const known = cached("pseudos").get(pseudo);
  if (known !== undefined && known.scope === scope) return known.elements;
  const elements = new Set(find());
  cached("pseudos").set(pseudo, { scope, elements });
  return elements;
}

function cachedList(pseudo, scope) {
  const matches = () =>
    elementsBelow(scope).filter((element) => matchesSelector(element, pseudo.inner, scope));
  return [...cachedMatches(pseudo, scope, matches)];
}

// `:has()`: something below (or, by its combinator, beside) the element matches relative to it.
function hasMatch(element, selector) {
  if (elementsBelow(element).some((inner) => matchesSelector(inner, selector, element))) return true;
  const beside = selector.alternatives.filter(
    ({ parts }) => parts[0].combinator === "+" || parts[0].combinator === "~",
  );
  if (beside.length === 0) return false;
  const matches = (inner) => beside.some(({ parts }) => matchesFrom(inner, parts, parts.length - 1, element));
  return followingElements(element).some(matches);
}
