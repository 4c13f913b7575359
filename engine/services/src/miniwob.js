
// Starts the episode of the page and tells its session how it goes. What it needs later it takes before anything else can change it.
(() => {
  "use strict";
  document.currentScript.remove();
  const sid = __SID__, secret = __SECRET__, seed = __SEED__;
  const fetch = window.fetch.bind(window), stringify = JSON.stringify, later = window.setTimeout.bind(window);
  // A report that is not taken for a fault of the way is sent again: what it says stays the same.
  const send = (body, tries) => {
    const again = () => { if (tries > 1) later(() => send(body, tries - 1), 500); };
    fetch("/report?sid=" + sid, { method: "POST", headers: { "content-type": "application/json" }, body })
      .then((answer) => answer.text().then(() => { if (answer.status >= 500) again(); }))
      .catch(again);
  };
  const tell = (report) => send(stringify({ secret, ...report }), 5);
  let begun = false, over = false;
  const end = core.endEpisode;
  const endOnce = (reward, ...rest) => {
    const counts = begun && !over && core.EP_TIMER !== null;
    // The page would cover itself for the next episode: there is none.
    if (counts) { over = true; core.startEpisode = () => {}; }
    end.call(core, reward, ...rest);
    if (counts) tell({ raw_reward: Math.max(-1, Math.min(1, Number(reward) || 0)) });
  };
  Object.defineProperty(core, "endEpisode", { value: endOnce, writable: false, configurable: false });
  // Behind the page's own handler, which shows the cover.
  window.addEventListener("load", () => {
    if (core.cover_div === null) core.startEpisode();
    Math.seedrandom(seed);
    // The most that a timer takes: limits of the rollout bound its time, and a slow model is not a failed one.
    core.EPISODE_MAX_TIME = 2147483647;
    core.startEpisodeReal();
    begun = true;
    const whenReady = (tries) => {
      if (WOB_TASK_READY || tries === 0) tell({ utterance: core.getUtterance() });
      else later(() => whenReady(tries - 1), 50);
    };
    whenReady(400);
  });
})();
