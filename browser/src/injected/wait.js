// Waits within the page, so that the host asks once. Every wait has a bound; a page that navigates away takes
// its waits along, which the host sees by the loss of the script's context.

// The page is looked at again after it changed, and in any case after this time: styles, scrolling and values
// change without a mutation of the tree.
const RECHECK_MS = 100;

const ELEMENT_STATES = {
  attached: (element) => element !== null,
  detached: (element) => element === null,
  visible: (element) => element !== null && isVisible(element),
  hidden: (element) => element === null || !isVisible(element),
  enabled: (element) => element !== null && !isDisabled(controlOf(element)),
  disabled: (element) => element !== null && isDisabled(controlOf(element)),
  editable: (element) => element !== null && editableState(controlOf(element)) === true,
};

// Promise of `{element, count, reached, missing}`: the first element of the query once it has every state of
// `wanted` ("attached", "detached", "visible", "hidden", "enabled", "disabled", "editable"), `reached` false
// if that was not so within `limit_ms`; `missing` is then the first state it did not have. With `strict`,
// more than one element ends the wait at once with `count` above 1.
function whenQuery(steps, wanted, { limit_ms: limitMs, strict = true, root = document }) {
  const unknown = wanted.find((state) => !Object.hasOwn(ELEMENT_STATES, state));
  if (unknown !== undefined) throw new QueryError(`unknown state ${JSON.stringify(unknown)}`);
  return poll(limitMs, () => {
    const found = runSteps(steps, root);
    const element = found[0] ?? null;
    if (strict && found.length > 1)
      return { done: true, value: { element, count: found.length, reached: false, missing: null } };
    const missing = wanted.find((state) => !ELEMENT_STATES[state](element)) ?? null;
    return {
      done: missing === null,
      value: { element, count: found.length, reached: missing === null, missing },
    };
  });
}

// Promise of what `look` last answered, as soon as it says `done`, at the latest after `limitMs`.
function poll(limitMs, look) {
  return new Promise((resolve, reject) => {
    const end = performance.now() + limitMs;
    let frame = 0;
    let timer = 0;
    let observer = null;
    const stop = () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      observer?.disconnect();
    };
    const check = () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      frame = 0;
      try {
        const { done, value } = withCaches(look);
        const left = end - performance.now();
        if (done || left <= 0) {
          stop();
          return resolve(value);
        }
        timer = setTimeout(check, Math.min(RECHECK_MS, left));
      } catch (error) {
        stop();
        reject(error);
      }
    };
    // A burst of mutations is looked at once, in the next frame.
    observer = new MutationObserver(() => {
      if (frame === 0) frame = requestAnimationFrame(check);
    });
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    check();
  });
}
