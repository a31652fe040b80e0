// One step of training: the algorithms of equations 2 to 12, as in samphire.optim.feature_runs.

import { Body, Weights } from "./network.js";

/**
 * What goes back into the features is the cotangent -y lambda(v_a) v_b / B.
 * climb: what moves to the phantom point. starWeights, starRates: whether v_a, v_b are the fixed head v*.
 */
export const ALGORITHMS = {
  sgd: { climb: "nothing", starWeights: false, starRates: false }, // eq. 2
  lsam: { climb: "head", starWeights: false, starRates: false }, // eq. 5
  sam: { climb: "everything", starWeights: false, starRates: false }, // eq. 3
  weights: { climb: "nothing", starWeights: true, starRates: false }, // eq. 7 and 10
  rates: { climb: "nothing", starWeights: false, starRates: true }, // eq. 8 and 11
  both: { climb: "nothing", starWeights: true, starRates: true }, // eq. 9 and 12
};

/** Steps of one run. Weights are written to. */
export class Stepper {
  constructor(weights, { algorithm, rho, lr, vStar, trainHead, batch }) {
    Object.assign(this, ALGORITHMS[algorithm], { weights, rho, lr, trainHead, vStar: [1, vStar] });
    this.body = new Body(2 * batch);
    this.Q = new Float64Array(2 * batch);
    this.cotangent = new Float64Array(2 * batch);
    this.gradient = this.climb === "everything" ? new Weights() : null;
    this.displaced = this.climb === "everything" ? new Weights() : null;
  }

  /**
   * One step on a batch: x holds each example as the body sees it for each feature (2B by 4), y its labels.
   * Returns the head before the step, the phantom head, and the head that weighs the features' gradients.
   */
  step(x, y) {
    const batch = y.length, head = this.weights["head.weight"], real = [...head];
    const { w, Q, phantom } = this.#phantomPoint(x, y);
    const gradient = headGradient(Q, phantom, batch);
    const rates = this.starRates ? this.vStar : phantom; // eq. 8
    this.#fillCotangent(Q, y, this.#weigher(phantom), rates);
    this.body.backward(w, this.cotangent, this.weights, -this.lr, 2 * batch);
    if (this.trainHead) for (let k = 0; k < 2; k++) head[k] = real[k] - this.lr * gradient[k];
    return { real, phantom, rates };
  }

  /** The importance weights that a step gives to the examples of this batch. */
  importanceWeights(x, y) {
    const { Q, phantom } = this.#phantomPoint(x, y), v = this.#weigher(phantom);
    return Array.from(y, (_, i) => importanceWeight(Q, i, v));
  }

  #weigher(phantom) {
    return this.starWeights ? this.vStar : phantom; // eq. 7
  }

  /** Where the gradient is taken: weights of the body, its signed features, the head. */
  #phantomPoint(x, y) {
    const w = this.climb === "everything" ? this.#displace(x, y) : this.weights;
    const Q = this.#signed(w, x, y);
    let phantom = [...w["head.weight"]];
    if (this.climb === "head") phantom = climbed(phantom, headGradient(Q, phantom, y.length), this.rho); // eq. 5
    return { w, Q, phantom };
  }

  /** Q = -y Phi, so that <Q_i, v> = -y_i f_i. */
  #signed(w, x, y) {
    const phi = this.body.forward(w, x, 2 * y.length);
    for (let i = 0; i < 2 * y.length; i++) this.Q[i] = -y[i >> 1] * phi[i];
    return this.Q;
  }

  #fillCotangent(Q, y, weigh, rates) {
    for (let i = 0; i < y.length; i++) {
      const lambda = importanceWeight(Q, i, weigh);
      for (let k = 0; k < 2; k++) this.cotangent[2 * i + k] = (-y[i] * lambda * rates[k]) / y.length;
    }
  }

  /** The weights at w + rho g/|g|, the norm over all of them (eq. 3). */
  #displace(x, y) {
    const { weights, gradient, displaced } = this, v = weights["head.weight"];
    const Q = this.#signed(weights, x, y);
    gradient.all.fill(0);
    gradient["head.weight"].set(headGradient(Q, v, y.length));
    this.#fillCotangent(Q, y, v, v);
    this.body.backward(weights, this.cotangent, gradient, 1, 2 * y.length);
    const length = Math.sqrt(gradient.all.reduce((sum, g) => sum + g * g, 0));
    const scale = length > 0 ? this.rho / length : 0;
    for (let i = 0; i < weights.all.length; i++) displaced.all[i] = weights.all[i] + scale * gradient.all[i];
    return displaced;
  }
}

/** lambda_i = sigmoid(-y_i f_i) at the head v (eq. 6). */
export function importanceWeight(Q, i, v) {
  return 1 / (1 + Math.exp(-(Q[2 * i] * v[0] + Q[2 * i + 1] * v[1])));
}

/** The gradient of the loss by the head. */
export function headGradient(Q, v, batch) {
  const g = [0, 0];
  for (let i = 0; i < batch; i++) {
    const lambda = importanceWeight(Q, i, v);
    g[0] += (lambda * Q[2 * i]) / batch;
    g[1] += (lambda * Q[2 * i + 1]) / batch;
  }
  return g;
}

/** v + rho g/|g|, and v itself where g is zero (eq. 5). */
export function climbed(v, g, rho) {
  const length = Math.hypot(g[0], g[1]);
  const scale = length > 0 ? rho / length : 0;
  return [v[0] + scale * g[0], v[1] + scale * g[1]];
}
