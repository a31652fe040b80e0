// What a run has learned, and how: probe errors, features on their planes, importance weights, spread of heads.

import { ALGORITHMS, Stepper } from "./algorithms.js";
import { Body } from "./network.js";
import { generator } from "./random.js";
import { gather } from "./run.js";
import { testPoints, twoViews } from "./toy.js";

const CHUNK = 200; // rows at once: their activations stay in the cache
const body = new Body(CHUNK);

/** Phi of each row of x (an even number of rows by 4). */
export function phi(weights, x) {
  const out = new Float64Array(x.length / 4);
  for (let start = 0; start < out.length; start += CHUNK) {
    const rows = Math.min(CHUNK, out.length - start);
    out.set(body.forward(weights, x.subarray(4 * start, 4 * (start + rows)), rows).subarray(0, rows), start);
  }
  return out;
}

/** Test points and their views, for all runs of a seed and a complexity. */
export function testSet(settings) {
  const points = testPoints(settings);
  return { y: points.y, views: twoViews(points) };
}

/**
 * Shares of the points where y sign(v_k) Phi_k > 0 fails (easy, hard) and where y f > 0 fails (all), and the mean
 * logistic loss. A tie is an error, and so is NaN.
 */
export function errors(weights, { views, y }) {
  const v = weights["head.weight"], features = phi(weights, views);
  const wrong = { easy: 0, hard: 0, all: 0 };
  let loss = 0;
  for (let i = 0; i < y.length; i++) {
    const easy = y[i] * features[2 * i], hard = y[i] * features[2 * i + 1], margin = v[0] * easy + v[1] * hard;
    wrong.easy += !(Math.sign(v[0]) * easy > 0);
    wrong.hard += !(Math.sign(v[1]) * hard > 0);
    wrong.all += !(margin > 0);
    loss += Math.max(-margin, 0) + Math.log1p(Math.exp(-Math.abs(margin)));
  }
  const share = (count) => count / y.length;
  return { easy: share(wrong.easy), hard: share(wrong.hard), all: share(wrong.all), loss: share(loss) };
}

/** The probability of label 1 by one feature alone (0 easy, 1 hard) on a grid of its plane, lowest row first. */
export function field(weights, feature, span, size) {
  const x = new Float64Array(4 * size * size), at = (i) => span * ((2 * i + 1) / size - 1);
  for (let row = 0; row < size; row++)
    for (let column = 0; column < size; column++)
      x.set([at(column), at(row)], 4 * (row * size + column) + 2 * feature);
  const v = weights["head.weight"][feature];
  return Float32Array.from(phi(weights, x), (value) => 1 / (1 + Math.exp(-v * value)));
}

/**
 * Every training point's importance weight at the real parameter and at the one that the algorithm uses instead, and
 * the contributions y v_k Phi_k of its features. The phantom parameter is that of the point's batch, in an order of
 * its own; an intervention uses v*; where the algorithm has neither, it is LSAM's with the other run's radius.
 */
export function pointMeasures(run, rho) {
  const { settings, points, views, weights } = run, v = weights["head.weight"];
  const features = phi(weights, views), n = points.n;
  const [real, used, easy, hard] = Array.from({ length: 4 }, () => new Float64Array(n));
  for (let i = 0; i < n; i++) {
    easy[i] = points.y[i] * v[0] * features[2 * i];
    hard[i] = points.y[i] * v[1] * features[2 * i + 1];
    real[i] = 1 / (1 + Math.exp(easy[i] + hard[i]));
  }
  const algorithm = reweights(settings.algorithm) ? settings.algorithm : "lsam";
  const stepper = new Stepper(weights, { ...settings, algorithm, rho });
  const order = generator(settings.seed, "measure").permutation(n);
  for (let start = 0; start < n; start += settings.batch) {
    const index = order.subarray(start, start + settings.batch), batch = gather(views, points.y, index);
    stepper.importanceWeights(batch.x, batch.y).forEach((weight, k) => (used[index[k]] = weight));
  }
  return { real, used, easy, hard };
}

/** Whether an algorithm weighs examples by other weights than those at the real parameter. */
export function reweights(algorithm) {
  const { climb, starWeights } = ALGORITHMS[algorithm];
  return climb !== "nothing" || starWeights;
}

/** The share of the total weight held by the first k of n points, least weight first, at k/n for k = 0 ... n. */
export function lorenz(weights) {
  const curve = new Float64Array(weights.length + 1);
  [...weights].sort((a, b) => a - b).forEach((weight, k) => (curve[k + 1] = curve[k] + weight));
  return curve.map((held) => held / curve[weights.length]);
}

/** The Gini coefficient: 0 if all weights are equal, (n-1)/n if one point has everything. */
export function gini(weights) {
  const n = weights.length, sorted = [...weights].sort((a, b) => a - b);
  const ranked = sorted.reduce((sum, weight, i) => sum + (2 * (i + 1) - (n + 1)) * weight, 0);
  return ranked / (n * sorted.reduce((sum, weight) => sum + weight, 0));
}

/** The levels' quantiles of some numbers, linear between them. */
export function quantiles(values, levels = [0.1, 0.5, 0.9]) {
  const sorted = [...values].sort((a, b) => a - b);
  return levels.map((level) => {
    const place = level * (sorted.length - 1), low = Math.floor(place);
    return sorted[low] + (place - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
  });
}

/**
 * Heads of some steps: quantiles over them of each entry of the real head and of the one that weighs the features'
 * gradients (phantom, or v*), of their ratios hard over easy, and of the learning-rate factors.
 */
export function summarizeHeads(heads) {
  const of = (value) => quantiles(heads.map(value));
  return {
    real: [0, 1].map((k) => of(({ real }) => real[k])),
    rates: [0, 1].map((k) => of(({ rates }) => rates[k])),
    factor: [0, 1].map((k) => of(({ real, rates }) => rates[k] / real[k])),
    realRatio: of(({ real }) => real[1] / real[0]),
    ratesRatio: of(({ rates }) => rates[1] / rates[0]),
  };
}
