// The page: home, a test, progress. The address's fragment names the page, so the device's back button works.

import { h, show } from "./dom.js";
import { Newer, Progress, parse, text } from "./progress.js";
import { adaptive, daily, exam, standing } from "./session.js";
import { Sitting } from "./sitting.js";

const progress = new Progress();
const bank = await (await fetch("questions.json")).json();
const today = () => new Date().toISOString().slice(0, 10);
const chosen = { topic: "", level: "" };

const choices = () => bank.questions.filter((question) =>
  (!chosen.topic || chosen.topic === question.topic || chosen.topic === String(question.chapter)) &&
  (!chosen.level || chosen.level === String(question.level)));

function select(id, label, options) {
  const box = h("select", { id, onchange: () => { chosen[id] = box.value; home(); document.getElementById(id).focus(); } },
    options.map(([value, title]) => h("option", { value, selected: chosen[id] === value }, title)));
  return h("div", { class: "field" }, h("label", { for: id }, label), box);
}

function home() {
  const possible = choices();
  const chapters = [...new Set(bank.questions.map((one) => one.chapter))].sort((a, b) => a - b);
  const topics = [["", "Everything"], ...chapters.map((one) => [String(one), `Chapter ${one}`]), ...Object.entries(bank.topics)];
  const levels = [["", "All levels"], ...[1, 2, 3, 4, 5].map((one) => [String(one), `Level ${one}`])];
  const weakest = standing(bank, progress).find((topic) => topic.weak);
  const done = progress.records.some((record) => record.test === "daily" && record.when.startsWith(today()));
  const lengths = [10, 20, 40].filter((length) => length <= possible.length);
  const begin = (make) => () => start(make);
  show(
    h("h1", {}, "Interview practice"),
    h("section", { class: "card lead" },
      h("h2", {}, "Five questions"),
      h("p", {}, "They adapt to your answers. Every answer is explained."),
      h("div", { class: "fields" }, select("topic", "About", topics), select("level", "Difficulty", levels)),
      possible.length
        ? h("button", { class: "primary", onclick: begin(() => adaptive(bank, progress, choices())) }, "Start")
        : h("p", { class: "problem" }, "There is no question of this level: choose another."),
      weakest && h("p", { class: "note" }, `Weakest so far: ${weakest.title}. `,
        h("button", { class: "link", onclick: () => { chosen.topic = weakest.key; chosen.level = ""; start(() => adaptive(bank, progress, choices())); } }, "Practice it"))),
    h("div", { class: "pair" },
      h("section", { class: "card" }, h("h2", {}, "Today’s challenge"),
        h("p", {}, done ? "Done for today. There are new questions tomorrow." : "One question of each level, the same for everyone."),
        h("button", { onclick: begin(() => daily(bank, progress, today())) }, done ? "Repeat" : "Start")),
      h("section", { class: "card" }, h("h2", {}, "Exam"), h("p", {}, "Spread over the chosen topics and levels. The answers come at the end."),
        h("div", { class: "buttons" }, lengths.map((length) =>
          h("button", { "aria-label": `Exam of ${length} questions`, onclick: begin(() => exam(bank, progress, choices(), length)) }, String(length)))),
        lengths.length === 0 && h("p", { class: "note" }, "Too few questions are chosen."))),
    h("p", { class: "note" }, `${bank.questions.length} questions. Your answers stay on this device.`));
}

function start(make) {
  location.hash = "#test";
  showing = "#test";
  new Sitting(bank, make(), notices, (test) => [
    h("section", {}, h("h2", {}, "Where you stand"), levels()),
    h("div", { class: "buttons" },
      test.name === "test" && h("button", { class: "primary", onclick: () => start(() => adaptive(bank, progress, choices())) }, "Five more"),
      h("a", { class: "button", href: "#home" }, "Home"))]);
}

function levels() {
  const topics = standing(bank, progress);
  const asked = topics.filter((topic) => topic.answers);
  const rest = topics.filter((topic) => !topic.answers);
  if (!asked.length) return h("p", {}, "You have not answered any questions yet.");
  return h("div", {},
    h("p", { class: "note" }, "The level at which you solve half of the questions, with its uncertainty."),
    h("ul", { class: "levels" }, asked.map((topic) => h("li", {},
      h("span", {}, topic.title, topic.weak && h("span", { class: "weak" }, "weak")),
      h("meter", { min: 0, max: 6, value: Math.min(6, Math.max(0, topic.level)), "aria-label": `${topic.title}, level` }),
      h("span", { class: "value" }, `${topic.level.toFixed(1)} ± ${topic.error.toFixed(1)}`)))),
    rest.length > 0 && h("p", { class: "note" }, `Not asked yet: ${rest.map((topic) => topic.title).join("; ")}.`));
}

function progressPage(said = "") {
  const file = h("input", { type: "file", accept: "application/json,.json", id: "file", class: "hidden", onchange: () => bring(file.files[0]) });
  const sure = h("div", { hidden: true },
    h("p", {}, "All answers on this device will be deleted."),
    h("div", { class: "buttons" },
      h("button", { class: "danger", onclick: () => { progress.forget(); progressPage("Deleted."); } }, "Delete them"),
      h("button", { onclick: () => { sure.hidden = true; } }, "Keep them")));
  show(
    h("h1", {}, "Progress"), h("p", { role: "status", class: "said" }, said), levels(),
    h("section", { class: "card" }, h("h2", {}, "Your answers"),
      h("p", {}, `${progress.records.length} answers on this device. The file has the course’s own format: `,
        h("code", {}, "python3 course.py quiz --import FILE"), " adds it to your progress there."),
      h("div", { class: "buttons" },
        h("button", { onclick: exportFile }, "Export"),
        h("label", { class: "button", for: "file" }, "Import"), file,
        h("button", { onclick: () => { sure.hidden = false; sure.querySelector("button").focus(); } }, "Delete…")), sure));
}

function exportFile() {
  const address = URL.createObjectURL(new Blob([text(progress.records)], { type: "application/json" }));
  const link = h("a", { href: address, download: "interview.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function bring(file) {
  if (!file) return;
  try {
    const added = progress.merge(parse(await file.text()));
    progressPage(added === 1 ? "1 new answer." : `${added} new answers.`);
  } catch (error) {
    progressPage(error instanceof Newer ? "This file was written by a newer version: update this page first." : "This is not a file of saved progress. Nothing was changed.");
  }
  notices();
}

function notices(update) {
  const area = document.getElementById("notices");
  if (update) area.append(h("p", {}, "A new version is ready. ", h("button", { class: "link", onclick: () => update.postMessage("take over") }, "Reload")));
  if (progress.notice) area.append(h("p", {}, progress.notice));
  progress.notice = "";
}

let showing = "";
function route() {
  const page = location.hash || "#home";
  if (page === showing) return;
  showing = page;
  if (page === "#progress") progressPage();
  else if (page !== "#main") home();
}

addEventListener("hashchange", route);
addEventListener("storage", () => progress.reload());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("textarea, select, input:not([type=radio])")) return;
  const option = document.querySelector(`.options:not(.code) input[type=radio][value="${CSS.escape(event.key)}"]:enabled`);
  option?.click();
  option?.focus();
});
notices();
route();

async function keepOffline() {
  const policy = globalThis.trustedTypes?.createPolicy("worker", { createScriptURL: (url) => url });
  const registration = await navigator.serviceWorker.register(policy?.createScriptURL("worker.js") ?? "worker.js");
  const waiting = () => registration.waiting && navigator.serviceWorker.controller && notices(registration.waiting);
  waiting();
  registration.addEventListener("updatefound", () => {
    const worker = registration.installing;
    worker.addEventListener("statechange", () => worker.state === "installed" && waiting());
  });
  const updates = Boolean(navigator.serviceWorker.controller);
  navigator.serviceWorker.addEventListener("controllerchange", () => updates && location.reload());
}
if ("serviceWorker" in navigator) keepOffline().catch(() => {});
