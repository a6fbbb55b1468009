// The live page. Frames arrive as server-sent events; every frame is the whole state, so a missed one does no harm.
"use strict";

const $ = (id) => document.getElementById(id);
const HUES = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442"]; // Okabe and Ito
const DARK_TEXT = new Set(["#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#009E73"]);
const STORY = 8; // changes remembered per block
const FREE = 0, CACHED = -1, SHARED = -2;
let info = null, frame = null, owner = new Int32Array(0);
let holders = new Map(), chosen = null, serial = 0, rate = 0, last = null, waitsForPaint = false;
const stories = new Map();

const hue = (id) => HUES[(id - 1) % HUES.length];
const letter = (id) => String.fromCharCode(65 + (id - 1) % 26);
const label = (id) => `${letter(id)} (request ${id})`;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)} %`;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function swatch(background, ink, text) {
  const made = element("span", text, { class: "swatch", "aria-hidden": "true" });
  made.style.background = background;
  made.style.color = ink;
  return made;
}

// ---- the state of each block, from a frame

function read(next) {
  const cells = new Int32Array(info.num_blocks);
  for (let i = 0; i < next.cached.length; i += 2) cells.fill(CACHED, next.cached[i], next.cached[i] + next.cached[i + 1]);
  holders = new Map();
  for (const request of next.requests) {
    request.sequences.forEach((sequence, index) => sequence.blocks.forEach((block, logical) => {
      const list = holders.get(block);
      const one = { id: request.id, index, logical, filled: Math.min(next.block_size, Math.max(0, sequence.computed - logical * next.block_size)) };
      if (list) { list.push(one); cells[block] = SHARED; } else { holders.set(block, [one]); cells[block] = request.id; }
    }));
  }
  remember(cells, next.metrics.steps);
  owner = cells;
}

function remember(cells, step) {
  if (owner.length !== cells.length) return;
  for (let block = 0; block < cells.length; block++) {
    if (cells[block] === owner[block]) continue;
    const story = stories.get(block) || [];
    const what = cells[block];
    story.push(`step ${step}: ${what === FREE ? "free" : what === CACHED ? "free, contents cached" : what === SHARED
      ? `shared by ${holders.get(block).map((h) => letter(h.id)).join(", ")}` : `held by ${label(what)}`}`);
    if (story.length > STORY) story.shift();
    stories.set(block, story);
  }
}

// ---- the map

function layout() {
  const width = Math.max(1, $("map").clientWidth), n = info.num_blocks;
  const target = Math.min(420, Math.max(160, window.innerHeight * 0.45));
  let size = Math.min(30, Math.max(2, Math.floor(Math.sqrt(width * target / n))));
  const columns = Math.max(1, Math.floor(width / size));
  return { size: width / columns, columns, rows: Math.ceil(n / columns) };
}

function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1, w = Math.round(width * scale), h = Math.round(height * scale);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function paintMap() {
  const { size, columns, rows } = layout(), map = $("map");
  const context = prepare(map, map.clientWidth, rows * size);
  const gap = size > 9 ? 2 : size > 4 ? 1 : 0, side = size - gap, free = css("--free"), cached = css("--cached"), ink = css("--ink"), panel = css("--panel");
  const groups = new Map(); // colour → blocks: one fill style per colour, also with 100,000 blocks
  for (let block = 0; block < owner.length; block++) {
    const who = owner[block];
    const colour = who === FREE ? free : who === CACHED ? cached : who === SHARED ? ink : hue(who);
    if (!groups.has(colour)) groups.set(colour, []);
    groups.get(colour).push(block);
  }
  for (const [colour, blocks] of groups) {
    context.fillStyle = colour;
    for (const block of blocks) context.fillRect((block % columns) * size, Math.floor(block / columns) * size, side, side);
  }
  if (size >= 14) {
    context.font = `600 ${Math.floor(size * 0.5)}px ui-monospace, monospace`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const [block, list] of holders) {
      const shared = list.length > 1;
      context.fillStyle = shared ? panel : DARK_TEXT.has(hue(list[0].id)) ? "#111" : "#fff";
      context.fillText(shared ? `×${list.length}` : letter(list[0].id), (block % columns) * size + side / 2, Math.floor(block / columns) * size + side / 2 + 0.5);
    }
  }
  if (chosen !== null) {
    const x = (chosen % columns) * size, y = Math.floor(chosen / columns) * size;
    for (const [colour, line] of [[panel, 5], [ink, 2.5]]) { // seen on every colour
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(x, y, side, side);
    }
  }
}

// ---- contiguous reservations: each sequence reserves room for its longest possible length

function paintReserved() {
  const canvas = $("reserved"), width = canvas.clientWidth, height = 34, total = info.num_blocks * info.block_size;
  const context = prepare(canvas, width, height);
  context.fillStyle = css("--free");
  context.fillRect(0, 0, width, height);
  let at = 0, used = 0, waiting = 0, fits = 0;
  for (const request of frame.requests) {
    const each = request.prompt + request.most, need = request.width * each;
    if (at + need > total) { waiting++; continue; }
    request.sequences.forEach((sequence, index) => {
      const x = (at + index * each) / total * width;
      context.fillStyle = hue(request.id);
      context.globalAlpha = 0.3;
      context.fillRect(x, 0, Math.max(1, each / total * width - 1), height);
      context.globalAlpha = 1;
      context.fillRect(x, 0, sequence.computed / total * width, height);
      used += sequence.computed;
    });
    at += need;
    fits++;
  }
  const text = frame.requests.length === 0 ? "No requests." : `${percent(at / total)} reserved, ${percent(used / total)} filled` +
    (waiting ? `: full now, ${waiting} of ${frame.requests.length} would wait` : `; ${fits === 1 ? "the request fits" : `all ${fits} fit`}`);
  $("reserved-text").textContent = text;
  canvas.setAttribute("aria-label", `Contiguous reservations: ${text}`);
}

// ---- words and numbers

function describe(block) {
  const list = holders.get(block) || [];
  const state = list.length === 0 ? (owner[block] === CACHED ? "free, its contents are cached" : "free") :
    list.map((h) => `${label(h.id)}${h.index ? `, sample ${h.index}` : ""}, logical block ${h.logical}, ${h.filled} of ${info.block_size} slots filled`).join("; ");
  return `Block ${block}: ${list.length > 1 ? `shared by ${list.length}: ` : ""}${state}.`;
}

function choose(block) {
  chosen = block;
  $("detail").textContent = block === null ? "" : describe(block);
  $("story").replaceChildren(...(block === null ? [] : (stories.get(block) || []).map((line) => element("li", line))));
  if (frame) paintMap();
}

function showNumbers() {
  const m = frame.metrics;
  if (last && frame.time - last.time >= 1) {
    rate = (m.generated_tokens - last.tokens) / (frame.time - last.time);
    last = null;
  }
  last = last || { time: frame.time, tokens: m.generated_tokens };
  const ms = (seconds) => seconds === null ? "–" : seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(1)} s`;
  const rows = [
    ["Tokens per second", m.running ? rate.toFixed(0) : "0"], ["Running", m.running], ["Waiting", m.waiting], ["Swapped out", m.swapped],
    ["Blocks held", percent(m.utilisation)], ["Wasted slots", m.used_blocks ? percent(m.wasted_slots / (m.used_blocks * frame.block_size)) : "0 %"],
    ["Prefix hit rate", m.block_queries ? percent(m.block_hits / m.block_queries) : "–"], ["Preemptions", m.preemptions],
    ["TTFT p50 / p99", `${ms(m.ttft_p50)} / ${ms(m.ttft_p99)}`], ["ITL p50 / p99", `${ms(m.itl_p50)} / ${ms(m.itl_p99)}`],
  ];
  $("numbers").replaceChildren(...rows.map(([name, value]) => { const group = element("div"); group.append(element("dt", name), element("dd", String(value))); return group; }));
  const shared = [...holders.values()].filter((list) => list.length > 1).length, cached = owner.reduce((n, who) => n + (who === CACHED), 0);
  const text = `${m.used_blocks.toLocaleString("en")} of ${count(m.num_blocks, "block")} held, ${shared} shared, ${cached} cached`;
  $("summary").textContent = text;
  $("map").setAttribute("aria-label", `Map of the blocks: ${text}`);
}

function showRequests() {
  const rows = frame.requests.slice(0, 200).map((request) => {
    const row = element("tr"), name = element("td"), button = element("button", undefined, { type: "button", "data-request": request.id });
    button.append(swatch(hue(request.id), DARK_TEXT.has(hue(request.id)) ? "#111" : "#fff", letter(request.id)), element("span", String(request.id)));
    name.append(button);
    const blocks = new Set(request.sequences.flatMap((s) => s.blocks)).size, host = request.sequences.reduce((n, s) => n + s.host, 0);
    const tokens = request.sequences.map((s) => s.tokens).join(" + ");
    row.append(name, element("td", request.status), element("td", tokens), element("td", host ? `${host} on the host` : String(blocks)), element("td", request.text || (info.show_text ? "" : "hidden"), { class: "text" }));
    return row;
  });
  const focused = document.activeElement && document.activeElement.dataset.request;
  $("requests").replaceChildren(...rows);
  if (focused) { const again = document.querySelector(`[data-request="${focused}"]`); if (again) again.focus(); }
}

function showLog() {
  for (const event of frame.happened) {
    if (event.serial <= serial) continue;
    serial = event.serial;
    $("log").prepend(element("li", `Request ${letter(event.request)} (${event.request}) ${event.kind === "preempted" ? "was preempted" : event.kind === "admitted" ? "was admitted" : "finished"}`));
  }
  while ($("log").children.length > 50) $("log").lastChild.remove();
}

function showPresenter() {
  $("pause").setAttribute("aria-pressed", String(frame.paused));
  $("pause").firstChild.textContent = frame.paused ? "Continue " : "Pause ";
  $("step").disabled = !frame.paused;
  if (document.activeElement !== $("delay")) $("delay").value = String(frame.delay);
}

function paint() {
  waitsForPaint = false;
  if (!frame) return;
  read(frame);
  paintMap();
  paintReserved();
  showNumbers();
  showRequests();
  showLog();
  showPresenter();
  if (chosen !== null) choose(chosen);
}

function repaint() {
  if (!waitsForPaint) { waitsForPaint = true; requestAnimationFrame(paint); }
}

// ---- a prompt from this page

let running = null;
async function ask(event) {
  event.preventDefault();
  running = new AbortController();
  $("send").disabled = true;
  $("cancel").disabled = false;
  $("reply").textContent = "";
  $("state").textContent = "Waiting for the first token…";
  const texts = [], samples = Number($("samples").value), text = $("prompt").value;
  const body = { max_tokens: Number($("tokens").value), n: samples, stream: true, temperature: 0.8, ...(info.chat ? { messages: [{ role: "user", content: text }] } : { prompt: text }) };
  const headers = { "content-type": "application/json", ...($("key").value ? { authorization: `Bearer ${$("key").value}` } : {}) };
  let tokens = 0;
  try {
    const response = await fetch(info.chat ? "v1/chat/completions" : "v1/completions", { method: "POST", headers, body: JSON.stringify(body), signal: running.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", done = false;
    while (!done) {
      const part = await reader.read();
      if (part.done) throw new Error("the connection ended early");
      const lines = (rest + part.value).split("\n\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line === "data: [DONE]") { done = true; continue; }
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new Error(chunk.error.message);
        for (const choice of chunk.choices) {
          texts[choice.index] = (texts[choice.index] || "") + (choice.delta ? choice.delta.content : choice.text);
          tokens++;
        }
      }
      $("reply").textContent = samples === 1 ? texts[0] || "" : texts.map((one, i) => `Sample ${i + 1}\n${one || ""}`).join("\n\n");
      $("state").textContent = "Generating…";
    }
    $("state").textContent = "Done.";
  } catch (error) {
    $("state").textContent = error.name === "AbortError" ? "Stopped; its blocks are free again." : `Not answered: ${error.message}.`;
  }
  running = null;
  $("send").disabled = false;
  $("cancel").disabled = true;
}

// ---- keys, clicks and the connection

const fragment = new URLSearchParams(location.hash.slice(1));
async function control(paused, delay, steps) {
  const response = await fetch("control", { method: "POST", headers: { "content-type": "application/json", "x-presenter-key": fragment.get("presenter") }, body: JSON.stringify({ paused, delay, steps }) });
  if (!response.ok) $("link").textContent = (await response.json()).error.message;
}
const togglePause = () => frame && control(!frame.paused, frame.delay, 0);
const single = () => frame && frame.paused && control(true, frame.delay, 1);

function connect() {
  const source = new EventSource("events");
  source.onopen = () => { $("link").textContent = ""; };
  source.onmessage = (message) => { frame = JSON.parse(message.data); repaint(); };
  source.onerror = () => { $("link").textContent = "The connection is lost; trying again…"; };
}

function legend() {
  const entries = [["--free", "", "free"], ["--cached", "", "free, cached"], ["--ink", "×2", "shared"]];
  const items = entries.map(([colour, text, words]) => { const item = element("li"); item.append(swatch(css(colour), css("--panel"), text), element("span", words)); return item; });
  const item = element("li");
  item.append(swatch(HUES[0], "#fff", "A"), element("span", "held by one request: its colour and letter"));
  $("legend").replaceChildren(item, ...items);
}

async function start() {
  info = await (await fetch("info")).json();
  $("engine").textContent = `${info.model}: ${count(info.num_blocks, "block")} of ${info.block_size} tokens`;
  $("key-label").hidden = !info.needs_key;
  if (fragment.get("key")) $("key").value = fragment.get("key");
  $("presenter").hidden = !fragment.get("presenter");
  legend();
  $("ask").addEventListener("submit", ask);
  $("cancel").addEventListener("click", () => running && running.abort());
  $("pause").addEventListener("click", togglePause);
  $("step").addEventListener("click", single);
  $("delay").addEventListener("change", () => frame && control(frame.paused, Number($("delay").value), 0));
  $("map").addEventListener("click", (event) => {
    const { size, columns } = layout(), block = Math.floor(event.offsetY / size) * columns + Math.min(columns - 1, Math.floor(event.offsetX / size));
    if (block < info.num_blocks) choose(block);
  });
  $("map").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -layout().columns, ArrowDown: layout().columns }[event.key];
    if (event.key === "Escape") choose(null);
    if (!move) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(info.num_blocks - 1, chosen === null ? 0 : chosen + move)));
  });
  $("requests").addEventListener("click", (event) => {
    const button = event.target.closest("[data-request]");
    const request = button && frame.requests.find((one) => one.id === Number(button.dataset.request));
    if (!request) return;
    const [first] = request.sequences;
    if (first && first.blocks.length) choose(first.blocks[first.blocks.length - 1]);
    $("detail").textContent = `${label(request.id)}: ${request.status}, prompt of ${count(request.prompt, "token")}, up to ${count(request.most, "new token")}, ` +
      `blocks ${request.sequences.map((s) => s.blocks.slice(0, 40).join(" → ") || "none").join(" | ")}.`;
  });
  document.addEventListener("keydown", (event) => {
    if ($("presenter").hidden || event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) return;
    if (event.key === "p") togglePause();
    if (event.key === "s") single();
  });
  new ResizeObserver(repaint).observe($("map"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { legend(); repaint(); });
  connect();
}
start().catch((error) => { $("engine").textContent = `The page could not start: ${error.message}`; });
