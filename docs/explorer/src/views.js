// All pictures and numbers of a frame, and the point that is followed through them.

import { Chart } from "./chart.js";
import { Field } from "./fields.js";
import { PICTURES, SIDES, fixed, giniWords, nameOf, percent } from "./pictures.js";
import { kindOfRun } from "./reference.js";
import { climbs, usesStar } from "./settings.js";

const SLICE_OF_DRAWING = 6; // milliseconds
const COLLAPSED = 0.8 * Math.log(2); // log 2 is the loss of f = 0; runs that work end below 0.3

export class Views {
  /** `reference` has the errors of ten seeds. */
  constructor(root, reference) {
    Object.assign(this, { root, reference, finished: [], marked: -1, sizeBy: "used" });
    this.fields = SIDES.flatMap((side, s) =>
      ["easy", "hard"].map((name, k) => Object.assign(new Field(this.#find(`#${side}-${name}`), k), { side: s })),
    );
    this.charts = Object.keys(PICTURES).map((name) => [name, new Chart(this.#find(`#chart-${name}`))]);
  }

  /** Draws everything, a few milliseconds at a time so that the page never stops; then calls `done`. */
  show(frame, done = () => {}) {
    this.frame = frame;
    const jobs = [
      () => this.#writeErrors(),
      ...this.fields.map((field) => () => this.#drawField(field)),
      ...this.charts.map(([name, chart]) => () => chart.draw(PICTURES[name](this.frame, this))),
      () => this.#writeTable(),
      () => this.#writeNotes(),
      () => this.#writePoint(),
    ];
    const some = () => {
      for (const end = performance.now() + SLICE_OF_DRAWING; jobs.length && performance.now() < end; ) jobs.shift()();
      if (jobs.length) requestAnimationFrame(some);
      else done();
    };
    some();
  }

  /** Marks a point in all pictures and says what is known of it. */
  mark(index) {
    if (index === this.marked || !this.frame) return;
    this.marked = index;
    for (const field of this.fields) this.#drawField(field);
    for (const [name, chart] of this.charts) if (name.startsWith("fit")) chart.draw(PICTURES[name](this.frame, this));
    this.#writePoint();
  }

  /** Keeps the end of both runs as marks in the picture of errors against rho. */
  keep({ panes, settings }) {
    panes.forEach(({ algorithm, errors }, s) => {
      if (usesStar(algorithm)) return;
      const rho = climbs(algorithm) ? settings.rho : 0, kind = kindOfRun(settings);
      this.finished.push({ kind, rho, hard: errors.at(-1).hard, side: SIDES[s] });
    });
  }

  /** The points of a side by weight, heaviest first. */
  byWeight(side) {
    const weights = this.#sizes(this.frame.panes[side]);
    return [...weights.keys()].sort((a, b) => weights[b] - weights[a]);
  }

  #find(selector) {
    return this.root.querySelector(selector);
  }

  /** The weights by which points are sized: those of the pane's updates, or those at the real parameter. */
  #sizes({ algorithm, points }) {
    const reweighs = climbs(algorithm) || algorithm === "weights" || algorithm === "both";
    return this.sizeBy === "used" && reweighs ? points.used : points.real;
  }

  #drawField(field) {
    const pane = this.frame.panes[field.side], kind = field.feature ? "hard" : "easy";
    field.show(pane, this.frame.settings.chi, this.#sizes(pane), this.marked);
    field.canvas.setAttribute(
      "aria-label",
      `${nameOf(pane)}, ${kind} feature: probe error ${percent(pane.errors.at(-1)[kind])}. ` +
        "Arrow keys visit the examples, heaviest first.",
    );
  }

  #writeErrors() {
    this.frame.panes.forEach((pane, s) => {
      const now = pane.errors.at(-1), side = SIDES[s];
      for (const kind of ["hard", "easy", "all"]) {
        this.#find(`#${side}-${kind}-error`).textContent = percent(now[kind]);
      }
      this.#find(`#${side}-collapsed`).hidden = now.epoch < this.frame.settings.epochs || now.loss <= COLLAPSED;
      for (const title of this.root.querySelectorAll(`[data-name=${side}]`)) title.textContent = nameOf(pane);
    });
  }

  #writeTable() {
    const { panes, epoch } = this.frame, last = panes.map((pane) => pane.summaries.at(-1));
    const now = (say) => panes.map((pane) => say(pane.errors.at(-1)));
    const medians = (heads) => heads.map((q) => fixed(q[1])).join(", ");
    const rows = {
      "Hard probe error": now((e) => percent(e.hard)),
      "Easy probe error": now((e) => percent(e.easy)),
      "Test error": now((e) => percent(e.all)),
      "Test loss": now((e) => fixed(e.loss, 4)),
      "Head v, easy and hard": panes.map((pane) => pane.head.map((v) => fixed(v)).join(", ")),
      "Head in updates, median of the last epoch": last.map((e) => (e ? medians(e.rates) : "–")),
      "Ratio hard over easy, real": last.map((e) => fixed(e?.realRatio[1])),
      "Ratio hard over easy, in updates": last.map((e) => fixed(e?.ratesRatio[1])),
      "Learning-rate factor, easy": last.map((e) => fixed(e?.factor[0][1])),
      "Learning-rate factor, hard": last.map((e) => fixed(e?.factor[1][1])),
      "Gini of the weights, real": panes.map((pane) => fixed(pane.gini.real)),
      "Gini of the weights, phantom or at v*": panes.map((pane) => fixed(pane.gini.used)),
    };
    const cells = (tag, texts) => texts.map((text) => `<${tag}>${text}</${tag.slice(0, 2)}>`).join("");
    const heads = [`After ${fixed(epoch, epoch % 1 ? 2 : 0)} epochs`, ...panes.map(nameOf)];
    this.#find("#numbers thead").innerHTML = `<tr>${cells('th scope="col"', heads)}</tr>`;
    this.#find("#numbers tbody").innerHTML = Object.entries(rows)
      .map(([name, texts]) => `<tr>${cells('th scope="row"', [name])}${cells("td", texts)}</tr>`)
      .join("");
  }

  #writeNotes() {
    const { settings, panes } = this.frame;
    const any = panes.some(({ algorithm }) => this.reference.at(settings, algorithm));
    this.#find("#band-note").textContent = any
      ? "Bands: where ten seeds end, hard and (thin, at the bottom) easy; mean ± standard deviation."
      : "No band: ten seeds were run for SGD and LSAM at χ = 180° to 540°, ρ ≤ 2, all else as at the start.";
    this.#find("#gini").textContent = `${giniWords(this.frame)}.`;
  }

  #writePoint() {
    const line = this.#find("#point"), { panes } = this.frame, at = this.marked;
    if (at < 0) {
      line.textContent = "Point at an example to follow it through all pictures.";
      return;
    }
    const words = panes.map((pane) => {
      const weights = this.#sizes(pane), rank = weights.filter((weight) => weight > weights[at]).length + 1;
      return `${nameOf(pane)} gives it the weight ${weights[at].toPrecision(2)}, rank ${rank} of ${weights.length}`;
    });
    line.textContent = `Example ${at + 1}, label ${panes[0].points.y[at] > 0 ? "+1" : "−1"}: ${words.join("; ")}.`;
  }
}
