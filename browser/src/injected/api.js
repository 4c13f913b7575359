// What the host calls. Every function takes and returns DOM nodes as handles and plain values otherwise;
// every call works out roles, names and visibility from the page as it is now. Errors are `QueryError` (a
// query that is invalid) and `ActionError` (an action that the element is not made for), by their `name`.

// The function with caches for its duration.
const call =
  (work) =>
  (...parameters) =>
    withCaches(() => work(...parameters));

const injected = Object.freeze({
  // Elements that the steps find below the root (the document by default), each once. See query.js.
  query: call((steps, root = document) => runSteps(steps, root)),
  // Promise of an element with states; see `whenQuery` in wait.js.
  waitFor: (steps, states, options) => whenQuery(steps, states, options),

  // Role, null without one; accessible name and description, empty without one.
  role: call(roleOf),
  name: call((element) => nameOf(element)),
  description: call(descriptionOf),
  // Text with white space as in the page, and as queries compare it.
  text: call((element) => elementText(element)),
  normalizedText: call(normalizedText),
  // One line about the element, for messages.
  describe: call(describeElement),

  // See states.js.
  states: call(statesOf),
  stable: whenStable,
  value: call(valueOf),
  control: call(controlOf),
  box: call(boxOf),
  contentBox: call(contentBoxOf),

  // See actions.js.
  scrollIntoView: call(scrollTo),
  clickPoint: call(clickPointOf),
  hitTarget: call(obstacleAt),
  elementAt: call(elementAt),
  focus: call(focusOn),
  blur: call(blurFrom),
  selectText: call(selectTextOf),
  fill: call(fillWith),
  selectOptions: call(chooseOptions),

  // See snapshot.js.
  ariaSnapshot: call((root = document, options = {}, ...clickable) => snapshotOf(root, options, clickable)),
  resolveRef: call(elementOfRef),

  // See agent.js.
  spotAt: call(spotAt),
  focused: call(focusDeep),
  note: call(noteOf),
  reach: call(reach),
  prepareField: call(prepareField),
  fieldValue: call(fieldValue),
  scrollFrom: call(scrollFrom),
  watchChanges,
  changesSeen: call(changesSeen),
  whenQuiet: call(whenQuiet),

  // See clipboard.js.
  expectShortcut,
  copySelected: call(copySelected),
  pasteText: call(pasteText),
});
