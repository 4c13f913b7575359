// One realm (a document or a worker) of a deterministic episode, over its clock: seeded randomness, work that is counted
// until it is done, animations at their ends, and refusals by name of what no clock of ours reaches.
//
// Called once with the clock and the seed, before the page's scripts; the realm is kept as `clock.realm`.
((clock, seed) => {
  "use strict";
  if (clock.realm) return;
  const scope = globalThis;
  const isDocument = typeof document !== "undefined";
  // Changes of what the page does, as far as it is seen.
  let activity = 0;
  // Asynchronous work under way that takes real time.
  let pending = 0;
  const refused = new Map();

  const put = (target, name, value) => {
    if (target && name in target) {
      Object.defineProperty(target, name, { value, writable: true, configurable: true });
    }
  };
  const refuse = (name) => {
    if (refused.size < 16) refused.set(name, (refused.get(name) ?? 0) + 1);
    return new DOMException(`${name}: not covered by deterministic episodes`, "NotSupportedError");
  };

  // xoshiro128**, seeded by the episode and the realm's address through splitmix32.
  let mix = (Number(seed) >>> 0) ^ Number((BigInt(seed) >> 32n) & 0xffffffffn);
  for (const char of String(scope.location?.href ?? "")) {
    mix = Math.imul(mix ^ char.codePointAt(0), 0x01000193) >>> 0;
  }
  const splitmix = () => {
    mix = (mix + 0x9e3779b9) | 0;
    let word = mix ^ (mix >>> 16);
    word = Math.imul(word, 0x21f0aaad);
    word ^= word >>> 15;
    word = Math.imul(word, 0x735a2d97);
    return (word ^ (word >>> 15)) >>> 0;
  };
  const state = Uint32Array.from([splitmix(), splitmix(), splitmix(), splitmix()]);
  const rotate = (word, by) => (word << by) | (word >>> (32 - by));
  const word = () => {
    const result = Math.imul(rotate(Math.imul(state[1], 5), 7), 9) >>> 0;
    const shifted = state[1] << 9;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotate(state[3], 11);
    return result;
  };
  put(Math, "random", function random() {
    return ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
  });
  const fill = (array) => {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let at = 0; at < bytes.length; at += 1) bytes[at] = word() >>> 24;
    return array;
  };
  if (scope.Crypto) {
    const native = scope.Crypto.prototype.getRandomValues;
    put(scope.Crypto.prototype, "getRandomValues", function getRandomValues(array) {
      // Refuses what it always refuses.
      return fill(native.call(this, array));
    });
    put(scope.Crypto.prototype, "randomUUID", function randomUUID() {
      const bytes = fill(new Uint8Array(16));
      bytes[6] = (bytes[6] & 0x0f) | 0x40;
      bytes[8] = (bytes[8] & 0x3f) | 0x80;
      const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
    });
  }

  // What takes real time is counted from its call to its end.
  const track = (target, ...names) => {
    for (const name of names) {
      const native = target?.[name];
      if (typeof native !== "function") continue;
      put(target, name, function (...args) {
        activity += 1;
        const result = Reflect.apply(native, this, args);
        if (result instanceof Promise) {
          pending += 1;
          const done = () => {
            pending -= 1;
            activity += 1;
          };
          result.then(done, done);
        }
        return result;
      });
    }
  };
  track(scope, "fetch", "createImageBitmap");
  for (const of of ["Response", "Request", "Blob"]) {
    track(scope[of]?.prototype, "text", "json", "arrayBuffer", "blob", "formData", "bytes");
  }
  track(scope.SubtleCrypto?.prototype, ...Object.getOwnPropertyNames(scope.SubtleCrypto?.prototype ?? {})
    .filter((name) => name !== "constructor"));
  track(scope.CacheStorage?.prototype, "open", "match", "has", "delete", "keys");
  track(scope.Cache?.prototype, "match", "matchAll", "add", "addAll", "put", "delete", "keys");
  track(scope.WebAssembly, "compile", "instantiate", "compileStreaming", "instantiateStreaming");
  track(scope.HTMLImageElement?.prototype, "decode");
  track(scope.FontFace?.prototype, "load");
  track(scope.StorageManager?.prototype, "estimate", "persist", "persisted");
  track(scope.Clipboard?.prototype, "read", "readText", "write", "writeText");
  // Requests of IndexedDB and readers of files end with events.
  const ends = (target, names, events, ofResult) => {
    for (const name of names) {
      const native = target?.[name];
      if (typeof native !== "function") continue;
      put(target, name, function (...args) {
        let isOpen = true;
        const done = () => {
          if (isOpen) pending -= 1;
          isOpen = false;
          activity += 1;
        };
        const follow = (subject) => {
          for (const event of events) subject.addEventListener(event, done, { once: true });
        };
        pending += 1;
        activity += 1;
        try {
          // A synchronous request ends within the call.
          if (ofResult) {
            const result = Reflect.apply(native, this, args);
            follow(result);
            return result;
          }
          follow(this);
          return Reflect.apply(native, this, args);
        } catch (error) {
          done();
          throw error;
        }
      });
    }
  };
  ends(scope.IDBFactory?.prototype, ["open", "deleteDatabase"], ["success", "error", "blocked"], true);
  ends(scope.IDBDatabase?.prototype, ["transaction"], ["complete", "abort"], true);
  ends(scope.FileReader?.prototype, ["readAsText", "readAsDataURL", "readAsArrayBuffer"], ["loadend"], false);
  ends(scope.XMLHttpRequest?.prototype, ["send"], ["loadend"], false);
  // Messages between realms arrive in real time.
  const noted = () => {
    activity += 1;
  };
  scope.addEventListener("message", noted, true);
  for (const of of ["MessagePort", "Worker", "BroadcastChannel", "Window", "DedicatedWorkerGlobalScope"]) {
    track(scope[of]?.prototype, "postMessage");
  }
  track(scope, "postMessage");

  // What no clock of ours reaches.
  const withoutConstructor = [
    ["RTCPeerConnection", "WebRTC"], ["webkitRTCPeerConnection", "WebRTC"], ["WebSocket", "WebSocket"],
    ["WebSocketStream", "WebSocket"], ["EventSource", "EventSource"], ["WebTransport", "WebTransport"],
    ["SharedWorker", "SharedWorker"], ["AudioContext", "Web Audio"], ["webkitAudioContext", "Web Audio"],
    ["OfflineAudioContext", "Web Audio"], ["MediaRecorder", "media"], ["VideoDecoder", "media"],
    ["PressureObserver", "PressureObserver"],
  ];
  for (const [name, told] of withoutConstructor) {
    const native = scope[name];
    if (!native) continue;
    const refusing = function () {
      throw refuse(told);
    };
    refusing.prototype = native.prototype;
    put(scope, name, refusing);
  }
  const rejecting = (target, name, told) => put(target, name, () => Promise.reject(refuse(told)));
  rejecting(scope.HTMLMediaElement?.prototype, "play", "media");
  rejecting(scope.MediaDevices?.prototype, "getUserMedia", "media");
  rejecting(scope.MediaDevices?.prototype, "getDisplayMedia", "media");
  rejecting(scope.ServiceWorkerContainer?.prototype, "register", "service worker");
  for (const name of ["requestDevice", "requestAdapter"]) {
    rejecting(scope.Bluetooth?.prototype, name, "Bluetooth");
    rejecting(scope.GPU?.prototype, name, "WebGPU");
  }
  if (scope.Atomics) {
    put(scope.Atomics, "wait", () => { throw refuse("Atomics.wait"); });
    put(scope.Atomics, "waitAsync", () => { throw refuse("Atomics.waitAsync"); });
  }
  // Times that Chromium measures itself.
  for (const name of ["getEntries", "getEntriesByName", "getEntriesByType"]) {
    put(scope.Performance.prototype, name, () => []);
  }
  put(scope.PerformanceObserver?.prototype, "observe", () => {});

  // Scrolls at once.
  if (isDocument) {
    const instant = (target, ...names) => {
      for (const name of names) {
        const native = target?.[name];
        if (!native) continue;
        put(target, name, function (...args) {
          const last = args.at(-1);
          if (last && typeof last === "object") args[args.length - 1] = { ...last, behavior: "instant" };
          return Reflect.apply(native, this, args);
        });
      }
    };
    instant(scope, "scroll", "scrollTo", "scrollBy");
    instant(scope.Element.prototype, "scroll", "scrollTo", "scrollBy", "scrollIntoView");
    for (const event of ["scroll", "transitionend", "animationend", "load", "error", "readystatechange"]) {
      document.addEventListener(event, noted, true);
    }
  }

  const sheets = new WeakMap();
  const roots = () => {
    const found = [document];
    for (let at = 0; at < found.length; at += 1) {
      for (const element of found[at].querySelectorAll("*")) if (element.shadowRoot) found.push(element.shadowRoot);
    }
    return found;
  };
  // The look of the page that no time changes: no caret, no smooth scrolling.
  const dress = () => {
    for (const root of roots()) {
      let sheet = sheets.get(root);
      if (!sheet) {
        sheet = new CSSStyleSheet();
        sheet.replaceSync("*, *::before, *::after { caret-color: transparent !important; scroll-behavior: auto !important; }");
        sheets.set(root, sheet);
      }
      if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets = [...root.adoptedStyleSheets, sheet];
    }
  };
  // Finite animations end; endless ones stand at their beginning. Returns how many have changed.
  const held = new WeakSet();
  const endAnimations = () => {
    let changed = 0;
    for (const root of roots()) {
      for (const animation of root.getAnimations()) {
        if (animation.playState === "finished" || held.has(animation)) continue;
        const end = animation.effect?.getComputedTiming().endTime;
        changed += 1;
        if (end === Infinity || animation.playbackRate === 0) {
          held.add(animation);
          animation.pause();
          animation.currentTime = 0;
        } else {
          animation.finish();
        }
      }
      for (const svg of root.querySelectorAll("svg")) {
        if (svg.animationsPaused?.() === false) svg.pauseAnimations();
        svg.setCurrentTime?.(0);
      }
    }
    return changed;
  };
  const look = () => {
    for (const element of document.querySelectorAll("video, audio")) {
      if (!element.paused) {
        element.pause();
        refuse("media");
      }
    }
    for (const meta of document.querySelectorAll("meta[http-equiv=refresh i]")) {
      if (parseFloat(meta.content) > 0 && !meta.espalierTold) {
        meta.espalierTold = true;
        refuse("delayed meta refresh");
      }
    }
  };

  clock.realm = {
    // Goes on to a time.
    async run(to) {
      await clock.run(to);
      if (isDocument) {
        dress();
        if (endAnimations() > 0) {
          activity += 1;
          // Their events come with the next frame.
          await clock.frame();
          await clock.frame();
        }
      }
      await clock.turn();
      return this.state();
    },
    // What the realm does, once tasks that are due have run; with `frames`, once so many frames are drawn, too.
    async rest(frames) {
      if (isDocument) {
        dress();
        look();
        if (endAnimations() > 0) activity += 1;
      }
      for (let frame = 0; isDocument && frame < frames; frame += 1) await clock.frame();
      await clock.turn();
      return this.state();
    },
    // Once fonts and pictures are ready to be drawn.
    async ready() {
      const images = [...document.images].filter((image) => image.currentSrc && image.loading !== "lazy");
      await Promise.allSettled([document.fonts.ready, ...images.map((image) => image.decode())]);
    },
    state() {
      const told = [...refused.keys()];
      refused.clear();
      return { activity, pending, refused: told, next: clock.next() };
    },
  };
})
