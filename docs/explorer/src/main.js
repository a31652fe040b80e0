// The page: controls, address, keys, tour; training happens in the worker, drawing in Views.

import { percent } from "./pictures.js";
import { PRESETS } from "./presets.js";
import { Reference } from "./reference.js";
import {
  ALGORITHM_NAMES, SETTINGS, fromHash, noiseLevels, startSettings, toHash, toPython, usesStar,
} from "./settings.js";
import { TOUR } from "./tour.js";
import { Views } from "./views.js";

const $ = (selector) => document.querySelector(selector), $$ = (selector) => document.querySelectorAll(selector);
const wide = () => matchMedia("(min-width: 1001px)").matches; // settings and tour beside the pictures
const worker = new Worker(URL.createObjectURL(new Blob([$("#worker").textContent], { type: "text/javascript" })));
const views = new Views(document, new Reference(JSON.parse($("#reference").textContent)));

let { settings, epoch: asked } = fromHash(location.hash);
const unasked = !location.hash && !matchMedia("(prefers-reduced-motion: reduce)").matches; // show what it can do
let frame = null, next = null; // shown, and received but not shown
let playing = false, id = 0, waiting = null;

// The worker

const send = (message) => worker.postMessage(message);
const speed = () => Number($("#speed").value);

worker.onmessage = ({ data }) => {
  if (data.id !== id) return; // of settings that are no longer asked for
  const drawing = next !== null;
  next = data;
  if (!drawing) requestAnimationFrame(draw);
};

/** Draws the newest frame; what arrives in the meantime waits. */
function draw() {
  if (next.id !== id) return (next = null);
  const ended = playing && !next.playing, { epochs } = next.settings;
  frame = next;
  setPlaying(frame.playing);
  if (ended && frame.epoch >= epochs) views.keep(frame);
  $("#epoch").textContent = `Epoch ${frame.epoch % 1 ? frame.epoch.toFixed(2) : frame.epoch} of ${epochs}`;
  Object.assign($("#progress"), { max: epochs, value: frame.epoch });
  if (!frame.playing) {
    history.replaceState(null, "", `#${toHash(settings, frame.epoch)}`);
    if (frame.epoch > 0) $("#status").textContent = `${$("#epoch").textContent}. ${summary()}`;
  }
  views.show(frame, () => {
    Object.assign(document.body.dataset, { epoch: frame.epoch, playing: frame.playing });
    if (next === frame) next = null;
    else requestAnimationFrame(draw);
  });
}

function summary() {
  return frame.panes
    .map(({ algorithm, errors }) => {
      const { hard, easy } = errors.at(-1);
      return `${ALGORITHM_NAMES[algorithm]}: hard error ${percent(hard)}, easy error ${percent(easy)}.`;
    })
    .join(" ");
}

function setPlaying(now) {
  playing = now;
  $("#play").textContent = now ? "Pause" : frame && frame.epoch >= frame.settings.epochs ? "Run again" : "Run";
}

/** Both runs anew with the settings of now; then play, or go to an epoch. */
function restart({ play = false, until = 0 } = {}) {
  id += 1;
  send({ type: "reset", id, settings, until, speed: play ? speed() : 0 });
  playing = play || until > 0;
}

function toggle() {
  if (playing) return send({ type: "pause" });
  if (frame && frame.epoch >= frame.settings.epochs) return restart({ play: true });
  setPlaying(true);
  return send({ type: "play", speed: speed() });
}

/** Changes settings; runs that are under way begin again. */
function change(changed) {
  settings = { ...settings, ...changed };
  if ("corruption" in changed && !("level" in changed)) settings.level = noiseLevels(changed.corruption).first;
  showSettings();
  const play = playing;
  clearTimeout(waiting);
  waiting = setTimeout(() => restart({ play }), 60);
}

// The controls

/** Makes the control of each element with data-setting, whose text is the label. */
function buildControls() {
  for (const host of $$("[data-setting]")) {
    const name = host.dataset.setting, label = host.textContent;
    host.className = "control";
    host.innerHTML = `<label for="set-${name}">${label}</label><output for="set-${name}"></output>${control(name)}`;
    const input = host.querySelector("input, select");
    input.addEventListener("input", () => change({ [name]: valueOf(name, input) }));
  }
  for (const select of $$("[data-choice]")) {
    select.innerHTML = options(ALGORITHM_NAMES);
    select.addEventListener("input", () => change({ [select.dataset.choice]: select.value }));
  }
  const titles = Object.entries(PRESETS).map(([name, { title }]) => [name, title]);
  $("#preset").insertAdjacentHTML("beforeend", options(Object.fromEntries(titles)));
}

function options(names) {
  return Object.entries(names).map(([value, name]) => `<option value="${value}">${name}</option>`).join("");
}

function control(name) {
  const { choices, values, min, max, step } = SETTINGS[name];
  if (choices) return `<select id="set-${name}">${options(choices)}</select>`;
  if (values) return `<input id="set-${name}" type="range" min="0" max="${values.length - 1}" step="1">`;
  const type = name === "seed" ? "number" : "range";
  return `<input id="set-${name}" type="${type}" min="${min}" max="${max}" step="${step}">`;
}

function valueOf(name, input) {
  const { choices, values, min, max } = SETTINGS[name];
  if (choices) return input.value;
  if (values) return values[input.value];
  return Math.min(Math.max(Math.round(Number(input.value) * 100) / 100 || 0, min), max);
}

function showSettings() {
  for (const host of $$("[data-setting]")) {
    const name = host.dataset.setting, value = settings[name], { values, start } = SETTINGS[name];
    const input = host.querySelector("input, select"), text = `${value}${name === "chi" ? "°" : ""}`;
    if (name === "level") input.max = noiseLevels(settings.corruption).most;
    const typing = input.type === "number" && document.activeElement === input;
    if (!typing) input.value = values ? values.indexOf(value) : value;
    if (input.type === "range") {
      host.querySelector("output").textContent = text;
      input.setAttribute("aria-valuetext", text);
    }
    host.classList.toggle("changed", value !== start);
  }
  for (const name of ["level", "where"]) $(`[data-setting=${name}]`).hidden = settings.corruption === "none";
  $("[data-setting=vStar]").hidden = ![settings.left, settings.right].some(usesStar);
  for (const select of $$("[data-choice]")) select.value = settings[select.dataset.choice];
}

/** Both runs from the start with some settings, the seed of now, and the reader's eye on a card. */
function applyPreset({ settings: changed, view }, play) {
  settings = { ...startSettings(), seed: settings.seed, ...changed };
  showSettings();
  restart({ play });
  for (const element of $$("[data-view]")) element.classList.toggle("pointed", element.dataset.view === view);
}

/** Scrolls to the card that is pointed at. */
function goToCard() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  $(".pointed")?.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "nearest" });
}

// The tour

let place = 0;

function showTour(step) {
  place = step;
  const { title, look, question, options: choices } = TOUR[step];
  $("#caption").hidden = true;
  $("#tour").hidden = false;
  $("#controls").open = false;
  $("#tour-count").textContent = `Step ${step + 1} of ${TOUR.length}`;
  $("#tour-title").textContent = title;
  $("#tour-look").textContent = unbroken(look);
  $("#tour-question").textContent = question;
  $("#tour-options").innerHTML = choices
    .map((text, k) => `<button type="button" data-option="${k}" aria-pressed="false">${text}</button>`)
    .join("");
  $("#tour-why").textContent = "";
  $("#tour-back").disabled = step === 0;
  $("#tour-next").textContent = step + 1 < TOUR.length ? "Next" : "Finish";
  applyPreset(TOUR[step], false);
  $("#tour-title").focus();
}

function answer(option) {
  const { answer: right, why } = TOUR[place];
  for (const button of $$("[data-option]")) {
    const k = Number(button.dataset.option);
    button.setAttribute("aria-pressed", String(k === option));
    button.classList.toggle("right-answer", k === right);
    button.classList.toggle("wrong-answer", k === option && k !== right);
  }
  $("#tour-why").textContent = unbroken(`${option === right ? "Yes." : "Watch:"} ${why}`);
  if (!playing) toggle();
  if (wide()) goToCard();
}

/** A text in which no line ends between a number and its unit or at an equals sign. */
function unbroken(text) {
  return text.replaceAll(" %", "\u00a0%").replaceAll(" = ", "\u00a0=\u00a0");
}

function closeTour() {
  $("#tour").hidden = true;
  $("#controls").open = wide();
  for (const element of $$(".pointed")) element.classList.remove("pointed");
}

// Events

function listen() {
  $("#play").addEventListener("click", toggle);
  $("#reset").addEventListener("click", () => restart());
  $("#step-batch").addEventListener("click", () => send({ type: "step", steps: 1 }));
  $("#step-epoch").addEventListener("click", () => send({ type: "step", steps: Math.ceil(300 / settings.batch) }));
  $("#speed").addEventListener("input", () => playing && send({ type: "play", speed: speed() }));
  $("#size-by").addEventListener("input", ({ target }) => {
    views.sizeBy = target.value;
    views.show(frame);
  });
  $("#preset").addEventListener("input", ({ target }) => {
    if (!target.value) return;
    const preset = PRESETS[target.value];
    closeTour();
    $("#caption").hidden = false;
    $("#caption-title").textContent = preset.title;
    $("#caption-text").textContent = unbroken(preset.text);
    applyPreset(preset, true);
    if (wide()) goToCard();
  });
  $("#caption-go").addEventListener("click", goToCard);
  $("#tour-open").addEventListener("click", () => showTour(0));
  $("#tour-close").addEventListener("click", closeTour);
  $("#tour-back").addEventListener("click", () => showTour(place - 1));
  $("#tour-next").addEventListener("click", () => (place + 1 < TOUR.length ? showTour(place + 1) : closeTour()));
  $("#tour-options").addEventListener("click", ({ target }) => {
    if (target.dataset.option) answer(Number(target.dataset.option));
  });
  $("#python-open").addEventListener("click", () => {
    $("#python-code").textContent = toPython(settings);
    $("#python").showModal();
  });
  $("#python-copy").addEventListener("click", () => copy($("#python-code").textContent, $("#python-copy")));
  $("#share").addEventListener("click", () => {
    history.replaceState(null, "", `#${toHash(settings, frame.epoch)}`);
    copy(location.href, $("#share"));
  });
  window.addEventListener("hashchange", () => {
    const next = fromHash(location.hash);
    settings = next.settings;
    showSettings();
    restart({ until: next.epoch });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => frame && views.show(frame));
  document.addEventListener("keydown", onKey);
  for (const field of views.fields) listenToField(field);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, button, summary, a, dialog")) return; // these have keys of their own
  const click = { " ": "#play", ".": "#step-batch", e: "#step-epoch", r: "#reset" }[event.key.toLowerCase()];
  if (!click) return;
  event.preventDefault();
  $(click).click();
}

function listenToField(field) {
  const { canvas } = field;
  const follow = (event) => views.mark(field.pointAt(event.offsetX, event.offsetY));
  canvas.addEventListener("pointermove", follow);
  canvas.addEventListener("pointerdown", follow);
  canvas.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && views.mark(-1));
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const order = views.byWeight(field.side), at = order.indexOf(views.marked);
    views.mark(order[at < 0 ? 0 : (at + by + order.length) % order.length]);
    $("#status").textContent = $("#point").textContent;
  });
}

/** Copies a text; the button says for a moment whether that worked. */
async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed; see the address";
  }
  setTimeout(() => (button.textContent = before), 1600);
}

buildControls();
$("#controls").open = wide();
showSettings();
listen();
restart({ play: unasked, until: asked });
