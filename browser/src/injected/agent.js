// What the host of an agent asks: the element at a point or with the focus, what changed since an action
// began, whether the page has come to rest, and scrolling.

const NOTE_MAX = 100;
const OPTIONS_NOTED_MAX = 30;

// The element that a user would say they act on at that node: the control around it.
const ACTED_ON =
  "a[href], button, input, select, textarea, summary, label, option, [role=button], [role=link], [role=checkbox], [role=radio], " +
  "[role=switch], [role=tab], [role=option], [role=treeitem], [role^=menuitem], [onclick], [contenteditable]";

// `{text, role, name, tag, area, options}` of an element; `area` in the frame's viewport, `options` of a
// list that drops down.
function noteOf(element) {
  const box = boundingRect(element);
  const isList = tag(element) === "select";
  return {
    options: isList && !selectMultiple(element) && selectSize(element) <= 1 ? optionsNoted(element) : [],
    text: isList ? "" : clip(normalizedText(element), NOTE_MAX),
    role: roleOf(element),
    name: clip(nameOf(element), NOTE_MAX),
    tag: localName(element),
    area: { x: box.x, y: box.y, width: box.width, height: box.height },
  };
}

const optionsNoted = (list) =>
  [...optionsOf(list)].slice(0, OPTIONS_NOTED_MAX).map((option) => clip(optionText(option), NOTE_MAX));

const isFrame = (element) => tag(element) === "iframe" || tag(element) === "frame";

// What lies at a point: `{note}`, or for a frame `{frame: {x, y}}`, the point in it; null outside of the
// viewport.
function spotAt(x, y) {
  const element = elementAt(x, y);
  if (element === null) return null;
  if (isFrame(element)) {
    const box = contentBoxOf(element);
    return box === null ? null : { frame: { x: x - box.x, y: y - box.y } };
  }
  return { note: noteOf(closestSelf(element, ACTED_ON) ?? element) };
}

// The element that has the focus, through open shadow roots; null where it is the body.
function focusDeep() {
  let found = documentActive(document);
  while (found !== null) {
    const shadow = shadowRootOf(found);
    const inner = shadow === null ? null : fragmentActive(shadow);
    if (inner === null) break;
    found = inner;
  }
  return found === null || tag(found) === "body" || tag(found) === "html" ? null : found;
}

// Whether a reference's element can be acted on, and where: `{note, x, y}`, or `{note, problem}` with
// "disabled", "hidden", "moving", "no_box", "outside_viewport" or "covered by ...".
async function reach(ref, { limit_ms: limitMs, nested, enabled, force }) {
  const element = elementOfRef(ref);
  const note = noteOf(element);
  if (enabled && isDisabled(controlOf(element))) return { note, problem: "disabled" };
  if (!isVisible(element)) return { note, problem: "hidden" };
  // The caches of this call end at its first `await`.
  dropCaches();
  const end = performance.now() + limitMs;
  let problem = null;
  for (let attempt = 0; attempt < ALIGNMENTS.length; attempt++) {
    withCaches(() => scrollTo(element, nested && attempt === 0 ? 2 : attempt));
    const isStill = await whenStable(element, Math.max(0, Math.min(STABLE_MS_MAX, end - performance.now())));
    if (!isConnected(element)) return { note, problem: "hidden" };
    const point = withCaches(() => clickPointOf(element, null, 0));
    const hit = point.problem === undefined && !force ? withCaches(() => obstacleAt(element, point)) : null;
    if (point.problem !== undefined) problem = point.problem;
    else if (hit !== null) problem = `covered by ${hit.from ?? hit.description}`;
    else if (isStill) return { note: withCaches(() => noteOf(element)), x: point.x, y: point.y };
    else problem = "moving";
  }
  return { note, problem };
}

// Prepares a field for a text, or sets it: "done", or "insert" where the host inserts the text in place of
// what is selected, "choose" where a list has no such option (with `options`). `element` has the focus, or
// is to get it.
function prepareField(element, text, clear) {
  const field = controlOf(element);
  if (tag(field) === "select") {
    const chosen = chooseOptions(field, [text]);
    if (chosen.selected !== undefined) return { state: "done" };
    if (chosen.disabled !== undefined) return { state: "disabled" };
      return { state: "choose", options: optionsNoted(field) };
  }
  if (editableState(field) === false) return { state: isDisabled(field) ? "disabled" : "readonly" };
  if (clear) return { state: fillWith(field, text) === "done" ? "done" : "insert" };
  const name = tag(field);
  if (name !== "input" && name !== "textarea" && !isContentEditable(field)) fillWith(field, text);
  selectTextOf(field);
  if (name === "input" || name === "textarea") collapseField(field);
  else window.getSelection().collapseToEnd();
  return { state: "insert" };
}

// Puts the caret at the end; types without a caret, such as numbers, are left with their text selected.
function collapseField(field) {
  const end = (tag(field) === "input" ? inputValue(field) : textareaValue(field)).length;
  try {
    field.setSelectionRange(end, end);
  } catch {
    throw new ActionError(`input of type "${inputType(field)}" takes no text at its end`);
  }
}

// What a field holds; null for a password, and for what has no value.
function fieldValue(element) {
  const field = controlOf(element);
  if (tag(field) === "input") return inputType(field) === "password" ? null : inputValue(field);
  if (tag(field) === "textarea") return textareaValue(field);
  return null;
}

// Scrolls what can be scrolled that way around an element (null: the page, or the largest part of it that can
// be scrolled), by so many pixels: `{what, x, y, at_end}`, or null where nothing can.
function scrollFrom(element, x, y) {
  const page = document.scrollingElement ?? documentElementOf(document);
  let seen = null;
  for (let at = element ?? startOfScroll(page, x, y); at !== null; at = flatParent(at)) {
    if (at !== page && !canScroll(at, x, y)) continue;
    if (at === page && !hasOverflow(page, x, y)) continue;
    const moved = scrollOne(at, x, y, at === page);
    if (moved.x !== 0 || moved.y !== 0) return moved;
    seen ??= moved;
    if (at === page) break;
  }
  return seen;
}

function startOfScroll(page, x, y) {
  if (hasOverflow(page, x, y)) return page;
  return elementAt(window.innerWidth / 2, window.innerHeight / 2);
}

const hasOverflow = (element, x, y) =>
  y !== 0
    ? element.scrollHeight > element.clientHeight + 1
    : element.scrollWidth > element.clientWidth + 1;

function canScroll(element, x, y) {
  const style = styleOf(element);
  const overflow = y !== 0 ? style.overflowY : style.overflowX;
  return (overflow === "auto" || overflow === "scroll" || overflow === "overlay") && hasOverflow(element, x, y);
}

function scrollOne(element, x, y, isPage) {
  const [left, top] = [element.scrollLeft, element.scrollTop];
  element.scrollBy({ left: x, top: y, behavior: "instant" });
  const gone = { x: element.scrollLeft - left, y: element.scrollTop - top };
  const at = y !== 0 ? element.scrollTop : element.scrollLeft;
  const end = y !== 0 ? element.scrollHeight - element.clientHeight : element.scrollWidth - element.clientWidth;
  const atEnd = y > 0 || x > 0 ? at >= end - 1 : Math.abs(at) <= 0 + 1;
  const role = roleOf(element);
  const label = clip(nameOf(element), NOTE_MAX);
  const told = `${role ?? `<${localName(element)}>`}${label === "" ? "" : ` ${JSON.stringify(label)}`}`;
  return { what: isPage ? "the page" : told, ...gone, at_end: atEnd };
}

// Changes of the document since `watchChanges`; null before.
let watch = null;

// Open shadow roots of the document, whose changes no observer of the document sees. One that comes later is
// a change by its host.
const openShadowRoots = () =>
  withCaches(() => elementsBelow(document).map(shadowRootOf).filter((root) => root !== null));

// Begins to count what changes, anew.
function watchChanges() {
  endWatch();
  const counts = { added: 0, removed: 0, texts: 0, attributes: 0, inputs: 0, scrolls: 0 };
  const count = (records) => {
    for (const record of records) {
      if (record.type === "childList") {
        counts.added += record.addedNodes.length;
        counts.removed += record.removedNodes.length;
      } else if (record.type === "characterData") counts.texts++;
      else counts.attributes++;
    }
  };
  const observer = new MutationObserver(count);
  for (const root of [document, ...openShadowRoots()])
    observer.observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
  const onInput = () => counts.inputs++;
  const onScroll = () => counts.scrolls++;
  const listeners = [
    ["input", onInput],
    ["change", onInput],
    ["scroll", onScroll],
  ];
  for (const [type, listener] of listeners)
    window.addEventListener(type, listener, { capture: true, passive: true });
  watch = { counts, count, observer, listeners, focus: withCaches(focusDeep) };
}

function endWatch() {
  if (watch === null) return;
  watch.observer.disconnect();
  for (const [type, listener] of watch.listeners) window.removeEventListener(type, listener, { capture: true });
  watch = null;
}

function changeCount() {
  if (watch === null) return 0;
  watch.count(watch.observer.takeRecords());
  return Object.values(watch.counts).reduce((sum, count) => sum + count, 0);
}

// What changed since `watchChanges`: `{added, removed, texts, attributes, inputs, scrolls, focus}`, `focus` the
// element that has got it, described, or "" where it was lost; null without a change of it. Ends the watch.
function changesSeen() {
  if (watch === null) return null;
  changeCount();
  const now = focusDeep();
  const focus = now === watch.focus ? null : now === null ? "" : toldNow(now);
  const seen = { ...watch.counts, focus };
  endWatch();
  return seen;
}

// Promise of null once so many animation frames in a row had no change and no animation that ends is under
// way, or of what is in the way at the end of the time. A frame that is not drawn is at rest after
// `undrawn_ms` without an animation frame.
function whenQuiet({ frames, limit_ms: limitMs, undrawn_ms: undrawnMs }) {
  if (watch === null) watchChanges();
  return new Promise((resolve) => {
    const end = performance.now() + limitMs;
    let quiet = 0;
    let seen = changeCount();
    let undrawn = 0;
    const wait = () => {
      undrawn = setTimeout(() => resolve(null), undrawnMs);
      requestAnimationFrame(frame);
    };
    const frame = () => {
      clearTimeout(undrawn);
      const changes = changeCount();
      const animations = endingAnimations();
      quiet = changes === seen && animations === 0 ? quiet + 1 : 0;
      if (quiet >= frames) return resolve(null);
      if (performance.now() >= end)
        return resolve(
          animations > 0 ? `${animations} animations` : `${changes - seen} changes of the document a frame`,
        );
      seen = changes;
      wait();
    };
    wait();
  });
}

// Animations and transitions under way that end by themselves.
function endingAnimations() {
  return document.getAnimations().filter((animation) => {
    if (animation.playState !== "running" || animation.timeline !== document.timeline) return false;
    return Number.isFinite(animation.effect?.getComputedTiming().endTime ?? Infinity);
  }).length;
}
