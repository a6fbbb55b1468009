// One question as asked, and the verdict on an answer: coursekit/quiz/judge.py and template.py in JavaScript.

import { Dice } from "./dice.js";

export const LETTERS = "abcde";
export class Unclear extends Error {}

const BYTES = { b: 1, byte: 1, bytes: 1 };
["k", "m", "g", "t"].forEach((prefix, i) => {
  BYTES[`${prefix}b`] = 1000 ** (i + 1);
  BYTES[`${prefix}ib`] = 1024 ** (i + 1);
});
const SECONDS = { s: 1, ms: 1e-3, us: 1e-6, "µs": 1e-6 };
const CONVERTED = 0.005;

// An item: {question, seed, stem, options: [[text, why or ""]], numbers, guess, answer, explanation}.
export function ask(question, seed) {
  const item = { question, seed, stem: question.stem, options: [], guess: 0 };
  item.answer = question.answer;
  item.explanation = question.explanation;
  if (question.kind === "choice") {
    item.options = new Dice(`${question.id} ${seed}`).shuffled([[question.answer, ""], ...question.wrong]);
    item.guess = 1 / item.options.length;
  }
  if (question.kind === "number") {
    const [answer, told, wrong, wrongTold, shown] = row(question, new Dice(`${question.id} ${seed}`));
    const text = (pieces) => pieces.map((piece) => (typeof piece === "number" ? shown[piece] : piece)).join("");
    const whys = question.whys.map(text);
    item.stem = text(question.stem);
    item.explanation = text(question.explanation);
    item.answer = told;
    item.numbers = { answer, wrong: wrong.map((value, i) => [value, whys[i], wrongTold[i]]) };
  }
  return item;
}

function row(question, dice) {
  for (let i = 0; i < 1000; i++) {
    let index = 0;
    for (const size of question.sizes) index = index * size + dice.below(size);
    if (question.rows[index]) return question.rows[index];
  }
  throw new Error(`question ${question.id}: no valid draw`);
}

// Returns {score, reply, points}: score is null if the learner must tick the points.
export function judge(item, typed) {
  if (typed.length > 20000) throw new Unclear("That is too long for an answer.");
  switch (item.question.kind) {
    case "choice": {
      const option = item.options[LETTERS.indexOf(typed)];
      if (typed.length !== 1 || !option) throw new Unclear("Please choose an answer.");
      return verdict(option[1] ? 0 : 1, option[1]);
    }
    case "number":
      return judgeNumber(item, typed);
    case "short":
      return judgeShort(item.question, typed);
    case "code":
      return judgeCode(item.question, typed);
    default:
      return verdict(null, "", item.question.rubric);
  }
}

export function verdict(score, reply, points = []) {
  return { score, reply, points };
}

function close(value, right, tolerance) {
  return Math.abs(value - right) <= Math.max(tolerance, 1e-9) * Math.abs(right);
}

function judgeNumber(item, typed) {
  const { unit, tolerance } = item.question;
  const [value, converted] = readNumber(typed, unit);
  const right = item.numbers.answer;
  const near = Math.max(tolerance, converted ? CONVERTED : 0);
  const readings = [value];
  if (unit === "%" && !typed.includes("%") && Math.abs(value) <= 1) readings.push(100 * value);
  if (readings.some((one) => close(one, right, near))) return verdict(1, "");
  const whys = item.numbers.wrong.filter(([wrong]) => close(value, wrong, near)).map(([, why]) => why);
  return verdict(0, [...new Set(whys)].join(" Or: ") || factor(value, right));
}

function factor(value, right) {
  if (!value || !right) return "";
  for (const [ratio, words] of [[value / right, "too large"], [right / value, "too small"]]) {
    const whole = Math.round(ratio);
    if (whole >= 2 && whole <= 1024 && Math.abs(ratio - whole) < 1e-6 * whole) {
      return `Your answer is ${whole} times ${words}.`;
    }
  }
  return "";
}

export function readNumber(typed, unit) {
  const inUnit = unit ? `, in ${unit}` : "";
  const text = typed.trim().replace(/^[$€≈~= ]+/, "").replace(/[\u00a0\u202f]/g, " ").replace(/\u2212/g, "-");
  const found = /^([-+]?[0-9][0-9.,_' ]*(?:[eE][-+]?[0-9]{1,3})?|[-+]?\.[0-9]+)\s*([^0-9]*)$/.exec(text);
  if (!found) throw new Unclear(`Please give a number${inUnit}.`);
  let digits = found[1].trim().replace(/[.,]+$/, "").replace(/[_' ]/g, "");
  const word = found[2].trim();
  if (/^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?([eE].*)?$/.test(digits)) digits = digits.replaceAll(",", "");
  else if (digits.split(",").length === 2 && !digits.includes(".")) digits = digits.replace(",", ".");
  if (!/^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$/.test(digits)) {
    throw new Unclear(`“${found[1].trim()}” is not a single number${inUnit}.`);
  }
  const value = Number(digits);
  if (!Number.isFinite(value)) throw new Unclear("That number is too large.");
  const [mine, theirs] = [unit.toLowerCase(), word.toLowerCase()];
  for (const family of [BYTES, SECONDS]) {
    if (Object.hasOwn(family, theirs) && Object.hasOwn(family, mine)) {
      const differs = family[theirs] !== family[mine];
      return [differs ? (value * family[theirs]) / family[mine] : value, differs];
    }
  }
  const stem = (text) => text.replace(/s+$/, "");
  if (theirs && stem(theirs) !== stem(mine)) {
    throw new Unclear(unit ? `Please answer in ${unit}, not in ${word}.` : `Please give a plain number, without “${word}”.`);
  }
  return [value, false];
}

function wordsOf(text) {
  const words = text.toLowerCase().replace(/[-_/]/g, " ").match(/[a-z0-9]+/g) ?? [];
  return words.filter((word) => !["a", "an", "the", "its", "it", "is"].includes(word));
}

function judgeShort(question, typed) {
  const given = wordsOf(typed);
  if (!given.length) throw new Unclear("Please give a word or a few.");
  for (const [text, why] of question.wrong) {
    if (given.join(" ") === wordsOf(text).join(" ")) return verdict(0, why);
  }
  if ([question.answer, ...question.accept].some((text) => says(given, wordsOf(text)))) return verdict(1, "");
  return verdict(null, `The answer is: ${question.answer}.`, ["I meant the same"]);
}

function says(given, wanted) {
  const denied = ["not", "no", "never", "or", "than"].some((word) => given.includes(word) && !wanted.includes(word));
  if (given.length > wanted.length + 3 || denied) return false;
  return given.some((_, i) => i + wanted.length <= given.length && wanted.every((word, j) => given[i + j] === word));
}

// Code cannot run here: the learner marks the wrong line and says the fix in words. `typed` is the line's number.
function judgeCode(question, typed) {
  const [old, fixed] = [question.code.split("\n"), question.answer.split("\n")];
  const line = Number(typed);
  if (!Number.isInteger(line) || line < 1 || line > old.length) throw new Unclear("Please mark the wrong line.");
  if (old[line - 1] === fixed[line - 1]) return verdict(0, `Line ${line} is right.`);
  return verdict(null, `Line ${line} is wrong, as you say.`, ["My fix does the same"]);
}

export function wrongLines(question) {
  const fixed = question.answer.split("\n");
  return question.code.split("\n").flatMap((line, i) => (line === fixed[i] ? [] : [i + 1]));
}
