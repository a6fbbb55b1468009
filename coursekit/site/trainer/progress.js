// The learner's answers, on this device only, in the format of coursekit/quiz/progress.py.

const KEY = "paged-attention-course.interview";
const VERSION = 1;
const KEEP = 20_000;
const FIELDS = { when: "string", question: "string", topic: "string", level: "number", score: "number", guess: "number", test: "string" };

export class Newer extends Error {}

export function parse(text) {
  const data = JSON.parse(text);
  if (Number.isInteger(data?.version) && data.version > VERSION) throw new Newer("written by a newer version");
  if (data?.version !== VERSION || !Array.isArray(data.answers)) throw new Error("not the trainer's file");
  const share = (value) => value >= 0 && value <= 1;
  for (const record of data.answers) {
    const names = Object.keys(record ?? {});
    const typed = names.length === 7 && names.every((name) => Object.hasOwn(FIELDS, name) && typeof record[name] === FIELDS[name]);
    const valid = typed && share(record.score) && share(record.guess) && record.guess < 1;
    if (!valid || ![1, 2, 3, 4, 5].includes(record.level)) throw new Error("not an answer");
  }
  return data.answers;
}

export const text = (records) => JSON.stringify({ version: VERSION, answers: records });

const identity = (record) => JSON.stringify(Object.keys(FIELDS).map((name) => record[name]));

export function merged(records, others) {
  const known = new Set(records.map(identity));
  const fresh = others.filter((record) => !known.has(identity(record)) && known.add(identity(record)));
  const by = (a, b) => (a.when < b.when ? -1 : a.when > b.when ? 1 : 0);
  return { records: [...records, ...fresh].sort(by).slice(-KEEP), added: fresh.length };
}

// `storage` is null where the browser refuses to store: answers then last until the page is closed.
export class Progress {
  constructor(storage = storageOrNull()) {
    Object.assign(this, { storage, records: [], notice: "" });
    if (!storage) this.notice = "This browser does not let the page store anything. Your progress lasts until you close it.";
    this.reload();
  }

  reload() {
    if (!this.storage) return;
    const saved = this.storage.getItem(KEY);
    if (saved === null) {
      this.records = [];
      return;
    }
    try {
      this.records = parse(saved);
    } catch (error) {
      if (error instanceof Newer) {
        this.notice = "Your progress was saved by a newer version of this page. It is unchanged, and this session is not saved.";
        this.storage = null;
      } else this.#setAside(saved);
    }
  }

  #setAside(saved) {
    let n = 1;
    while (this.storage.getItem(`${KEY}.damaged-${n}`) !== null) n += 1;
    this.notice = `The saved progress was damaged. It was set aside as “${KEY}.damaged-${n}”, and a new one was started.`;
    this.records = [];
    try {
      this.storage.removeItem(KEY);
      this.storage.setItem(`${KEY}.damaged-${n}`, saved);
    } catch {
      this.notice = "The saved progress was damaged, and there is no room to set it aside. A new one was started.";
    }
  }

  add(record) {
    this.#save((records) => [...records, record].slice(-KEEP));
  }

  merge(others) {
    const { added } = merged(this.records, others);
    this.#save((records) => merged(records, others).records);
    return added;
  }

  // Apply the change to what is stored now, so that two open pages lose nothing.
  #save(change) {
    const here = this.records;
    this.reload();
    this.records = change(this.storage ? this.records : here);
    try {
      this.storage?.setItem(KEY, text(this.records));
    } catch {
      this.notice = "Your progress cannot be saved: this browser's storage is full. You can continue without it.";
      this.storage = null;
    }
  }

  forget() {
    if (this.storage) Object.keys(this.storage).filter((key) => key.startsWith(KEY)).forEach((key) => this.storage.removeItem(key));
    this.records = [];
  }
}

function storageOrNull() {
  try {
    localStorage.setItem(`${KEY}.probe`, "");
    localStorage.removeItem(`${KEY}.probe`);
    return localStorage;
  } catch {
    return null;
  }
}
