// The toy's network: two features from one shared MLP, and a head that weighs them (equation 4).
// Phi: Linear(4, 100), LayerNorm, ReLU, Linear(100, 100), LayerNorm, ReLU, Linear(100, 1), backward pass written out.

import { addOuter, times, timesTransposed } from "./matrix.js";

const INPUTS = 4, WIDTH = 100, EPS = 1e-5;

/** Names and sizes of the weights, in the order of the state dict of samphire.models.ToyNet. */
export const SHAPES = [
  ["phi.0.weight", WIDTH * INPUTS], ["phi.0.bias", WIDTH], ["phi.1.weight", WIDTH], ["phi.1.bias", WIDTH],
  ["phi.3.weight", WIDTH * WIDTH], ["phi.3.bias", WIDTH], ["phi.4.weight", WIDTH], ["phi.4.bias", WIDTH],
  ["phi.6.weight", WIDTH], ["phi.6.bias", 1], ["head.weight", 2],
];
const SIZE = SHAPES.reduce((sum, [, size]) => sum + size, 0);

/** Weights as one vector `all`, and under their names as parts of it. */
export class Weights {
  constructor() {
    this.all = new Float64Array(SIZE);
    let start = 0;
    for (const [name, size] of SHAPES) this[name] = this.all.subarray(start, (start += size));
  }
}

/** PyTorch's initial distribution from a generator, as samphire.models.ToyNet draws it; the head starts at (1, 1). */
export function initialWeights(random) {
  const w = new Weights();
  for (const [layer, inputs] of [["phi.0", INPUTS], ["phi.3", WIDTH], ["phi.6", WIDTH]]) {
    for (const part of ["weight", "bias"]) {
      const target = w[`${layer}.${part}`];
      target.set(random.uniform32(target.length, inputs ** -0.5));
    }
  }
  for (const name of ["phi.1.weight", "phi.4.weight", "head.weight"]) w[name].fill(1);
  return w;
}

/** Forward and backward passes over up to `rows` inputs, an even number; buffers are made once. */
export class Body {
  constructor(rows) {
    const hidden = () => new Float64Array(rows * WIDTH);
    const norm = (name) => ({ name, n: hidden(), h: hidden(), rstd: new Float64Array(rows) });
    this.rows = rows;
    this.z = hidden();
    this.layers = [norm("phi.1"), norm("phi.4")];
    this.out = new Float64Array(rows);
    this.d = [hidden(), hidden()];
  }

  /** Phi of each row of x (rows by 4); the result is overwritten by the next call. */
  forward(w, x, rows = this.rows) {
    const [first, second] = this.layers;
    this.x = x;
    timesTransposed(this.z, x, w["phi.0.weight"], w["phi.0.bias"], rows, WIDTH, INPUTS);
    normalize(w, this.z, first, rows);
    timesTransposed(this.z, first.h, w["phi.3.weight"], w["phi.3.bias"], rows, WIDTH, WIDTH);
    normalize(w, this.z, second, rows);
    timesTransposed(this.out, second.h, w["phi.6.weight"], w["phi.6.bias"], rows, 1, WIDTH);
    return this.out;
  }

  /** into += alpha * gradient at w, for the cotangent of the last output; `into` may be w itself. */
  backward(w, cotangent, into, alpha, rows = this.rows) {
    const [first, second] = this.layers, [d, below] = this.d;
    times(d, cotangent, w["phi.6.weight"], rows, 1, WIDTH);
    linear(into, "phi.6", alpha, cotangent, second.h, rows, 1, WIDTH);
    normalizeBackward(w, d, second, into, alpha, rows);
    times(below, d, w["phi.3.weight"], rows, WIDTH, WIDTH);
    linear(into, "phi.3", alpha, d, first.h, rows, WIDTH, WIDTH);
    normalizeBackward(w, below, first, into, alpha, rows);
    linear(into, "phi.0", alpha, below, this.x, rows, WIDTH, INPUTS);
  }
}

/** The gradient of a linear layer's weight and bias. */
function linear(into, name, alpha, d, x, rows, outputs, inputs) {
  const bias = into[`${name}.bias`];
  addOuter(into[`${name}.weight`], alpha, d, x, rows, outputs, inputs);
  for (let r = 0; r < rows; r++) for (let o = 0; o < outputs; o++) bias[o] += alpha * d[r * outputs + o];
}

/** h = relu(gamma n + beta), n = (z - mean z) / std z for each row. */
function normalize(w, z, { name, n, h, rstd }, rows) {
  const gamma = w[`${name}.weight`], beta = w[`${name}.bias`];
  for (let r = 0; r < rows; r++) {
    const start = r * WIDTH;
    let mean = 0, variance = 0;
    for (let j = 0; j < WIDTH; j++) mean += z[start + j];
    mean /= WIDTH;
    for (let j = 0; j < WIDTH; j++) variance += (z[start + j] - mean) ** 2;
    rstd[r] = 1 / Math.sqrt(variance / WIDTH + EPS);
    for (let j = 0; j < WIDTH; j++) {
      n[start + j] = (z[start + j] - mean) * rstd[r];
      h[start + j] = Math.max(gamma[j] * n[start + j] + beta[j], 0);
    }
  }
}

/** Turns d, the cotangent of h, into that of z; adds the gradient of gamma and beta. */
function normalizeBackward(w, d, { name, n, h, rstd }, into, alpha, rows) {
  const gamma = w[`${name}.weight`], intoGamma = into[`${name}.weight`], intoBeta = into[`${name}.bias`];
  const dGamma = new Float64Array(WIDTH), dBeta = new Float64Array(WIDTH);
  for (let r = 0; r < rows; r++) {
    const start = r * WIDTH;
    let mean = 0, along = 0;
    for (let j = 0; j < WIDTH; j++) {
      const at = start + j, open = h[at] > 0 ? d[at] : 0;
      dGamma[j] += open * n[at];
      dBeta[j] += open;
      d[at] = open * gamma[j];
      mean += d[at];
      along += d[at] * n[at];
    }
    mean /= WIDTH;
    along /= WIDTH;
    for (let j = 0; j < WIDTH; j++) d[start + j] = rstd[r] * (d[start + j] - mean - n[start + j] * along);
  }
  for (let j = 0; j < WIDTH; j++) {
    intoGamma[j] += alpha * dGamma[j];
    intoBeta[j] += alpha * dBeta[j];
  }
}
