// A test on the screen, from question to question to the result.

import { explanation, fields, ticks } from "./answer.js";
import { h, inline, prose, show } from "./dom.js";
import { Unclear, judge, verdict } from "./judge.js";

const TITLES = { test: "Five questions", daily: "Today’s challenge", exam: "Exam" };

export class Sitting {
  constructor(bank, test, changed, finished) {
    Object.assign(this, { bank, test, changed, finished });
    this.next();
  }

  next() {
    const item = this.test.next();
    if (!item) {
      this.#result();
      return;
    }
    const field = fields(item);
    const problem = h("p", { class: "problem", role: "alert" });
    const buttons = h("div", { class: "buttons" },
      h("button", { type: "submit", class: "primary" }, item.question.kind === "open" ? "Compare" : "Answer"),
      h("button", { type: "button", onclick: () => this.#told(form, item, "", this.#keep(item, "", verdict(0, ""))) }, "I don’t know"));
    const form = h("form", { novalidate: true, onsubmit: (event) => {
      event.preventDefault();
      this.#answer(form, item, field.read(), problem);
    } }, field.element, problem, buttons);
    show(this.#heading(item), h("div", { class: "stem" }, prose(item.stem)), form);
  }

  #heading(item) {
    const { length, answered } = this.test;
    const number = answered.length + 1;
    const steps = Array.from({ length }, (_, i) => h("span", { class: i < answered.length ? "done" : i === answered.length ? "now" : "" }));
    return h("div", { class: "heading" },
      length <= 10 && h("div", { class: "steps", "aria-hidden": "true" }, steps),
      h("h1", { class: "small" }, `Question ${number} of ${length}`),
      h("p", { class: "note" }, `${this.bank.topics[item.question.topic]} · level ${item.question.level}`));
  }

  #answer(form, item, typed, problem) {
    try {
      const found = judge(item, typed);
      if (found.score === null) this.#compare(form, item, typed, found);
      else this.#told(form, item, typed, this.#keep(item, typed, found));
    } catch (error) {
      if (!(error instanceof Unclear)) throw error;
      problem.textContent = error.message;
    }
  }

  // The learner ticks the points that the answer has. A marked line is half of a code question, the fix the other half.
  #compare(form, item, typed, found) {
    const boxes = ticks(item, found);
    const code = item.question.kind === "code";
    const done = () => {
      const points = found.points.length + (code ? 1 : 0);
      const ticked = boxes.count() + (code ? 1 : 0);
      const reply = item.question.kind === "short" ? found.reply : `${ticked} of ${points} points`;
      this.#told(form, item, typed, this.#keep(item, typed, verdict(ticked / points, reply, found.points)), boxes.element);
    };
    freeze(form);
    form.querySelector(".buttons").replaceWith(boxes.element, h("div", { class: "buttons" },
      h("button", { type: "button", class: "primary", onclick: done }, "Count")));
    focusOn(boxes.element.querySelector("h2"));
  }

  #keep(item, typed, found) {
    this.test.keep(item, typed, found);
    this.changed();
    return found;
  }

  #told(form, item, typed, found) {
    freeze(form);
    form.querySelectorAll(".buttons, .problem").forEach((element) => element.remove());
    if (this.test.name === "exam") {
      this.next();
      return;
    }
    if (item.question.kind === "choice") form.querySelector(".options").remove();
    const last = this.test.answered.length >= this.test.length;
    const told = explanation(item, typed, found);
    form.append(told, h("div", { class: "buttons" },
      h("button", { type: "button", class: "primary", onclick: () => this.next() }, last ? "Result" : "Next question")));
    focusOn(told.querySelector("h2"));
  }

  #result() {
    const { answered, name } = this.test;
    const score = answered.reduce((sum, one) => sum + one.verdict.score, 0);
    const shown = Number(score.toFixed(2));
    const review = answered.map(({ item, typed, verdict: found }, i) => h("details", { class: "review" },
      h("summary", {}, h("span", { class: found.score === 1 ? "good" : "bad" }, `${Number(found.score.toFixed(2))} `), inline(`${i + 1}. ${item.stem.trim().split("\n")[0]}`)),
      prose(item.stem), item.question.code && h("pre", {}, h("code", {}, item.question.code)), explanation(item, typed, found)));
    show(h("h1", {}, `${TITLES[name]}: ${shown} of ${answered.length}`), review, this.finished(this.test));
  }
}

function freeze(form) {
  form.querySelectorAll("input, textarea, button").forEach((control) => (control.disabled = true));
}

function focusOn(heading) {
  heading.setAttribute("tabindex", "-1");
  heading.focus();
  heading.scrollIntoView({ block: "nearest" });
}
