// The page at /-/: follows /-/events and draws what it is told.
//
// Rules. What comes from requests (names of models, paths, texts) is set as text and never as markup. Nodes are made once
// and changed in place, so that focus, selection and scrolling stay where they are. Tokens and milliseconds are numbers
// that the proxy told; nothing is worked out here but sums and shares.
"use strict";

const MOST_CARDS = 8;
const MOST_ROWS = 20;
const MOST_CUT_OFF = 3; // messages in a row that are shown one by one
const KEPT = { conversations: 40, requests: 100, models: 40 };
const PARTS = ["system", "tools", "summary", "elided", "history"];
const FLOOR = 88; // per cent of a plot's height; cuts are marked below
const SVG = "http://www.w3.org/2000/svg";
const STATES = {
  live: ["good", "Live"],
  lost: ["bad", "Connection lost, trying again"],
  full: ["bad", "Too many pages are open on this proxy"],
  shut: ["wait", "A token is needed"],
};
const WORDS = {
  include_usage: "usage asked for", none: "untouched", repair: "repaired", recover: "sent again",
  max_tokens: "answer limit", prompt_cache_key: "cache key",
};

const page = {
  conversations: new Map(), requests: new Map(), models: new Map(), cards: new Map(), rows: new Map(), kinds: new Map(),
  health: null, capture: false, allCards: false, allRows: false, token: sessionStorage.getItem("transom-token") || "",
  opener: null,
};

// --- small things -----------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
const format = new Intl.NumberFormat("en");
const number = (value) => (value === null || value === undefined ? "–" : format.format(value));
const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

function make(tag, name = "", text = "", attributes = {}) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== "") node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function draw(tag, name, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  node.setAttribute("class", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function brief(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10000) return number(value);
  return value < 1e6 ? `${(value / 1000).toFixed(1)}k` : `${(value / 1e6).toFixed(2)}M`;
}

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function ago(at) {
  const seconds = Math.max(0, Math.round((Date.now() - at) / 1000));
  if (seconds < 2) return "now";
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

const shortened = (id) => id.slice(0, 6);
const newestFirst = (rows) => [...rows.values()].sort((one, other) => other.at - one.at || (other.id > one.id ? 1 : -1));

// Puts nodes in this order and moves none that is in its place already, nor while one of them has the focus.
function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  if (parent.contains(document.activeElement) && nodes.every((node) => node.parentNode === parent)) return;
  nodes.forEach((node, place) => {
    const there = parent.children[place];
    if (there !== node) parent.insertBefore(node, there || null);
  });
}

// --- actions ------------------------------------------------------------------------------------------------------

function chips(actions) {
  const list = make("div", "chips");
  const said = (actions || "none").split(",");
  for (const each of said) {
    const [name, value] = each.split("=");
    const isQuiet = name in WORDS;
    const text = [WORDS[name] || name, value].filter(Boolean).join(" ");
    list.append(make("span", isQuiet ? "chip quiet" : `chip ${name.replace(/[^a-z_]/g, "")}`, text));
  }
  return list;
}

// In words; what is done to nearly every request is left out where something else was done.
function spoken(actions) {
  const all = [...chips(actions).children];
  const loud = all.filter((chip) => !chip.classList.contains("quiet"));
  return (loud.length ? loud : all).map((chip) => chip.textContent).join(", ");
}

// --- a conversation -----------------------------------------------------------------------------------------------

function newCard(id) {
  const card = make("li", "card");
  const heading = make("h3");
  const name = make("span");
  heading.append(name, " ", make("code", "soft", shortened(id), { title: `Conversation ${id}` }));
  const fill = make("p", "fill");
  const title = make("div", "title");
  title.append(heading, fill);
  const track = make("div", "track");
  const limit = make("span", "limit", "", { title: "Trigger: history is compacted over it" });
  const gauge = make("div", "gauge", "", { role: "img" });
  gauge.append(track, limit);
  const segments = new Map();
  for (const name of [...PARTS, "prompt", "free"]) {
    segments.set(name, make("span", name));
    track.append(segments.get(name));
  }
  const parts = make("ul", "parts");
  const last = make("p", "last");
  const left = make("div");
  left.append(title, gauge, parts, last);
  const course = newCourse();
  card.append(left, course.root);
  return { root: card, name, fill, gauge, limit, segments, parts, last, course };
}

function drawCard(card, row) {
  put(card.name, row.model || "(no model named)");
  const tokens = row.forwarded ?? row.reported;
  drawFill(card, row, tokens);
  const whole = Math.max(row.window || 0, tokens || 0) || 1;
  // What went on before it was counted is known by the upstream's own count alone.
  const values = { ...(row.parts || (tokens ? { prompt: tokens } : {})) };
  if (tokens !== null) values.free = Math.max(0, (row.window || 0) - tokens);
  for (const [name, segment] of card.segments) {
    const value = values[name] || 0;
    segment.style.setProperty("width", `${(100 * value) / whole}%`);
    segment.hidden = !value;
    segment.title = `${name}: ${number(value)} tokens`;
  }
  card.limit.hidden = !row.trigger;
  card.limit.style.setProperty("left", `${(100 * (row.trigger || 0)) / whole}%`);
  const told = Object.entries(values).filter(([, value]) => value);
  const parts = told.map(([name, value]) => `${name} ${number(value)}`).join(", ");
  const trigger = row.trigger ? `; trigger at ${number(row.trigger)}` : "";
  card.gauge.setAttribute("aria-label", tokens === null
    ? "Not counted: so small beside the window that it went on at once"
    : `${number(tokens)} of ${row.window ? number(row.window) : "unknown"} tokens: ${parts}${trigger}`);
  card.parts.replaceChildren(...told.map(([name, value]) => {
    const item = make("li");
    const amount = make("b", "", number(value), { "data-part": name });
    item.append(make("i", name), make("span", "", name), amount);
    return item;
  }));
  drawCourse(card.course, row);
  drawLast(card, row);
}

function drawFill(card, row, tokens) {
  if (tokens === null) {
    card.fill.replaceChildren("not counted: fits for certain");
    return;
  }
  const amount = make("b", row.window && tokens > row.window ? "bad" : "", number(tokens));
  const rest = row.window ? ` of ${number(row.window)} tokens, ${share(tokens, row.window)}` : " tokens, window unknown";
  card.fill.replaceChildren(amount, rest);
}

function drawLast(card, row) {
  const counts = `${number(row.requests)} ${row.requests === 1 ? "request" : "requests"}, ${number(row.cuts)} ${row.cuts === 1 ? "cut" : "cuts"}`;
  const trouble = row.reason ? ` · ${row.reason.replaceAll("_", " ")}` : "";
  put(card.last, `${counts} · last: ${spoken(row.actions)}${trouble} · ${ago(row.at)}`);
}

// --- its course ---------------------------------------------------------------------------------------------------

function newCourse() {
  const root = make("div", "course");
  const plot = make("div", "plot", "", { role: "slider", tabindex: "0", "aria-label": "Course: tokens of each request", "aria-valuemin": "1" });
  const svg = draw("svg", "", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  const shapes = {
    area: draw("path", "area"), base: draw("line", "base", { x1: 0, x2: 100, y1: FLOOR, y2: FLOOR }), cuts: draw("path", "cut"),
    window: draw("line", "window", { x1: 0, x2: 100 }), original: draw("path", "original"), sent: draw("path", "sent"),
    at: draw("line", "at", { y1: 0, y2: 100 }),
  };
  svg.append(...Object.values(shapes));
  const ceiling = make("span", "scale", "", { "aria-hidden": "true" });
  const level = make("span", "scale", "", { "aria-hidden": "true" });
  plot.append(svg, ceiling, level);
  const marks = make("div", "marks", "", { "aria-hidden": "true" });
  marks.append(make("span", "", "original"), make("span", "is-sent", "forwarded"), make("span", "is-window", "window"), make("span", "is-cut", "cut"), make("small", "", "√ scale"));
  const readout = make("output", "readout");
  root.append(plot, marks, readout);
  const course = { root, plot, svg, shapes, ceiling, level, readout, points: [], first: 1, chosen: null };
  plot.addEventListener("pointermove", (event) => choose(course, placeOf(course, event)));
  plot.addEventListener("pointerdown", (event) => choose(course, placeOf(course, event)));
  plot.addEventListener("pointerleave", () => choose(course, null));
  plot.addEventListener("blur", () => choose(course, null));
  plot.addEventListener("keydown", (event) => {
    const last = course.points.length - 1;
    const at = course.chosen ?? last;
    const cut = (step) => { let to = at + step; while (to > 0 && to < last && !course.points[to][2]) to += step; return to; };
    const keys = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last, PageUp: cut(1), PageDown: cut(-1) };
    if (!(event.key in keys)) return;
    event.preventDefault();
    choose(course, Math.min(last, Math.max(0, keys[event.key])));
  });
  return course;
}

function placeOf(course, event) {
  const box = course.plot.getBoundingClientRect();
  const last = course.points.length - 1;
  return Math.min(last, Math.max(0, Math.round(((event.clientX - box.left) / box.width) * last)));
}

function drawCourse(course, row) {
  const points = row.course;
  course.root.hidden = !points.length;
  if (!points.length) return;
  if (course.chosen !== null) course.chosen -= Math.max(0, row.requests - points.length + 1 - course.first);
  course.points = points;
  course.first = row.requests - points.length + 1;
  const top = Math.max(...points.map(([original, forwarded]) => Math.max(original, forwarded)), row.window || 0);
  const x = (place) => (points.length > 1 ? (100 * place) / (points.length - 1) : 50);
  // Under a square root a window can still be read beside an original of ten times its size.
  const y = (tokens) => FLOOR * (1 - Math.sqrt(tokens / top));
  const line = (side) => points.map((point, place) => `${place ? "L" : "M"}${x(place).toFixed(2)} ${y(point[side]).toFixed(2)}`).join("");
  const { shapes } = course;
  const only = points.length === 1 ? "h.01" : "";
  shapes.original.setAttribute("d", line(0) + only);
  shapes.sent.setAttribute("d", line(1) + only);
  shapes.area.setAttribute("d", points.length > 1 ? `${line(1)}L100 ${FLOOR}L0 ${FLOOR}Z` : "");
  shapes.cuts.setAttribute("d", points.map((point, place) => (point[2] ? `M${x(place).toFixed(2)} ${FLOOR + 4}V100` : "")).join(""));
  shapes.window.setAttribute("y1", y(row.window || 0));
  shapes.window.setAttribute("y2", y(row.window || 0));
  shapes.window.toggleAttribute("hidden", !row.window);
  put(course.ceiling, brief(top));
  put(course.level, row.window && y(row.window) > 17 ? brief(row.window) : "");
  course.level.style.setProperty("top", `${y(row.window || 0)}%`);
  course.plot.setAttribute("aria-valuemax", points.length);
  course.svg.dataset.cuts = points.filter((point) => point[2]).length;
  choose(course, course.chosen);
}

function choose(course, place) {
  const { points } = course;
  course.chosen = place === null || place < 0 || place >= points.length ? null : place;
  const at = course.chosen ?? points.length - 1;
  const [original, forwarded, cut] = points[at];
  const which = course.chosen === null ? "Newest" : `Request ${number(course.first + at)}`;
  const size = original === forwarded ? `${number(original)} tokens, all forwarded` : `${number(original)} tokens, ${number(forwarded)} forwarded`;
  const told = `${which}: ${size}${cut ? `; cut here: ${spoken(cut)}` : ""}`;
  const short = original === forwarded ? number(original) : `${number(original)} → ${number(forwarded)}`;
  put(course.readout, `${course.chosen === null ? which : `#${number(course.first + at)}`}: ${short}${cut ? ` · ${spoken(cut)}` : ""}`);
  course.plot.setAttribute("aria-valuenow", at + 1);
  course.plot.setAttribute("aria-valuetext", told);
  const x = points.length > 1 ? (100 * at) / (points.length - 1) : 50;
  course.shapes.at.setAttribute("x1", x);
  course.shapes.at.setAttribute("x2", x);
  course.shapes.at.style.setProperty("display", course.chosen === null ? "none" : "inline");
}

// --- requests and models ------------------------------------------------------------------------------------------

function cell(name, text, label = "") {
  return make("td", name, text, label ? { role: "cell", "data-label": label } : { role: "cell" });
}

function newRow(row) {
  const line = make("tr", "", "", { role: "row" });
  const when = cell("when", ago(row.at));
  when.title = `Request ${row.name} in the log`;
  const done = cell("done", "");
  if (row.mode) done.append(chips(row.actions));
  else done.append(make("span", "chip quiet", `${row.method} ${row.path}`));
  if (row.reason) done.firstChild.append(make("span", "chip trouble", row.reason.replaceAll("_", " ")));
  const status = row.status === null ? "no answer" : row.complete ? `${row.status}` : `${row.status}, broke off`;
  line.append(
    when, modelCell(row), done, cell("number", number(row.original), "Original"),
    cell("number", number(row.forwarded), "Forwarded"), cell("number", duration(row.added_ms), "Added"),
    cell("number", duration(row.took_ms), "Took"), cell(row.status === null || row.status >= 400 || !row.complete ? "status bad" : "status", status), openCell(row),
  );
  return { root: line, when };
}

function modelCell(row) {
  const place = cell("model", row.model || "–");
  if (row.conversation) place.append(" ", make("code", "soft", shortened(row.conversation), { title: `Conversation ${row.conversation}` }));
  return place;
}

function openCell(row) {
  const place = cell("open", "");
  if (!row.capture) return place;
  const button = make("button", "", "Open", { type: "button", "aria-label": `Open request of ${row.model || "no model"}, ${spoken(row.actions)}` });
  button.addEventListener("click", () => open(row, button));
  place.append(button);
  return place;
}

function newKind(row) {
  const line = make("tr", "", "", { role: "row" });
  line.append(
    cell("model", row.model || "(none named)"), cell("number", row.window ? number(row.window) : "unknown", "Window"),
    cell("source", row.source.replaceAll("_", " ")), cell("number", row.factor ? row.factor.toFixed(3) : "–", "Factor"),
  );
  return { root: line };
}

// --- one request, opened ------------------------------------------------------------------------------------------

async function open(row, button) {
  const answer = await fetch(`requests/${encodeURIComponent(row.capture)}`, { headers: credential() });
  const told = await answer.json();
  page.opener = button;
  put($("h-opened"), row.model || "Request");
  if (answer.ok) showPairs(row, told.messages);
  else {
    put($("facts"), told.error.message);
    $("pairs").replaceChildren();
  }
  $("opened").showModal();
  $("pairs").scrollTop = 0;
}

function showPairs(row, pairs) {
  const count = (side) => pairs.filter((pair) => pair[side]).length;
  put($("facts"), `${count("original")} messages, ${number(row.original)} tokens as it came; ${count("forwarded")} messages, ${number(row.forwarded)} tokens forwarded. ${spoken(row.actions)}.`);
  const nodes = [];
  for (let at = 0; at < pairs.length;) {
    let end = at;
    while (end < pairs.length && pairs[end].edit === pairs[at].edit) end += 1;
    const run = pairs.slice(at, end);
    nodes.push(...(run[0].edit === "same" || run.length > MOST_CUT_OFF ? [runNode(run)] : run.map(pairNode)));
    at = end;
  }
  $("pairs").replaceChildren(...nodes);
  showAll();
}

// Many messages with one fate in one line, which opens.
function runNode(run) {
  const edit = run[0].edit;
  const box = make("details", `run ${edit}`);
  const [first, last] = [run[0], run[run.length - 1]].map((pair) => (pair.original || pair.forwarded).index);
  const which = first === last ? `Message ${first}` : `Messages ${first} to ${last}`;
  box.append(make("summary", "", `${which}: ${EDITS[edit]}`));
  box.addEventListener("toggle", () => {
    if (box.open && box.children.length === 1) box.append(...run.map(pairNode));
  });
  return box;
}

function showAll() {
  for (const box of document.querySelectorAll("#pairs details.run")) box.open = !$("only").checked;
}

const EDITS = { changed: "changed", removed: "cut off", added: "put in", same: "the same on both sides" };

function pairNode(pair) {
  const node = make("article", `pair ${pair.edit}`, "", { "aria-label": `Message ${(pair.original || pair.forwarded).index}, ${EDITS[pair.edit]}` });
  node.append(sideNode(pair.original, "Not in the original"), sideNode(pair.forwarded, "Not forwarded"));
  return node;
}

function sideNode(side, without) {
  if (!side) return make("div", "side nothing", without);
  const node = make("div", "side");
  const head = make("header");
  head.append(make("b", "", side.role || "(no role)"), ...(side.name ? [make("span", "", side.name)] : []), make("span", "", `message ${side.index}`), make("span", "", `${number(side.size)} bytes`));
  const text = make("pre");
  for (const { kind, text: piece } of side.text) {
    if (kind === "gap") text.append(make("span", "gap", `\n[${piece} not shown]\n`));
    else text.append(kind === "changed" ? make("mark", "", piece) : piece);
  }
  for (const call of side.calls) text.append(make("span", "gap", `${text.textContent ? "\n" : ""}calls ${call}`));
  if (side.media) text.append(make("span", "gap", `\n[${side.media} attached]`));
  node.append(head, text);
  return node;
}

// --- everything ---------------------------------------------------------------------------------------------------

function list(parent, made, rows, most, create, update, empty, more, noun) {
  const shown = rows.slice(0, most);
  const nodes = shown.map((row) => {
    const fresh = !made.has(row.id) || (!update && made.get(row.id).number !== row.number);
    if (fresh) made.set(row.id, { ...create(row), number: row.number });
    if (update) update(made.get(row.id), row);
    return made.get(row.id).root;
  });
  const there = new Set(shown.map((row) => row.id));
  for (const id of [...made.keys()]) if (!there.has(id)) made.delete(id);
  arrange(parent, nodes);
  empty.hidden = rows.length > 0;
  if (!more) return;
  more.hidden = rows.length <= Math.min(most, rows.length);
  put(more, `Show all ${rows.length} ${noun}`);
}

function render() {
  const conversations = newestFirst(page.conversations);
  const requests = newestFirst(page.requests);
  list($("cards"), page.cards, conversations, page.allCards ? Infinity : MOST_CARDS, (row) => newCard(row.id), drawCard, $("no-conversations"), $("more-cards"), "conversations");
  list($("rows"), page.rows, requests, page.allRows ? Infinity : MOST_ROWS, newRow, null, $("no-requests"), $("more-rows"), "requests");
  list($("kinds"), page.kinds, newestFirst(page.models), Infinity, newKind, null, $("no-models"), null, "");
  renderTotals(requests);
  renderHealth();
}

function renderTotals(requests) {
  put($("t-conversations"), number(page.conversations.size));
  put($("t-requests"), number(requests.length));
  const counted = requests.filter((row) => row.original !== null && row.forwarded !== null);
  const sum = (name) => counted.reduce((total, row) => total + row[name], 0);
  const saved = Math.max(0, sum("original") - sum("forwarded"));
  $("t-saved").replaceChildren(brief(saved), make("small", "", ` ${share(saved, sum("original"))}`));
  const added = requests.map((row) => row.added_ms).filter((ms) => ms !== null).sort((one, other) => one - other);
  put($("t-added"), duration(added.length ? added[Math.floor(added.length / 2)] : null));
}

function sayState(id, state, text) {
  const node = $(id);
  node.dataset.state = state;
  put(node.querySelector(".what"), text);
}

function renderHealth() {
  if (!page.health) return;
  const { store, upstream, upstream_status: status } = page.health;
  sayState("store", store === "ok" ? "good" : "bad", store === "ok" ? "Store answers" : "Store out of reach");
  const words = {
    ok: ["good", "Upstream answers"], failing: ["bad", `Upstream fails (${status})`],
    out_of_reach: ["bad", "Upstream out of reach"], unknown: ["wait", "Upstream not asked yet"],
  };
  sayState("upstream", ...words[upstream]);
}

function renderAges() {
  for (const [id, card] of page.cards) if (page.conversations.has(id)) drawLast(card, page.conversations.get(id));
  for (const [id, row] of page.rows) if (page.requests.has(id)) put(row.when, ago(page.requests.get(id).at));
}

let isDue = false;
function soon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; render(); });
}

// --- what is told -------------------------------------------------------------------------------------------------

let changes = 0;
function take(name, told) {
  if (name === "all") {
    for (const kind of Object.keys(KEPT)) page[kind].clear();
    put($("version"), told.version);
    page.capture = told.capture;
  }
  const cuts = [];
  for (const kind of Object.keys(KEPT)) {
    for (const row of told[kind] || []) {
      const before = page[kind].get(row.id);
      if (kind === "conversations" && name === "change" && row.cuts > (before ? before.cuts : 0)) cuts.push(row);
      page[kind].set(row.id, { ...row, at: Date.now() - row.age * 1000, number: ++changes });
    }
    const rows = newestFirst(page[kind]);
    for (const row of rows.slice(KEPT[kind])) page[kind].delete(row.id);
  }
  for (const id of told.gone || []) page.conversations.delete(id);
  if (told.health) page.health = told.health;
  if (cuts.length) put($("said"), `History of ${cuts[0].model} was cut: ${spoken(cuts[0].actions)}, ${number(cuts[0].forwarded)} tokens forwarded.`);
  soon();
}

const credential = () => (page.token ? { Authorization: `Bearer ${page.token}` } : {});
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

async function* eventsOf(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const event of whole) {
      const found = /^event: (\w+)\ndata: (.*)$/.exec(event);
      if (found) yield [found[1], JSON.parse(found[2])];
    }
  }
}

// One connection, to its end; whether another is worth a try.
async function follow() {
  const answer = await fetch("events", { headers: credential(), cache: "no-store" });
  if (answer.status === 401) {
    ask();
    return false;
  }
  if (!answer.ok) {
    sayState("live", ...STATES[answer.status === 503 ? "full" : "lost"]);
    return true;
  }
  $("entry").hidden = true;
  $("shown").hidden = false;
  for await (const [name, told] of eventsOf(answer.body)) {
    sayState("live", ...STATES.live);
    take(name, told);
  }
  return true;
}

async function stay() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 10000)) {
    const began = Date.now();
    try {
      if (!(await follow())) return;
    } catch {
      // The proxy is not there: it is tried again.
    }
    if (Date.now() - began > 5000) wait = 500;
    if ($("live").dataset.state === "good") sayState("live", ...STATES.lost);
    await pause(wait);
  }
}

function ask() {
  sayState("live", ...STATES.shut);
  $("refused").hidden = !page.token;
  $("shown").hidden = true;
  $("entry").hidden = false;
  $("token").focus();
}

$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  page.token = $("token").value.trim();
  sessionStorage.setItem("transom-token", page.token);
  stay();
});
$("more-cards").addEventListener("click", () => { page.allCards = true; render(); });
$("more-rows").addEventListener("click", () => { page.allRows = true; render(); });
$("only").addEventListener("change", showAll);
$("close").addEventListener("click", () => $("opened").close());
$("opened").addEventListener("close", () => {
  $("pairs").replaceChildren();
  if (page.opener && page.opener.isConnected) page.opener.focus();
});
put($("address"), `${location.origin}/v1`);
setInterval(renderAges, 1000);
render();
stay();
