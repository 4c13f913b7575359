// Accessible names and descriptions by the W3C's Accessible Name and Description Computation 1.2; the letters
// of its steps stand beside the code. Native sources are those of HTML-AAM and SVG-AAM.

// Roles named by their content.
const NAMED_BY_CONTENT = roleSet(
  "button cell checkbox columnheader gridcell heading link menuitem menuitemcheckbox menuitemradio option radio row rowheader " +
    "switch tab tooltip treeitem",
);

// Roles whose content is read as part of what is around them: the above and those that structure text.
// Anything else, as a dialog or a group within a link, has a name of its own and is left out of another's.
const READ_THROUGH = new Set([
  ...NAMED_BY_CONTENT,
  ...roleSet(
    "caption code contentinfo definition deletion emphasis generic insertion list listitem mark none paragraph presentation region " +
      "rowgroup strong subscript superscript table term time",
  ),
]);

// Elements in a name, at most. A hostile page cannot make naming it endless.
const NAME_NODES_MAX = 20_000;

// Name of an element, empty without one. With `hidden`, hidden content is read as well.
function nameOf(element, hidden = false) {
  const names = cached(hidden ? "hiddenNames" : "names");
  let name = names.get(element);
  if (name === undefined) {
    name = computeName(element, hidden);
    names.set(element, name);
  }
  return name;
}

function computeName(element, hidden) {
  if (UNNAMED_ROLES.has(roleOf(element) ?? "")) return "";
  try {
    return normalizeSpace(textAlternative(element, newWalk("target", hidden)));
  } catch (error) {
    // Nesting deeper than the stack: the plain text is the best that is left.
    if (!(error instanceof RangeError)) throw error;
    return normalizeSpace(textContent(element));
  }
}

// What a computation carries along: `seen` elements against cycles, `hidden` whether hidden nodes count, and
// how the current node was reached: "target" (the element to be named), "content", "labelledby", "label",
// "describedby".
function newWalk(via = "target", hidden = false) {
  return { seen: new Set(), hidden, via, nested: via };
}

function textAlternative(element, walk) {
  if (walk.seen.has(element) || walk.seen.size > NAME_NODES_MAX) return "";
  const isTarget = walk.via === "target";
  // 2A: hidden nodes count only when they, or what they are in, were referred to.
  if (!walk.hidden && isAriaHidden(element) && !isTarget) {
    walk.seen.add(element);
    return "";
  }
  // 2B: a reference is followed once, not from within a reference.
  if (walk.nested !== "labelledby" && walk.nested !== "describedby") {
    const targets = referenced(element, "aria-labelledby");
    if (targets !== null && targets.length > 0) {
      const text = joinReferenced(targets, "labelledby");
      if (text !== "") {
        walk.seen.add(element);
        return text;
      }
    }
  }
  const role = roleOf(element);
  const name = tag(element);
  // 2C: a control within a name contributes its value.
  if (!isTarget) {
    const value = embeddedValue(element, role, name, walk);
    if (value !== null) {
      walk.seen.add(element);
      return value;
    }
  }
  // 2D.
  const label = (getAttribute(element, "aria-label") ?? "").trim();
  if (label !== "") {
    walk.seen.add(element);
    return label;
  }
  // 2E.
  if (role !== "presentation" && role !== "none") {
    const native = nativeName(element, name, walk);
    if (native !== null) {
      walk.seen.add(element);
      return native;
    }
  }
  // 2F: by content.
  if (isReadByContent(role, name, walk.via)) {
    walk.seen.add(element);
    const text = contentOf(element, { ...walk, via: "content" });
    if (text.trim() !== "") return text;
  }
  // 2I: the tooltip.
  walk.seen.add(element);
  return tooltipOf(element, name);
}

// Roles that are named by their content, whatever was referred to, and text within such content.
function isReadByContent(role, name, via) {
  if (via === "target") return NAMED_BY_CONTENT.has(role) || name === "summary";
  return via !== "content" || role === null || READ_THROUGH.has(role);
}

function joinReferenced(targets, via) {
  const texts = targets.map((target) => textAlternative(target, newWalk(via, isAriaHidden(target))));
  return texts
    .map((text) => text.trim())
    .filter((text) => text !== "")
    .join(" ");
}

function tooltipOf(element, name) {
  if (name === "iframe" || !isSvg(element)) return (getAttribute(element, "title") ?? "").trim();
  return (getAttribute(element, "xlink:title") ?? "").trim();
}

// Value of a control that stands within a name; null for anything else.
function embeddedValue(element, role, name, walk) {
  if (role === "textbox" || role === "searchbox") {
    if (name === "input") return inputValue(element);
    return name === "textarea" ? textareaValue(element) : textContent(element);
  }
  if (role === "combobox" || role === "listbox") {
    if (name === "select")
      return selectedOptions(element)
        .map((option) => optionText(option))
        .join(" ");
    if (name === "input") return inputValue(element);
    const scope = role === "combobox" ? [element, ...(referenced(element, "aria-owns") ?? [])] : [element];
    const chosen = scope
      .flatMap((part) => elementsBelow(part))
      .filter((option) => roleOf(option) === "option" && isSelected(option));
    if (chosen.length > 0)
      return chosen.map((option) => textAlternative(option, { ...walk, via: "content" })).join(" ");
    return "";
  }
  if (
    role === "slider" ||
    role === "spinbutton" ||
    role === "scrollbar" ||
    role === "progressbar" ||
    role === "meter"
  ) {
    const spoken = getAttribute(element, "aria-valuetext") ?? getAttribute(element, "aria-valuenow");
    if (spoken !== null) return spoken;
    if (name === "input") return inputValue(element);
    return name === "meter" || name === "progress" ? (getAttribute(element, "value") ?? "") : "";
  }
  return null;
}

function selectedOptions(select) {
  return [...optionsOf(select)].filter((option) => optionSelected(option));
}

// What a drop-down list shows for an option.
function optionText(option) {
  return normalizeSpace(getAttribute(option, "label") || textContent(option));
}

const PLACEHOLDER_TYPES = new Set(["text", "password", "number", "search", "tel", "email", "url"]);

// Name from the element's own markup; null where that gives none and the next step applies.
function nativeName(element, name, walk) {
  switch (name) {
    case "input":
      return inputName(element);
    case "textarea":
      return labelledName(element) ?? titleOr(element, getAttribute(element, "placeholder"));
    case "select":
    case "meter":
    case "output":
    case "progress":
    case "button":
      return labelledName(element);
    case "fieldset":
      return childName(element, "legend", walk);
    case "figure":
      return childName(element, "figcaption", walk);
    case "table":
      return childName(element, "caption", walk) ?? nonEmpty(getAttribute(element, "summary"));
    case "img":
    case "area":
      return nonEmpty(getAttribute(element, "alt"));
    case "optgroup":
    case "option":
      return nonEmpty(getAttribute(element, "label"));
    case "svg:svg":
    case "svg:g":
    case "svg:a":
    case "svg:symbol":
    case "svg:use":
      return childName(element, "svg:title", { ...walk, hidden: true });
    default:
      return localName(element).includes("-") ? labelledName(element) : null;
  }
}

function nonEmpty(text) {
  return text === null || text.trim() === "" ? null : text;
}

function titleOr(element, other) {
  return nonEmpty(getAttribute(element, "title")) ?? nonEmpty(other);
}

function inputName(element) {
  const type = inputType(element);
  if (BUTTON_TYPES.has(type)) {
    const labelled = labelledName(element);
    if (labelled !== null) return labelled;
    const value = nonEmpty(inputValue(element));
    if (value !== null) return value;
    if (type === "submit") return "Submit";
    return type === "reset" ? "Reset" : null;
  }
  if (type === "image") {
    return (
      labelledName(element) ?? nonEmpty(getAttribute(element, "alt")) ?? titleOr(element, null) ?? "Submit"
    );
  }
  const labelled = labelledName(element);
  if (labelled !== null) return labelled;
  if (type === "file") return "Choose File";
  return PLACEHOLDER_TYPES.has(type) ? titleOr(element, getAttribute(element, "placeholder")) : null;
}

// Text of the `<label>`s of a control; null if they say nothing.
function labelledName(element) {
  const texts = labelsOf(element).map((label) => {
    const walk = newWalk("label", isAriaHidden(label));
    walk.seen.add(element);
    return textAlternative(label, walk).trim();
  });
  return nonEmpty(texts.filter((text) => text !== "").join(" "));
}

// Text of the first child of that tag.
function childName(element, wanted, walk) {
  for (let child = firstElement(element); child !== null; child = nextElement(child)) {
    if (tag(child) === wanted) {
      const hidden = walk.hidden || wanted === "svg:title";
      return nonEmpty(contentOf(child, { ...walk, hidden, via: "content" }));
    }
  }
  return null;
}

// Texts of what is in an element, its generated content and what it owns. Boxes that are not inline stand
// apart.
function contentOf(element, walk) {
  const parts = [pseudoText(element, "::before")];
  for (const child of flatChildren(element)) {
    // A node that a slot takes is read at the slot.
    parts.push(nodeText(child, walk));
  }
  for (const owned of referenced(element, "aria-owns") ?? []) parts.push(nodeText(owned, walk));
  parts.push(pseudoText(element, "::after"));
  return parts.join("");
}

function nodeText(node, walk) {
  if (isText(node)) return characterData(node);
  if (!isElement(node)) return "";
  const text = textAlternative(node, walk);
  const name = tag(node);
  if (name === "br") return " ";
  const display = isSvg(node) && name !== "svg:svg" ? "block" : styleOf(node).display;
  return display === "inline" || (display === "none" && text === "") ? text : ` ${text} `;
}

// Text that a style sheet adds before or after an element's content.
function pseudoText(element, pseudo) {
  const style = computedStyle(element, pseudo);
  const content = style?.content ?? "none";
  if (
    content === "none" ||
    content === "normal" ||
    content === "" ||
    style.display === "none" ||
    style.visibility === "hidden"
  ) {
    return "";
  }
  const text = generatedText(content, element);
  return text !== "" && style.display !== "inline" ? ` ${text} ` : text;
}

// Strings and `attr()` of a computed `content`, or the alternative after a slash.
function generatedText(content, element) {
  const parts = content.match(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\/|attr\([^)]*\)/gs) ?? [];
  const slash = parts.indexOf("/");
  return (slash < 0 ? parts : parts.slice(slash + 1)).map((part) => generatedPart(part, element)).join("");
}

function generatedPart(part, element) {
  if (part.startsWith("attr(")) return getAttribute(element, part.slice(5, -1).trim()) ?? "";
  return part.slice(1, -1).replace(/\\([0-9a-f]{1,6}\s?|.)/gis, (_, code) => {
    const value = /^[0-9a-f]/i.test(code) ? Number.parseInt(code, 16) : Number.NaN;
    return Number.isNaN(value) ? code : value <= 0x10ffff ? String.fromCodePoint(value) : "";
  });
}

// Description of an element: `aria-describedby`, `aria-description`, otherwise the title where it is not the
// name already.
function descriptionOf(element) {
  const descriptions = cached("descriptions");
  let description = descriptions.get(element);
  if (description === undefined) {
    description = computeDescription(element);
    descriptions.set(element, description);
  }
  return description;
}

function computeDescription(element) {
  const targets = referenced(element, "aria-describedby");
  if (targets !== null && targets.length > 0) return normalizeSpace(joinReferenced(targets, "describedby"));
  const own = getAttribute(element, "aria-description");
  if (own !== null) return normalizeSpace(own);
  const title = normalizeSpace(getAttribute(element, "title") ?? "");
  return title === nameOf(element) ? "" : title;
}
