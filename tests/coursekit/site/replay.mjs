// Replays Python's sessions with the trainer's modules: reads JSON from stdin, writes what JavaScript gets to stdout.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(process.argv[2] + "/").href;
const load = (name) => import(folder + name);
const [{ Dice }, { estimate }, { ask, judge, readNumber }, session, progress] = await Promise.all(
  ["dice.js", "ability.js", "judge.js", "session.js", "progress.js"].map(load));
const bank = JSON.parse(readFileSync(process.argv[2] + "/questions.json", "utf-8"));
const byId = new Map(bank.questions.map((question) => [question.id, question]));
const seen = (item) => [item.question.id, item.seed];
const refused = (work) => {
  try {
    return work();
  } catch (error) {
    if (error.constructor.name !== "Unclear") throw error;
    return "unclear";
  }
};

const DO = {
  dice: ({ seed, bounds }) => {
    const dice = new Dice(seed);
    return bounds.map((n) => dice.below(n));
  },
  session: ({ records, seed, scores }) => {
    const memory = { records: [...records], add(record) { this.records.push(record); } };
    const test = session.adaptive(bank, memory, bank.questions, seed);
    return scores.map((score) => {
      const item = test.next();
      test.keep(item, "", { score });
      const { general, topics } = estimate(memory.records, Object.keys(bank.topics));
      return [...seen(item), general.ability, general.error, Object.fromEntries([...topics].map(([key, one]) => [key, one.ability]))];
    });
  },
  daily: ({ day }) => session.daily(bank, { records: [] }, day).plan.map(seen),
  exam: ({ length, seed }) => session.exam(bank, { records: [] }, bank.questions, length, seed).plan.map(seen),
  item: ({ id, seed }) => {
    const { stem, options, explanation, numbers, guess } = ask(byId.get(id), seed);
    return { stem, options, explanation, guess, answer: numbers?.answer ?? null, wrong: numbers?.wrong.map(([value, why]) => [value, why]) ?? [] };
  },
  judge: ({ id, seed, typed }) => refused(() => judge(ask(byId.get(id), seed), typed)),
  number: ({ typed, unit }) => refused(() => readNumber(typed, unit)),
  merge: ({ a, b }) => progress.merged(a, b).records,
  parse: ({ text }) => {
    try {
      return progress.parse(text).length;
    } catch {
      return "refused";
    }
  },
};
const tasks = JSON.parse(readFileSync(0, "utf-8"));
process.stdout.write(JSON.stringify(tasks.map(([name, input]) => DO[name](input))));
