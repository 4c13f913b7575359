// What the host calls. Every function takes and returns DOM nodes as handles and plain values otherwise; every call works out roles,
// names and visibility from the page as it is now.

// The function with caches for its duration.
const call = (work) => (...parameters) => withCaches(() => work(...parameters));

const injected = Object.freeze({
  // Elements that the steps find below the root (the document by default), each once. Throws `QueryError` for a query that is
  // invalid. See query.js.
  query: call((steps, root = document) => runSteps(steps, root)),

  // Role, null without one; accessible name and description, empty without one.
  role: call(roleOf),
  name: call(nameOf),
  description: call(descriptionOf),

  // Text with white space as in the page; `normalized_text` as queries compare it.
  text: call((element) => elementText(element)),
  normalized_text: call((element) => normalizedText(element)),
});
