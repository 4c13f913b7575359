// IndexedDB of one origin, in and out, as Playwright writes it: values that are JSON as they are, others in its encoding.
(() => {
  const KINDS = {
    i8: Int8Array, ui8: Uint8Array, ui8c: Uint8ClampedArray, i16: Int16Array, ui16: Uint16Array, i32: Int32Array,
    ui32: Uint32Array, f32: Float32Array, f64: Float64Array, bi64: BigInt64Array, bui64: BigUint64Array,
  };
  const toBase64 = (bytes) => {
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text);
  };
  const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

  // `above`: the objects that it is in; one that is in itself is not plain.
  const isPlain = (value, above = []) => {
    if (value === null || typeof value === "string" || typeof value === "boolean") return true;
    if (typeof value === "number") return Number.isFinite(value) && !Object.is(value, -0);
    if (typeof value !== "object" || above.includes(value)) return false;
    if (!Array.isArray(value) && Object.getPrototypeOf(value) !== Object.prototype) return false;
    return Object.values(value).every((item) => isPlain(item, [...above, value]));
  };
  const encode = (value, seen) => {
    if (value === undefined) return { v: "undefined" };
    if (value === null) return { v: "null" };
    if (typeof value === "bigint") return { bi: String(value) };
    if (typeof value === "number" && (!Number.isFinite(value) || Object.is(value, -0))) {
      return { v: Object.is(value, -0) ? "-0" : String(value) };
    }
    if (typeof value !== "object") return value;
    if (value instanceof Date) return { d: value.toJSON() };
    if (value instanceof RegExp) return { r: { p: value.source, f: value.flags } };
    if (value instanceof Error) return { e: { n: value.name, m: value.message, s: value.stack ?? "" } };
    if (value instanceof ArrayBuffer) return { ab: { b: toBase64(new Uint8Array(value)) } };
    for (const [k, kind] of Object.entries(KINDS)) {
      if (value instanceof kind) {
        return { ta: { b: toBase64(new Uint8Array(value.buffer, value.byteOffset, value.byteLength)), k } };
      }
    }
    if (seen.has(value)) return { ref: seen.get(value) };
    const id = seen.size + 1;
    seen.set(value, id);
    if (Array.isArray(value)) return { a: value.map((item) => encode(item, seen)), id };
    if (Object.getPrototypeOf(value) !== Object.prototype) {
      throw new Error(`a value of type ${value.constructor?.name ?? "unknown"} cannot be written`);
    }
    return { o: Object.entries(value).map(([k, item]) => ({ k, v: encode(item, seen) })), id };
  };
  const decode = (told, refs) => {
    if (typeof told !== "object" || told === null) return told;
    if ("ref" in told) return refs.get(told.ref);
    if ("v" in told) {
      return { undefined: undefined, null: null, NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity, "-0": -0 }[told.v];
    }
    if ("bi" in told) return BigInt(told.bi);
    if ("d" in told) return new Date(told.d);
    if ("u" in told) return new URL(told.u);
    if ("r" in told) return new RegExp(told.r.p, told.r.f);
    if ("e" in told) return Object.assign(new Error(told.e.m), { name: told.e.n, stack: told.e.s });
    if ("ab" in told) return fromBase64(told.ab.b).buffer;
    if ("ta" in told) return new KINDS[told.ta.k](fromBase64(told.ta.b).buffer);
    const made = "a" in told ? [] : {};
    refs.set(told.id, made);
    if ("a" in told) for (const item of told.a) made.push(decode(item, refs));
    else for (const { k, v } of told.o) made[k] = decode(v, refs);
    return made;
  };
  const put = (into, name, value) => {
    if (isPlain(value)) into[name] = value;
    else into[`${name}Encoded`] = encode(value, new Map());
  };
  const take = (from, name) =>
    from[`${name}Encoded`] === undefined ? from[name] : decode(from[`${name}Encoded`], new Map());

  const result = (request) =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      request.onblocked = () => reject(new Error("the database is in use"));
    });
  const keyPath = (path) => (Array.isArray(path) ? { keyPathArray: path } : path === null ? {} : { keyPath: path });
  const path = (told) => told.keyPathArray ?? told.keyPath ?? null;

  const read = async (bytesMax) => {
    const databases = [];
    let bytes = 0;
    for (const { name, version } of await indexedDB.databases()) {
      const db = await result(indexedDB.open(name));
      const stores = [];
      if (db.objectStoreNames.length > 0) {
        const transaction = db.transaction([...db.objectStoreNames], "readonly");
        const readStore = async (storeName) => {
          const store = transaction.objectStore(storeName);
          const [keys, values] = await Promise.all([result(store.getAllKeys()), result(store.getAll())]);
          const records = keys.map((key, at) => {
            const record = {};
            if (store.keyPath === null) put(record, "key", key);
            put(record, "value", values[at]);
            return record;
          });
          bytes += JSON.stringify(records).length;
          if (bytes > bytesMax) throw new Error(`more than ${bytesMax} bytes of IndexedDB`);
          const indexes = [...store.indexNames].map((indexName) => {
            const { name, keyPath: of, multiEntry, unique } = store.index(indexName);
            return { name, ...keyPath(of), multiEntry, unique };
          });
          return { name: storeName, ...keyPath(store.keyPath), autoIncrement: store.autoIncrement, records, indexes };
        };
        stores.push(...(await Promise.all([...db.objectStoreNames].map(readStore))));
      }
      db.close();
      databases.push({ name, version, stores });
    }
    return databases;
  };

  const write = async (databases) => {
    for (const { name, version, stores } of databases) {
      const request = indexedDB.open(name, version);
      request.onupgradeneeded = () => {
        for (const of of stores) {
          const options = { keyPath: path(of), autoIncrement: of.autoIncrement };
          const store = request.result.createObjectStore(of.name, options);
          for (const { name: index, multiEntry, unique, ...rest } of of.indexes) {
            store.createIndex(index, path(rest), { multiEntry, unique });
          }
        }
      };
      const db = await result(request);
      for (const of of stores.filter((of) => of.records.length > 0)) {
        const store = db.transaction(of.name, "readwrite").objectStore(of.name);
        await Promise.all(of.records.map((record) => {
          const value = take(record, "value");
          return result(path(of) === null ? store.put(value, take(record, "key")) : store.put(value));
        }));
      }
      db.close();
    }
  };
  return { read, write };
})()
