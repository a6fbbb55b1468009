// The form that takes an answer, and the explanation after it. One function for each.

import { h, inline, prose } from "./dom.js";
import { LETTERS, wrongLines } from "./judge.js";

// The fields of a question; `read()` returns what is typed or chosen.
export function fields(item) {
  const { question } = item;
  if (question.kind === "choice") return radios(item.options.map(([text], i) => [LETTERS[i], inline(text)]), "Options");
  if (question.kind === "code") {
    const lines = question.code.split("\n").map((line, i) => [String(i + 1), [h("code", {}, line || " ")]]);
    const marked = radios(lines, "Mark the wrong line", "code");
    const note = h("p", { class: "note" }, "Say or write the corrected line before you compare.");
    return { element: h("div", {}, marked.element, note), read: marked.read };
  }
  const unit = question.unit ?? "";
  if (question.kind === "open") {
    const area = h("textarea", { id: "answer", rows: 4, placeholder: "Say it aloud, or write it down" });
    return { element: h("div", {}, h("label", { for: "answer" }, "Your answer"), area), read: () => area.value };
  }
  const label = question.kind === "number" ? (unit ? `Your answer, in ${unit}` : "Your answer, a number") : "Your answer, a word or a few";
  const line = h("input", { id: "answer", autocomplete: "off", autocapitalize: "off", spellcheck: "false", enterkeyhint: "done",
    inputmode: question.kind === "number" ? "decimal" : "text" });
  return { element: h("div", {}, h("label", { for: "answer" }, label), line), read: () => line.value };
}

function radios(entries, legend, style = "") {
  const options = entries.map(([value, text]) => h("label", { class: "option" },
    h("input", { type: "radio", name: "option", value }), h("span", { class: "letter", "aria-hidden": "true" }, value), h("span", {}, text)));
  const element = h("fieldset", { class: `options ${style}` }, h("legend", {}, legend), options);
  return { element, read: () => element.querySelector("input:checked")?.value ?? "" };
}

// The points to tick after an open answer, or a short one that was not recognised.
export function ticks(item, verdict) {
  const boxes = verdict.points.map((point) => h("input", { type: "checkbox" }));
  const labels = verdict.points.map((point, i) => h("label", { class: "option" }, boxes[i], h("span", {}, inline(point))));
  const open = item.question.kind === "open";
  const answer = item.question.kind === "code" ? fix(item.question) : open ? prose(item.answer) : [];
  const element = h("div", { class: "strong" },
    h("h2", {}, open ? "A strong answer" : verdict.reply), answer,
    h("fieldset", { class: "options" }, h("legend", {}, open ? "Which of these did yours say?" : "Compare"), labels));
  return { element, count: () => boxes.filter((box) => box.checked).length };
}

function fix(question) {
  const fixed = question.answer.split("\n");
  return wrongLines(question).map((number) => h("pre", {}, h("code", {}, `${number}  ${fixed[number - 1].trim()}`)));
}

// Right or wrong, the answer, why, why each other option is wrong, and where the course shows it.
export function explanation(item, typed, verdict) {
  const { question } = item;
  const right = verdict.score === 1;
  const part = !right && verdict.score > 0;
  const head = right ? "✓ Right" : part || question.kind === "open" ? verdict.reply || "Not answered" : "✗ Not right";
  const parts = [h("h2", {}, head)];
  const isWhy = !right && verdict.reply && verdict.reply !== head && !verdict.reply.startsWith("The answer is");
  if (isWhy && question.kind !== "choice") parts.push(h("p", {}, inline(verdict.reply)));
  if (question.kind === "code" && !verdict.points.length) parts.push(h("p", {}, "The corrected line:"), ...fix(question));
  else if (question.kind === "open" && !verdict.points.length) parts.push(...prose(item.answer), list(question.rubric));
  else if (["number", "short"].includes(question.kind)) parts.push(h("p", {}, "The answer is ", h("strong", {}, inline(answerOf(item))), "."));
  parts.push(...prose(item.explanation));
  if (question.kind === "choice") parts.push(options(item, typed));
  const others = question.kind === "number" ? item.numbers.wrong.map(([, why, told]) => [told, why])
    : question.kind === "short" ? question.wrong : [];
  if (others.length) parts.push(h("details", {}, h("summary", {}, "Why other answers are wrong"), h("dl", {}, pairs(others))));
  parts.push(h("p", { class: "source" }, "Shown in ", inline(question.shown), ". Source: ", inline(question.source.replace(/\.$/, "")), "."));
  return h("section", { class: `verdict ${right ? "right" : part ? "part" : "wrong"}` }, parts);
}

const answerOf = (item) => item.answer.replace(/\.$/, "");
const list = (points) => h("ul", {}, points.map((point) => h("li", {}, inline(point))));
const pairs = (entries) => entries.flatMap(([text, why]) => [h("dt", {}, inline(text)), h("dd", {}, inline(why))]);

function options(item, typed) {
  return h("ol", { class: "reasons" }, item.options.map(([text, why], i) => {
    const chosen = LETTERS[i] === typed;
    const mark = why ? (chosen ? "Your answer" : "Wrong") : chosen ? "Your answer, right" : "Right";
    return h("li", { class: why ? (chosen ? "chosen" : "") : "right" },
      h("span", { class: "mark" }, mark), h("strong", {}, inline(text)), why && h("p", {}, inline(why)));
  }));
}
