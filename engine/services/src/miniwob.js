
// Starts the episode of the page and tells its session how it goes. What it needs later it takes before anything else can change it.
(() => {
  "use strict";
  document.currentScript.remove();
  const sid = __SID__, secret = __SECRET__, seed = __SEED__;
  const fetch = window.fetch.bind(window), stringify = JSON.stringify, later = window.setTimeout.bind(window);
  const tell = (report) => {
    const body = stringify({ secret, ...report });
    fetch("/report?sid=" + sid, { method: "POST", headers: { "content-type": "application/json" }, body, keepalive: true })
      .catch(() => {});
  };
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
    core.EPISODE_MAX_TIME = 1e6;
    core.startEpisodeReal();
    begun = true;
    const whenReady = (tries) => {
      if (WOB_TASK_READY || tries === 0) tell({ utterance: core.getUtterance() });
      else later(() => whenReady(tries - 1), 50);
    };
    whenReady(400);
  });
})();
