// The charts: each makes axes, layers and a sentence from a frame. Color is the run; solid is where the update is
// computed (the phantom parameter, or v*), dashed the real parameter; gray is the easy feature.

import { kindOfRun } from "./reference.js";
import { ALGORITHM_NAMES, climbs, usesStar } from "./settings.js";

export const SIDES = ["left", "right"];
const SHARE = { from: 0, to: 100 };
const FACTOR_RANGE = { from: -0.5, to: 2 }, RATIO_RANGE = { from: 0, to: 4 };

/** Numbers for people. */
export const percent = (share) => `${fixed(100 * share, 1)} %`;
export const nameOf = (pane) => ALGORITHM_NAMES[pane.algorithm];

export function fixed(value, digits = 2) {
  return Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : "–";
}

/** What a pane's second weights are. */
export function usedName({ algorithm }) {
  if (climbs(algorithm)) return "phantom";
  return algorithm === "weights" || algorithm === "both" ? "at v*" : "if it climbed by ρ";
}

const epochs = (frame) => ({ label: "epoch", from: 0, to: frame.settings.epochs });
const level = (frame, value) => ({ line: [[0, value], [frame.settings.epochs, value]], kind: "gray dotted" });

/** By name; `reference` and `finished` (runs that have ended) are drawn beside the frame, `marked` is a point. */
export const PICTURES = {
  errors(frame, { reference }) {
    const { to } = epochs(frame), bands = [], easy = [], hard = [];
    frame.panes.forEach((pane, s) => {
      const known = reference.at(frame.settings, pane.algorithm), last = pane.errors.at(-1);
      const course = (kind) => pane.errors.map((e) => [e.epoch, 100 * e[kind]]);
      const across = ({ low, high }) => [0, to].map((x) => [x, 100 * low, 100 * high]);
      for (const kind of known ? ["hard", "easy"] : []) bands.push({ band: across(known[kind]), kind: SIDES[s] });
      easy.push({ line: course("easy"), kind: `${SIDES[s]} thin` });
      hard.push({ line: course("hard"), kind: `${SIDES[s]} thick` });
      hard.push({ dots: [[last.epoch, 100 * last.hard, 4]], kind: SIDES[s] });
    });
    const ends = frame.panes.map((pane) => {
      const last = pane.errors.at(-1);
      return `${nameOf(pane)} hard ${percent(last.hard)}, easy ${percent(last.easy)}`;
    });
    return {
      x: epochs(frame),
      y: { label: "probe error (%)", from: 0, to: 55 },
      layers: [...bands, ...easy, ...hard],
      label: `Probe errors against epochs: ${ends.join("; ")}`,
    };
  },

  radius(frame, { reference, finished }) {
    const curve = reference.curve(frame.settings) ?? [];
    const layers = [
      { band: curve.map(({ rho, hard }) => [rho, 100 * hard.low, 100 * hard.high]), kind: "gray" },
      { line: curve.map(({ rho, hard }) => [rho, 100 * hard.mean]), kind: "gray thick" },
    ];
    for (const side of SIDES) {
      const past = finished.filter((run) => run.side === side && run.kind === kindOfRun(frame.settings));
      layers.push({ dots: past.map(({ rho, hard }) => [rho, 100 * hard, 3.2]), kind: `${side} past` });
    }
    frame.panes.forEach((pane, s) => {
      if (usesStar(pane.algorithm)) return;
      const rho = climbs(pane.algorithm) ? frame.settings.rho : 0;
      layers.push({ dots: [[rho, 100 * pane.errors.at(-1).hard, 6]], kind: SIDES[s] });
    });
    return {
      x: { label: "radius ρ (0 is SGD)", from: 0, to: 3 },
      y: { label: "hard probe error (%)", from: 0, to: 55 },
      layers,
      label: `Hard probe error against rho${curve.length ? ", with the mean of ten seeds" : ""}`,
    };
  },

  lorenz(frame) {
    const curve = (held) => Array.from(held, (value, k) => [(100 * k) / (held.length - 1), 100 * value]);
    const thinned = (points) => points.filter((_, k) => k % 5 === 0 || k === points.length - 1);
    const layers = frame.panes.flatMap((pane, s) => [
      { line: thinned(curve(pane.lorenz.real)), kind: `${SIDES[s]} dashed` },
      { line: thinned(curve(pane.lorenz.used)), kind: SIDES[s] },
    ]);
    return {
      x: { label: "points, least weight first (%)", ...SHARE },
      y: { label: "their share of the weight (%)", ...SHARE },
      layers: [{ line: [[0, 0], [100, 100]], kind: "gray dotted" }, ...layers],
      label: `Lorenz curves of the importance weights. ${giniWords(frame)}`,
    };
  },

  left: (frame) => head(frame, 0),
  right: (frame) => head(frame, 1),

  ratio(frame) {
    const layers = frame.panes.flatMap(({ summaries }, s) => {
      // Where the easy weight of the updates is not positive, the ratio means nothing.
      const known = summaries.filter((e) => e.rates[0][1] > 0), sure = summaries.filter((e) => e.rates[0][0] > 0);
      return [
        { band: sure.map((e) => [e.epoch, e.ratesRatio[0], e.ratesRatio[2]]), kind: SIDES[s] },
        { line: summaries.map((e) => [e.epoch, e.realRatio[1]]), kind: `${SIDES[s]} dashed` },
        { line: known.map((e) => [e.epoch, e.ratesRatio[1]]), kind: SIDES[s] },
      ];
    });
    const say = (e) => `real ${fixed(e.realRatio[1])}, in updates ${fixed(e.ratesRatio[1])}`;
    return {
      x: epochs(frame),
      y: { label: "hard over easy", ...RATIO_RANGE },
      layers: [level(frame, 1), ...layers],
      label: `Ratio of hard to easy. ${lastWords(frame, say)}`,
    };
  },

  factors(frame) {
    const layers = frame.panes.flatMap(({ algorithm, summaries }, s) => {
      if (algorithm === "sgd" || algorithm === "weights") return []; // 1 for both
      return [0, 1].flatMap((k) => {
        const kind = k ? SIDES[s] : `${SIDES[s]} easy`;
        return [
          { band: summaries.map((e) => [e.epoch, e.factor[k][0], e.factor[k][2]]), kind },
          { line: summaries.map((e) => [e.epoch, e.factor[k][1]]), kind },
        ];
      });
    });
    const say = (e) => `easy ${fixed(e.factor[0][1])}, hard ${fixed(e.factor[1][1])}`;
    return {
      x: epochs(frame),
      y: { label: "factor", ...FACTOR_RANGE },
      layers: [level(frame, 1), ...layers],
      label: `Learning-rate factors. ${lastWords(frame, say)}`,
    };
  },

  "fit-left": (frame, { marked }) => fit(frame, 0, marked),
  "fit-right": (frame, { marked }) => fit(frame, 1, marked),
};

/** How evenly the weights of both panes are spread. */
export function giniWords({ panes }) {
  return panes
    .map((pane) => `${nameOf(pane)}: Gini ${fixed(pane.gini.real)} real, ${fixed(pane.gini.used)} ${usedName(pane)}`)
    .join("; ");
}

/** Something about the last epoch of both panes. */
function lastWords({ panes }, say) {
  const known = panes.filter((pane) => pane.summaries.length);
  return known.map((pane) => `${nameOf(pane)}: ${say(pane.summaries.at(-1))}`).join("; ");
}

/** The head of one pane: medians over the batches of each epoch, and where 80 % of them lie. */
function head(frame, side) {
  const pane = frame.panes[side], { summaries } = pane, layers = [];
  for (const [k, kind] of [[0, "gray"], [1, SIDES[side]]]) {
    layers.push({ band: summaries.map((e) => [e.epoch, e.rates[k][0], e.rates[k][2]]), kind });
    layers.push({ line: [[0, 1], ...summaries.map((e) => [e.epoch, e.real[k][1]])], kind: `${kind} dashed` });
    layers.push({ line: summaries.map((e) => [e.epoch, e.rates[k][1]]), kind });
  }
  const values = summaries.flatMap((e) => [...e.real, ...e.rates].flat()).filter(Number.isFinite);
  const from = Math.max(Math.floor(Math.min(0, ...values)), -4), to = Math.min(Math.ceil(Math.max(2, ...values)), 9);
  const medians = (heads) => heads.map((q) => fixed(q[1])).join(" and ");
  const words = summaries.length
    ? `real ${medians(summaries.at(-1).real)}, in updates ${medians(summaries.at(-1).rates)}`
    : "1 and 1";
  return {
    x: epochs(frame),
    y: { label: "weight in the head", from, to },
    layers,
    label: `${nameOf(pane)}: weights of the easy and the hard feature, ${words}`,
  };
}

/** Each training point by what its features contribute; full marks gain a share of the weight in updates. */
function fit(frame, side, marked) {
  const { points } = frame.panes[side], both = frame.panes.map((pane) => pane.points);
  const x = range(both.flatMap((p) => [...p.easy])), y = range(both.flatMap((p) => [...p.hard]));
  const total = (weights) => weights.reduce((sum, weight) => sum + weight, 0);
  const gain = total(points.real) / total(points.used);
  const place = (i) => [points.easy[i], points.hard[i]];
  const [gains, loses] = [true, false].map((wanted) =>
    [...points.real.keys()].filter((i) => (points.used[i] * gain > points.real[i]) === wanted),
  );
  return {
    x: { label: "easy contribution, y v Φ", ...x },
    y: { label: "hard contribution", ...y },
    layers: [
      { line: [[0, y.from], [0, y.to]], kind: "gray dotted" },
      { line: [[x.from, 0], [x.to, 0]], kind: "gray dotted" },
      { dots: loses.map((i) => [...place(i), 2.4]), kind: "hollow" },
      { dots: gains.map((i) => [...place(i), 2.6]), kind: `${SIDES[side]} past` },
      { dots: marked < 0 ? [] : [[...place(marked), 8]], kind: "ring" },
    ],
    label: `${nameOf(frame.panes[side])}: ${gains.length} of ${points.y.length} examples gain a share of the weight`,
  };
}

/** A range of even numbers around 0 that holds some values. */
function range(values) {
  const known = values.filter(Number.isFinite);
  return { from: 2 * Math.floor(Math.min(-1, ...known) / 2), to: 2 * Math.ceil(Math.max(2, ...known) / 2) };
}
