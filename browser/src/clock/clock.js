// The clock of one realm (a document or a worker) that stands still, and goes on only when it is told to: Date,
// performance, timers, animation frames, idle callbacks. Runs before the page's scripts, in their world. What Chromium
// itself times (CSS animations, media, the network) it does not reach.
//
// Called once with the time in milliseconds since 1970; returns the clock, which the realm keeps under KEY.
((start) => {
  "use strict";
  const scope = globalThis;
  const KEY = Symbol.for("espalier.clock");
  if (scope[KEY]) return scope[KEY];

  const NativeDate = scope.Date;
  const NativeChannel = scope.MessageChannel;
  const nativePost = scope.MessagePort.prototype.postMessage;
  const nativeTimeout = scope.setTimeout.bind(scope);
  const nativeFrame = scope.requestAnimationFrame?.bind(scope);
  const nativeNow = scope.performance.now.bind(scope.performance);
  const FRAME_MS = 16;
  // Native timers below this nesting have no delay of their own.
  const NESTED = 5;
  const NESTED_MS = 4;

  let now = start;
  let origin = start;
  // What Date says while it is held; timers go on with `now`.
  let fixed = null;
  let nextId = 1;
  let nesting = 0;
  // Goes on with real time, from [real, virtual].
  let running = null;
  const timers = new Map();

  // Between what timers and what Date see.
  let offset = 0;
  // A caller moves the clock: it does not go on by itself meanwhile.
  let moved = 0;
  const current = () => Math.floor(fixed ?? now + offset);
  const elapsed = () => now - origin;
  // Native tasks that are due have run once it resolves.
  const turn = () =>
    new Promise((resolve) => {
      const channel = new NativeChannel();
      channel.port1.onmessage = () => {
        channel.port1.close();
        resolve();
      };
      nativePost.call(channel.port2, 0);
    });

  const add = (kind, callback, delay, args, every) => {
    const id = nextId++;
    const least = nesting >= NESTED ? NESTED_MS : kind === "timer" ? 1 : 0;
    const after = Math.max(Number(delay) || 0, least);
    timers.set(id, { id, kind, callback, args, every, at: now + after, nesting: nesting + 1 });
    return id;
  };
  const remove = (id) => void timers.delete(Number(id));
  const report = (error) => {
    if (scope.reportError) scope.reportError(error);
    else nativeTimeout(() => { throw error; }, 0);
  };
  const fire = (timer) => {
    if (timer.every === undefined) timers.delete(timer.id);
    else timer.at = now + Math.max(Number(timer.every) || 0, 1);
    const before = nesting;
    nesting = timer.nesting;
    try {
      if (typeof timer.callback === "function") timer.callback.apply(scope, timer.args);
      else scope.eval(String(timer.callback));
    } catch (error) {
      report(error);
    }
    nesting = before;
  };
  const earliest = () => {
    let first = null;
    for (const timer of timers.values()) {
      if (!first || timer.at < first.at || (timer.at === first.at && timer.id < first.id)) first = timer;
    }
    return first;
  };

  // Goes on to a time and calls what is due, in order; tasks that it makes run in between.
  const run = async (to) => {
    for (;;) {
      const next = earliest();
      if (!next || next.at > to) break;
      now = Math.max(now, next.at);
      const due = next.kind === "frame"
        ? [...timers.values()].filter((timer) => timer.kind === "frame" && timer.at <= now)
        : [next];
      for (const timer of due) if (timers.has(timer.id)) fire(timer);
      await turn();
    }
    now = Math.max(now, to);
  };
  const move = async (to) => {
    moved += 1;
    await run(to);
    moved -= 1;
    if (running) running = { real: nativeNow(), virtual: now };
  };
  // Goes on to a time; timers that are due meanwhile are called once.
  const jump = (to) => {
    for (const timer of timers.values()) if (timer.at < to) timer.at = to;
    return move(to);
  };

  const put = (target, name, value) => {
    if (!target) return;
    const old = Object.getOwnPropertyDescriptor(target, name);
    Object.defineProperty(target, name, {
      value, writable: true, configurable: true, enumerable: old?.enumerable ?? false,
    });
  };
  const get = (target, name, getter) => {
    const old = target && Object.getOwnPropertyDescriptor(target, name);
    if (old?.get) Object.defineProperty(target, name, { ...old, get: getter });
  };

  function Date(...args) {
    if (!new.target) return new NativeDate(current()).toString();
    const target = new.target === Date ? NativeDate : new.target;
    return Reflect.construct(NativeDate, args.length ? args : [current()], target);
  }
  Object.defineProperty(Date, "length", { value: 7 });
  Date.prototype = NativeDate.prototype;
  for (const name of ["parse", "UTC"]) put(Date, name, NativeDate[name]);
  put(Date, "now", () => current());
  put(NativeDate.prototype, "constructor", Date);
  put(scope, "Date", Date);

  const format = Object.getOwnPropertyDescriptor(Intl.DateTimeFormat.prototype, "format");
  Object.defineProperty(Intl.DateTimeFormat.prototype, "format", {
    ...format,
    get() {
      const native = format.get.call(this);
      return (date) => native(date === undefined ? current() : date);
    },
  });
  const parts = Intl.DateTimeFormat.prototype.formatToParts;
  put(Intl.DateTimeFormat.prototype, "formatToParts", function formatToParts(date) {
    return parts.call(this, date === undefined ? current() : date);
  });

  put(scope, "setTimeout", function setTimeout(callback, delay, ...args) {
    return add("timer", callback, delay, args);
  });
  put(scope, "setInterval", function setInterval(callback, delay, ...args) {
    return add("timer", callback, delay, args, delay ?? 0);
  });
  put(scope, "clearTimeout", function clearTimeout(id) { remove(id); });
  put(scope, "clearInterval", function clearInterval(id) { remove(id); });
  if (nativeFrame) {
    put(scope, "requestAnimationFrame", function requestAnimationFrame(callback) {
      const frame = () => callback.call(scope, elapsed());
      const before = nesting;
      nesting = 0;
      const id = add("frame", frame, FRAME_MS - (elapsed() % FRAME_MS), []);
      nesting = before;
      return id;
    });
    put(scope, "cancelAnimationFrame", function cancelAnimationFrame(id) { remove(id); });
  }
  if (scope.requestIdleCallback) {
    put(scope, "requestIdleCallback", function requestIdleCallback(callback) {
      return add("timer", () => callback.call(scope, { didTimeout: false, timeRemaining: () => 50 }), 1, []);
    });
    put(scope, "cancelIdleCallback", function cancelIdleCallback(id) { remove(id); });
  }
  if (scope.Scheduler) {
    const later = (delay, work, signal) =>
      new Promise((resolve, reject) => {
        if (signal?.aborted) return reject(signal.reason);
        const id = add("timer", () => {
          try {
            resolve(work?.());
          } catch (error) {
            reject(error);
          }
        }, delay, []);
        signal?.addEventListener("abort", () => {
          remove(id);
          reject(signal.reason);
        });
      });
    put(scope.Scheduler.prototype, "postTask", function postTask(work, options = {}) {
      return later(options.delay ?? 0, work, options.signal);
    });
    if (scope.Scheduler.prototype.yield) {
      put(scope.Scheduler.prototype, "yield", function () { return later(0); });
    }
  }

  put(scope.Performance.prototype, "now", function now() { return elapsed(); });
  get(scope.Performance.prototype, "timeOrigin", () => origin);
  get(scope.Event.prototype, "timeStamp", () => elapsed());

  const clock = {
    run: move,
    jump,
    turn,
    // What Date would say if it were not held.
    now: () => now + offset,
    offset: () => offset,
    // When the next timer is due; null where there is none.
    next: () => earliest()?.at ?? null,
    // What Date says from now on; timers do not notice.
    set(to) {
      fixed = null;
      offset = to - now;
    },
    // Date says this, until `set` or `fix(null)`.
    fix(to) { fixed = to; },
    frame: () =>
      new Promise((resolve) => {
        // Pages that are not drawn have no frames.
        nativeTimeout(resolve, 100);
        if (nativeFrame) nativeFrame(() => resolve());
        else nativeTimeout(resolve, 0);
      }),
    // Goes on with real time.
    resume() {
      if (running) return;
      running = { real: nativeNow(), virtual: now };
      const tick = async () => {
        if (!running) return;
        if (!moved) await run(running.virtual + nativeNow() - running.real);
        nativeTimeout(tick, FRAME_MS / 2);
      };
      nativeTimeout(tick, 0);
    },
    pause() { running = null; },
  };
  Object.defineProperty(scope, KEY, { value: clock });
  return clock;
})
