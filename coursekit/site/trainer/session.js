// A test: selection of the next question. coursekit/quiz/session.py in JavaScript.

import { estimate, information } from "./ability.js";
import { Dice } from "./dice.js";
import { ask } from "./judge.js";

export const LENGTH = 5;
const SAME_LEVEL = 2;
const AMONG = 3;
const WRONG_RETURNS = 4;
const SEEDS = 2 ** 30;
const LEVELS = [1, 2, 3, 4, 5];

// `progress` has `records` and `add(record)`.
export class Test {
  constructor(name, length, progress, dice, topics, { choices = [], plan = [] }) {
    Object.assign(this, { name, length, progress, dice, topics, choices, plan, answered: [] });
  }

  next() {
    const done = this.answered.length;
    if (done >= this.length) return null;
    if (this.plan.length) return this.plan[done];
    const question = this.#choose();
    return question && ask(question, this.dice.below(SEEDS));
  }

  keep(item, typed, verdict) {
    this.answered.push({ item, typed, verdict });
    const { id, topic, level } = item.question;
    const when = new Date().toISOString().slice(0, 19) + "+00:00";
    this.progress.add({ when, question: id, topic, level, score: verdict.score, guess: item.guess, test: this.name });
  }

  #choose() {
    const asked = new Set(this.answered.map((one) => one.item.question.id));
    let left = this.choices.filter((question) => !asked.has(question.id));
    const full = this.#fullLevels();
    const open = left.filter((question) => !full.has(question.level));
    left = open.length ? open : left;
    if (!left.length) return null;
    const records = this.progress.records;
    const known = estimate(records, this.topics).topics;
    const seen = new Map(records.map((record, i) => [record.question, [records.length - i, record.score]]));
    const last = this.answered.slice(1 - LENGTH).map((one) => one.item.question);
    const worth = (question) => {
      const { ability, error } = known.get(question.topic);
      const guess = question.kind === "choice" ? 1 / (1 + question.wrong.length) : 0;
      let value = information(ability, question.level, guess) * error ** 2;
      if (seen.has(question.id)) {
        const [ago, score] = seen.get(question.id);
        const sooner = score === 1 ? 1 : WRONG_RETURNS;
        value *= Math.min(1, (ago * sooner) / (WRONG_RETURNS * this.choices.length));
      }
      value *= 0.6 ** last.slice(-2).filter((one) => one.topic === question.topic).length;
      value *= 0.6 ** last.filter((one) => one.kind === question.kind).length;
      return Number(value.toPrecision(9));
    };
    const ranked = left.map((question) => [worth(question), question]).sort((a, b) => b[0] - a[0]);
    return this.dice.choice(ranked.slice(0, AMONG))[1];
  }

  #fullLevels() {
    const block = this.answered.slice(Math.floor(this.answered.length / LENGTH) * LENGTH);
    const levels = block.map((one) => one.item.question.level);
    return new Set(levels.filter((level) => levels.filter((one) => one === level).length >= SAME_LEVEL));
  }
}

const topicsOf = (bank) => Object.keys(bank.topics);
const diceOf = (seed) => new Dice(seed === undefined ? undefined : `test ${seed}`);

export function adaptive(bank, progress, choices, seed) {
  return new Test("test", Math.min(LENGTH, choices.length), progress, diceOf(seed), topicsOf(bank), { choices });
}

// `day` is a date in UTC: "2031-05-17".
export function daily(bank, progress, day) {
  const dice = new Dice(`daily ${day}`);
  const byLevel = LEVELS.map((level) => bank.questions.filter((one) => one.level === level)).filter((one) => one.length);
  const plan = byLevel.map((questions) => turn(questions, day)).map((question) => ask(question, dice.below(SEEDS)));
  return new Test("daily", plan.length, progress, dice, topicsOf(bank), { plan });
}

function turn(questions, day) {
  const sorted = [...questions].sort((a, b) => a.chapter - b.chapter || (a.id < b.id ? -1 : 1));
  const ordinal = Date.parse(`${day}T00:00:00Z`) / 86_400_000 + 719_163; // Python's date.toordinal
  return new Dice(`round ${Math.floor(ordinal / sorted.length)}`).shuffled(sorted)[ordinal % sorted.length];
}

export function exam(bank, progress, choices, length, seed) {
  const dice = diceOf(seed);
  const left = dice.shuffled(choices);
  const chosen = [];
  const [topics, levels] = [new Map(), new Map()];
  const count = (map, key) => map.get(key) ?? 0;
  while (chosen.length < length && left.length) {
    const rank = (one) => [count(topics, one.topic) + count(levels, one.level), count(topics, one.topic)];
    let best = 0;
    left.forEach((one, i) => {
      const [a, b] = rank(one);
      const [c, d] = rank(left[best]);
      if (a < c || (a === c && b < d)) best = i;
    });
    const [rarest] = left.splice(best, 1);
    chosen.push(rarest);
    topics.set(rarest.topic, count(topics, rarest.topic) + 1);
    levels.set(rarest.level, count(levels, rarest.level) + 1);
  }
  const plan = chosen.sort((a, b) => a.level - b.level).map((question) => ask(question, dice.below(SEEDS)));
  return new Test("exam", plan.length, progress, dice, topicsOf(bank), { plan });
}

// Every topic, the weakest first, unasked ones last: coursekit/quiz/report.py.
export function standing(bank, progress) {
  const answers = progress.records.filter((record) => record.topic in bank.topics);
  const known = estimate(answers, topicsOf(bank)).topics;
  return topicsOf(bank)
    .map((key) => ({ key, title: bank.topics[key], ...known.get(key) }))
    .map((one) => ({ ...one, level: one.ability + 3, weak: one.answers >= 2 && one.ability < 0 }))
    .sort((a, b) => !a.answers - !b.answers || a.ability - b.ability);
}
