// States that roles have: checked, disabled, expanded, level, pressed, selected.

const roleSet = (names) => new Set(names.split(" "));

// Roles that each state is defined for. A query for a state of another role is an error, as it would never
// match.
const STATE_ROLES = {
  checked: roleSet("checkbox menuitemcheckbox menuitemradio option radio switch treeitem"),
  disabled: roleSet(
    "application button composite gridcell group input link menuitem scrollbar separator tab checkbox columnheader combobox grid " +
      "listbox menu menubar menuitemcheckbox menuitemradio option radio radiogroup row rowheader searchbox select slider " +
      "spinbutton switch tablist textbox toolbar tree treegrid treeitem",
  ),
  expanded: roleSet(
    "application button checkbox combobox gridcell link listbox menuitem row rowheader tab treeitem columnheader menuitemcheckbox " +
      "menuitemradio switch",
  ),
  level: roleSet("heading listitem row treeitem"),
  pressed: roleSet("button"),
  selected: roleSet("gridcell option row tab rowheader columnheader treeitem"),
};

// `true`, `false` or `"mixed"`.
function checkedState(element) {
  const role = roleOf(element);
  if (tag(element) === "input") {
    const type = inputType(element);
    if (type === "checkbox" && inputIndeterminate(element)) return "mixed";
    if (type === "checkbox" || type === "radio") return inputChecked(element);
  }
  if (!STATE_ROLES.checked.has(role)) return false;
  const value = getAttribute(element, "aria-checked");
  if (value === "true") return true;
  return value === "mixed" && role !== "radio" && role !== "menuitemradio" && role !== "switch"
    ? "mixed"
    : false;
}

// Controls that the `disabled` attribute (their own or a fieldset's) applies to.
const DISABLEABLE = new Set(["button", "input", "select", "textarea", "option", "optgroup"]);

function isNativelyDisabled(element) {
  const name = tag(element);
  // An option is not disabled by its list: that is told of the list.
  if (name === "option")
    return hasAttribute(element, "disabled") || closestMatch(element, "optgroup[disabled]") !== null;
  return (DISABLEABLE.has(name) || localName(element).includes("-")) && elementMatches(element, ":disabled");
}

// Disabled by `disabled`, or by `aria-disabled` of it or of what it is in.
function isDisabled(element) {
  if (isNativelyDisabled(element)) return true;
  return STATE_ROLES.disabled.has(roleOf(element)) && isAriaDisabled(element);
}

function isAriaDisabled(element) {
  for (let at = element; at !== null; at = flatParent(at)) {
    const value = getAttribute(at, "aria-disabled")?.toLowerCase();
    if (value === "true") return true;
    if (value === "false") return false;
  }
  return false;
}

// `true` or `false`; null for what does not expand.
function expandedState(element) {
  if (tag(element) === "details") return hasAttribute(element, "open");
  if (!STATE_ROLES.expanded.has(roleOf(element))) return null;
  const value = getAttribute(element, "aria-expanded");
  return value === null ? null : value === "true";
}

const HEADING_LEVELS = { h1: 1, h2: 2, h3: 3, h4: 4, h5: 5, h6: 6 };

// Level of a heading, list item, row or tree item; 0 without one.
function levelOf(element) {
  const role = roleOf(element);
  const native = HEADING_LEVELS[tag(element)];
  if (native !== undefined && role === "heading" && !hasAttribute(element, "aria-level")) return native;
  if (!STATE_ROLES.level.has(role)) return 0;
  const value = Number(getAttribute(element, "aria-level") ?? "");
  return Number.isInteger(value) && value >= 1 ? value : (native ?? 0);
}

// `true`, `false` or `"mixed"`; null for what is not a toggle button.
function pressedState(element) {
  if (!STATE_ROLES.pressed.has(roleOf(element))) return null;
  const value = getAttribute(element, "aria-pressed");
  if (value === "mixed") return "mixed";
  return value === null ? null : value === "true";
}

function isSelected(element) {
  if (tag(element) === "option") return optionSelected(element);
  return (
    STATE_ROLES.selected.has(roleOf(element)) &&
    getAttribute(element, "aria-selected")?.toLowerCase() === "true"
  );
}
