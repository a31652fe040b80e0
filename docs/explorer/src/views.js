// All pictures and numbers of a frame. Color is the run; solid is where the update is computed (the phantom
// parameter, or v*), dashed the real parameter; gray is the easy feature.

import { Chart } from "./chart.js";
import { Field } from "./fields.js";
import { ALGORITHM_NAMES } from "./settings.js";

const SIDES = ["left", "right"];
const RATIOS = { from: 0, to: 4 };

export const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–");
const fixed = (value, digits = 2) => (Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : "–");

/** Whether an algorithm climbs, and whether it takes weights or rates at v*. */
const climbs = (algorithm) => algorithm === "lsam" || algorithm === "sam";
const usesStar = (algorithm) => ["weights", "rates", "both"].includes(algorithm);

export class Views {
  /** `reference` has the errors of ten seeds by complexity and rho; `finished` the runs that were completed. */
  constructor(root, reference) {
    this.root = root;
    this.reference = reference;
    this.finished = [];
    this.marked = -1;
    this.sizeBy = "used";
    this.fields = SIDES.flatMap((side, s) => [0, 1].map((feature) => {
      const field = new Field(root.querySelector(`#${side}-${feature ? "hard" : "easy"}`), feature);
      return Object.assign(field, { side: s });
    }));
    const epochs = { label: "epoch", from: 0, to: 100 }, chart = (id, x, y, ratio) => new Chart(root.querySelector(`#chart-${id}`), { x, y, ratio });
    this.charts = {
      errors: chart("errors", epochs, { label: "probe error", from: 0, to: 0.5, percent: true }),
      radius: chart("radius", { label: "radius ρ (0 is SGD)", from: 0, to: 3 }, { label: "hard probe error", from: 0, to: 0.5, percent: true }),
      lorenz: chart("lorenz", { label: "share of the points, least weight first", from: 0, to: 1, percent: true }, { label: "share of the weight", from: 0, to: 1, percent: true }, 0.76),
      left: chart("left", epochs, { label: "weight in the head", from: 0, to: 4 }),
      right: chart("right", epochs, { label: "weight in the head", from: 0, to: 4 }),
      ratio: chart("ratio", epochs, { label: "hard over easy", ...RATIOS }),
      factors: chart("factors", epochs, { label: "learning-rate factor", from: -0.5, to: 2 }),
      "fit-left": chart("fit-left", { label: "easy contribution, y v Φ", from: -5, to: 20 }, { label: "hard contribution", from: -5, to: 10 }, 0.76),
      "fit-right": chart("fit-right", { label: "easy contribution, y v Φ", from: -5, to: 20 }, { label: "hard contribution", from: -5, to: 10 }, 0.76),
    };
  }

  show(frame) {
    this.frame = frame;
    this.epochs = { label: "epoch", from: 0, to: frame.settings.epochs };
    this.#fields();
    this.#errors();
    this.#radius();
    this.#lorenz();
    this.#heads();
    this.#ratio();
    this.#factors();
    this.#fits();
    this.#numbers();
  }

  /** Marks a point in all pictures and says what is known of it. */
  mark(index) {
    this.marked = index;
    this.#fields();
    this.#fits();
    this.#say();
  }

  /** Keeps the end of a run as a mark in the picture of errors against rho. */
  keep(frame) {
    frame.panes.forEach((pane, s) => {
      if (usesStar(pane.algorithm)) return;
      this.finished.push([climbs(pane.algorithm) ? frame.settings.rho : 0, pane.errors.at(-1).hard, SIDES[s]]);
    });
  }

  name(side) {
    const { algorithm } = this.frame.panes[side];
    return ALGORITHM_NAMES[algorithm];
  }

  /** The weights by which points are sized: those of the pane's updates, or those at the real parameter. */
  #sizes(pane) {
    const reweighs = climbs(pane.algorithm) || pane.algorithm === "weights" || pane.algorithm === "both";
    return this.sizeBy === "used" && reweighs ? pane.points.used : pane.points.real;
  }

  #fields() {
    for (const field of this.fields) {
      const pane = this.frame.panes[field.side], kind = field.feature ? "hard" : "easy";
      field.show(pane, this.frame.settings.chi, this.#sizes(pane), this.marked);
      field.canvas.setAttribute(
        "aria-label",
        `${this.name(field.side)}, ${kind} feature: probe error ${percent(pane.errors.at(-1)[kind])}. Arrow keys visit the points, heaviest first.`,
      );
    }
  }

  #errors() {
    const layers = [];
    this.frame.panes.forEach((pane, s) => {
      const known = this.reference.at(this.frame.settings, pane.algorithm), { to } = this.epochs;
      if (known) layers.push({ band: [[0, known.low, known.high], [to, known.low, known.high]], kind: SIDES[s] });
      layers.push({ line: pane.errors.map(({ epoch, easy }) => [epoch, easy]), kind: `${SIDES[s]} thin` });
    });
    this.frame.panes.forEach((pane, s) => {
      layers.push({ line: pane.errors.map(({ epoch, hard }) => [epoch, hard]), kind: `${SIDES[s]} thick` });
      layers.push({ dots: [[pane.errors.at(-1).epoch, pane.errors.at(-1).hard, 4]], kind: SIDES[s] });
    });
    const ends = this.frame.panes.map((p, s) => `${this.name(s)} hard ${percent(p.errors.at(-1).hard)}, easy ${percent(p.errors.at(-1).easy)}`);
    const most = Math.max(0.5, ...this.frame.panes.flatMap((p) => p.errors.slice(-1).map((e) => e.hard)));
    this.charts.errors.draw(layers, {
      x: this.epochs,
      y: { ...this.charts.errors.y, to: most > 0.55 ? 1 : 0.55 },
      label: `Probe errors against epochs: ${ends.join("; ")}`,
    });
    const any = this.frame.panes.some((pane) => this.reference.at(this.frame.settings, pane.algorithm));
    this.root.querySelector("#band-note").textContent = any
      ? "Bands: where the hard error of ten seeds ends, mean ± standard deviation."
      : "No band: ten seeds were run for SGD and LSAM at χ = 180 to 540°, ρ up to 2, other settings at their start.";
  }

  #radius() {
    const { settings, panes } = this.frame, curve = this.reference.curve(settings), layers = [];
    if (curve) {
      layers.push({ band: curve.map(({ rho, low, high }) => [rho, low, high]), kind: "gray" });
      layers.push({ line: curve.map(({ rho, mean }) => [rho, mean]), kind: "gray thick" });
    }
    for (const side of SIDES) layers.push({ dots: this.finished.filter((d) => d[2] === side).map(([x, y]) => [x, y, 3]), kind: `${side} past` });
    panes.forEach((pane, s) => {
      if (usesStar(pane.algorithm)) return;
      layers.push({ dots: [[climbs(pane.algorithm) ? settings.rho : 0, pane.errors.at(-1).hard, 6]], kind: SIDES[s] });
    });
    this.charts.radius.draw(layers, { y: { ...this.charts.radius.y, to: 0.55 }, label: `Hard probe error against rho${curve ? ", with the mean of ten seeds" : ""}` });
  }

  #lorenz() {
    const layers = [{ line: [[0, 0], [1, 1]], kind: "gray dotted" }], words = [];
    this.frame.panes.forEach((pane, s) => {
      for (const [which, dash] of [["real", "dashed"], ["used", ""]]) {
        const curve = pane.lorenz[which], last = curve.length - 1;
        layers.push({ line: Array.from(curve, (held, k) => [k / last, held]).filter((_, k) => k % 5 === 0 || k === last), kind: `${SIDES[s]} ${dash}` });
      }
      words.push(`${this.name(s)}: Gini ${fixed(pane.gini.real)} real, ${fixed(pane.gini.used)} ${this.#usedName(pane)}`);
    });
    this.charts.lorenz.draw(layers, { label: `Lorenz curves of the importance weights. ${words.join("; ")}` });
    this.root.querySelector("#gini").textContent = `${words.join(" · ")}.`;
  }

  /** What the second weights of a pane are. */
  #usedName({ algorithm }) {
    if (climbs(algorithm)) return "phantom";
    return algorithm === "weights" || algorithm === "both" ? "at v*" : "if it climbed by ρ";
  }

  #heads() {
    this.frame.panes.forEach((pane, s) => {
      const { summaries } = pane, layers = [], of = (which, k) => summaries.map((e) => [e.epoch, e[which][k][1]]);
      const start = (points) => [[0, 1], ...points];
      for (const [k, kind] of [[0, "gray"], [1, SIDES[s]]]) {
        layers.push({ band: summaries.map((e) => [e.epoch, e.rates[k][0], e.rates[k][2]]), kind });
        layers.push({ line: start(of("real", k)), kind: `${kind} dashed` }, { line: of("rates", k), kind });
      }
      const last = summaries.at(-1), words = last
        ? `real ${last.real.map((q) => fixed(q[1])).join(" and ")}, in updates ${last.rates.map((q) => fixed(q[1])).join(" and ")}`
        : "(1, 1)";
      const most = Math.max(2, ...summaries.flatMap((e) => [...e.real, ...e.rates].map((q) => q[2])).filter(Number.isFinite));
      const least = Math.min(0, ...summaries.flatMap((e) => e.rates.map((q) => q[0])).filter(Number.isFinite));
      this.charts[SIDES[s]].draw(layers, {
        x: this.epochs,
        y: { label: "weight in the head", from: Math.max(Math.floor(least), -4), to: Math.min(Math.ceil(most), 9) },
        label: `${this.name(s)}: weights of the easy and the hard feature, ${words}`,
      });
      this.root.querySelector(`#head-${SIDES[s]}`).textContent = this.name(s);
    });
  }

  #ratio() {
    const layers = [{ line: [[0, 1], [this.epochs.to, 1]], kind: "gray dotted" }], words = [];
    this.frame.panes.forEach((pane, s) => {
      const { summaries } = pane;
      layers.push({ band: summaries.map((e) => [e.epoch, e.ratesRatio[0], e.ratesRatio[2]]), kind: SIDES[s] });
      layers.push({ line: summaries.map((e) => [e.epoch, e.realRatio[1]]), kind: `${SIDES[s]} dashed` });
      layers.push({ line: summaries.map((e) => [e.epoch, e.ratesRatio[1]]), kind: SIDES[s] });
      const last = summaries.at(-1);
      if (last) words.push(`${this.name(s)}: real ${fixed(last.realRatio[1])}, in updates ${fixed(last.ratesRatio[1])}`);
    });
    this.charts.ratio.draw(layers, { x: this.epochs, label: `Hard over easy. ${words.join("; ")}` });
  }

  #factors() {
    const layers = [{ line: [[0, 1], [this.epochs.to, 1]], kind: "gray dotted" }], words = [];
    this.frame.panes.forEach((pane, s) => {
      if (pane.algorithm === "sgd" || pane.algorithm === "weights") return;
      for (const k of [0, 1]) {
        const kind = k ? SIDES[s] : "gray", line = pane.summaries.map((e) => [e.epoch, e.factor[k][1]]);
        layers.push({ band: pane.summaries.map((e) => [e.epoch, e.factor[k][0], e.factor[k][2]]), kind });
        layers.push({ line, kind: `${kind}${k ? "" : ` of-${SIDES[s]}`}` });
      }
      const last = pane.summaries.at(-1);
      if (last) words.push(`${this.name(s)}: easy ${fixed(last.factor[0][1])}, hard ${fixed(last.factor[1][1])}`);
    });
    this.charts.factors.draw(layers, { x: this.epochs, label: `Learning-rate factors. ${words.join("; ")}` });
  }

  #fits() {
    const panes = this.frame.panes.map(({ points }) => points);
    const range = (values, step) => {
      const all = values.flatMap((v) => [...v]).filter(Number.isFinite);
      return { from: Math.min(-step, step * Math.floor(Math.min(...all) / step)), to: Math.max(step, step * Math.ceil(Math.max(...all) / step)) };
    };
    const x = range(panes.map((p) => p.easy), 2), y = range(panes.map((p) => p.hard), 2);
    panes.forEach((points, s) => {
      const mean = (weights) => weights.reduce((sum, w) => sum + w, 0) / weights.length;
      const gain = mean(points.real) / mean(points.used), gains = [], loses = [];
      points.real.forEach((real, i) => {
        const share = (points.used[i] / real) * gain;
        (share > 1 ? gains : loses).push([points.easy[i], points.hard[i], 2.4]);
      });
      const layers = [
        { line: [[0, y.from], [0, y.to]], kind: "gray dotted" }, { line: [[x.from, 0], [x.to, 0]], kind: "gray dotted" },
        { dots: loses, kind: "hollow" }, { dots: gains, kind: SIDES[s] },
      ];
      if (this.marked >= 0) layers.push({ dots: [[points.easy[this.marked], points.hard[this.marked], 8]], kind: "ring" });
      const chart = this.charts[`fit-${SIDES[s]}`];
      chart.draw(layers, {
        x: { ...chart.x, ...x }, y: { ...chart.y, ...y },
        label: `${this.name(s)}: ${gains.length} of ${points.real.length} points gain a share of the weight ${this.#usedName(this.frame.panes[s])}`,
      });
      this.root.querySelector(`#fit-${SIDES[s]}-name`).textContent = this.name(s);
    });
  }

  #numbers() {
    const { panes } = this.frame, last = panes.map((p) => p.summaries.at(-1));
    panes.forEach((pane, s) => {
      const now = pane.errors.at(-1), collapsed = !(now.loss <= 0.8 * Math.log(2)) && now.epoch > 5;
      for (const kind of ["hard", "easy", "all"]) this.root.querySelector(`#${SIDES[s]}-${kind}-error`).textContent = percent(now[kind]);
      this.root.querySelector(`#${SIDES[s]}-collapsed`).hidden = !collapsed;
    });
    const rows = {
      "Hard probe error": panes.map((p) => percent(p.errors.at(-1).hard)),
      "Easy probe error": panes.map((p) => percent(p.errors.at(-1).easy)),
      "Test error": panes.map((p) => percent(p.errors.at(-1).all)),
      "Test loss": panes.map((p) => fixed(p.errors.at(-1).loss, 4)),
      "Head v, easy and hard": panes.map((p) => p.head.map((v) => fixed(v)).join(", ")),
      "Head in updates, median of the last epoch": last.map((e) => (e ? e.rates.map((q) => fixed(q[1])).join(", ") : "–")),
      "Ratio hard over easy, real": last.map((e) => fixed(e?.realRatio[1])),
      "Ratio hard over easy, in updates": last.map((e) => fixed(e?.ratesRatio[1])),
      "Learning-rate factor, easy": last.map((e) => fixed(e?.factor[0][1])),
      "Learning-rate factor, hard": last.map((e) => fixed(e?.factor[1][1])),
      "Gini of the weights, real": panes.map((p) => fixed(p.gini.real)),
      "Gini of the weights, phantom or v*": panes.map((p) => fixed(p.gini.used)),
    };
    this.root.querySelector("#numbers thead tr").innerHTML = `<th scope="col">After ${fixed(this.frame.epoch, this.frame.epoch % 1 ? 2 : 0)} epochs</th>${SIDES.map((_, s) => `<th scope="col">${this.name(s)}</th>`).join("")}`;
    this.root.querySelector("#numbers tbody").innerHTML = Object.entries(rows).map(([name, cells]) => `<tr><th scope="row">${name}</th>${cells.map((c) => `<td>${c}</td>`).join("")}</tr>`).join("");
    this.#say();
  }

  #say() {
    const line = this.root.querySelector("#point");
    if (this.marked < 0) return (line.textContent = "Point at an example to follow it through all pictures.");
    const label = this.frame.panes[0].points.y[this.marked] > 0 ? "+1, circle" : "−1, triangle";
    const words = this.frame.panes.map((pane, s) => {
      const weights = this.#sizes(pane), rank = weights.filter((w) => w > weights[this.marked]).length + 1;
      return `${this.name(s)} weight ${weights[this.marked].toPrecision(2)} (${rank}. of ${weights.length})`;
    });
    line.textContent = `Example ${this.marked + 1}, label ${label}: ${words.join("; ")}.`;
  }

  /** The points of a side by weight, heaviest first. */
  byWeight(side) {
    const weights = this.#sizes(this.frame.panes[side]);
    return [...weights.keys()].sort((a, b) => weights[b] - weights[a]);
  }
}
