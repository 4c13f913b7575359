// What to do next on a page of MiniWoB++, for every driver of the bench `browser` alike: an expression that gives `null` when the
// episode is over, or `{kind: "click" | "fill" | "wait", selector, text}`. It reads the task and the page, and changes nothing.
(() => {
  if (WOB_DONE_GLOBAL) return null;
  const task = location.pathname.split("/").pop().replace(".html", "");
  const asked = core.getUtterance();
  const quoted = [...asked.matchAll(/"([^"]*)"/g)].map((match) => match[1]);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const seen = (element) => element !== null && element.checkVisibility() && element.getClientRects().length > 0;
  const said = (element) => (element.textContent || element.value || "").trim();
  const path = (element) => {
    const steps = [];
    for (let at = element; at !== document.body; at = at.parentElement) {
      steps.unshift(`${at.localName}:nth-child(${[...at.parentElement.children].indexOf(at) + 1})`);
    }
    return ["body", ...steps].join(" > ");
  };
  const click = (element) => (seen(element ?? null) ? { kind: "click", selector: path(element) } : { kind: "wait" });
  const fill = (element, text) => ({ kind: "fill", selector: path(element), text });
  const filled = (pairs) => pairs.find(([element, text]) => element.value !== text);
  const fillAll = (pairs) => {
    const next = filled(pairs);
    return next === undefined ? click(one("#subbtn")) : fill(...next);
  };
  const tick = (names) => {
    const boxes = all("#boxes label, #area label").filter((label) => label.querySelector("input") !== null);
    const box = (label) => label.querySelector("input");
    const wrong = boxes.find((label) => names.includes(said(label)) !== box(label).checked && !(box(label).type === "radio" && box(label).checked));
    return click(wrong === undefined ? one("#subbtn") : box(wrong));
  };
  const list = (pattern) => (pattern.exec(asked)?.[1] ?? "").split(/, | and /).filter((name) => name !== "nothing");
  switch (task) {
    case "click-test":
    case "click-test-2":
    case "click-button":
      return click(all("#area button").find((button) => quoted.length === 0 || said(button).toLowerCase() === quoted[0].toLowerCase()) ?? one("#subbtn"));
    case "click-link":
      return click(all("#area .alink").find((link) => said(link) === quoted[0]));
    case "click-dialog":
      return click(one(".ui-dialog-titlebar-close"));
    case "click-dialog-2":
      return click(quoted[0] === "x" ? one(".ui-dialog-titlebar-close") : all(".ui-dialog-buttonset button, .ui-dialog-buttonpane button").find((button) => said(button) === quoted[0]));
    case "click-tab":
      return click(all("#area ul a").find((tab) => asked.includes(said(tab))));
    case "click-tab-2": {
      const wanted = all(".alink").filter((link) => said(link) === quoted[0]);
      const open = wanted.find(seen);
      if (open !== undefined) return click(open);
      const panel = wanted[0].closest("div[id]").id;
      return click(one(`a[href="#${panel}"]`));
    }
    case "click-collapsible":
      // Its content unfolds slowly, and counts as there from the beginning.
      return click(one(".ui-accordion-header.ui-state-active, .ui-accordion-header-active") === null ? one(".ui-accordion-header") : one("#subbtn"));
    case "click-checkboxes":
      return tick(list(/^Select (.*) and click Submit/));
    case "click-option":
      return tick([/^Select (.*) and click Submit/.exec(asked)?.[1]]);
    case "click-button-sequence":
    case "button-delay":
      return click(one(window.oracleFirst ? "#subbtn2" : "#subbtn"));
    case "click-widget":
      return click(one(`#area [data-type="${quoted[0]}"]`));
    case "focus-text":
      return click(one("#tt"));
    case "focus-text-2":
      return click(one(`#tt${/the (\d)/.exec(asked)[1]}`));
    case "enter-text":
    case "enter-text-dynamic":
      return fillAll([[one("#tt"), quoted[0]]]);
    case "enter-password":
      return fillAll([[one("#password"), quoted[0]], [one("#verify"), quoted[0]]]);
    case "login-user":
      return fillAll([[one("#username"), quoted[0]], [one("#password"), quoted[1]]]);
    case "use-autocomplete": {
      const [start, end = ""] = quoted;
      const fits = (text) => text.startsWith(start) && text.endsWith(end);
      if (fits(one("#tags").value) && one("#tags").value !== start) return click(one("#subbtn"));
      if (one("#tags").value !== start) return fill(one("#tags"), start);
      return click(all(".ui-menu-item").find((item) => seen(item) && fits(said(item))));
    }
    case "navigate-tree": {
      const wanted = all("#tree span").find((span) => said(span) === quoted[0]);
      const folders = [];
      for (let at = wanted.parentElement.parentElement.closest("li"); at !== null; at = at.parentElement.closest("li")) folders.unshift(at);
      const closed = folders.find((folder) => folder.classList.contains("expandable"));
      return click(closed === undefined ? wanted : closed.querySelector("span"));
    }
    default:
      throw new Error(`no policy for ${task}`);
  }
})()
